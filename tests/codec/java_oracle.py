"""Kafka's own codec as a program, built once for each version of its library."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.clients.go_program import BUILD_SECONDS_MAX, digest

NEWEST, OLDER = "4.4.0", "3.9.2"
"""Versions of the client library. The program is compiled with the newest."""
JAVA = Path(__file__).parent / "java"
CACHE = Path(__file__).parents[2] / ".cache" / "codec-java"


def oracle_command(version: str = NEWEST) -> list[str]:
    """Return the command of the program with the classes of this version.

    Missing parts are built.
    """
    libraries = {known: _libraries(known) for known in (NEWEST, OLDER)}
    return ["java", "-cp", f"{_classes(libraries[NEWEST])}:{libraries[version]}/*", "vdl.Oracle"]


def _classes(libraries: Path) -> Path:
    sources = sorted(JAVA.rglob("*.java"))
    folder = CACHE / f"classes-{NEWEST}-{digest(sources)}"
    if not folder.exists():
        partial = _fresh(folder)
        command = ["javac", "-d", str(partial), "-cp", f"{libraries}/*", *map(str, sources)]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        partial.rename(folder)
    return folder


def _libraries(version: str) -> Path:
    """Return the folder with this version's client library and dependencies, filled once."""
    folder = CACHE / version
    if not (folder / f"kafka-clients-{version}.jar").exists():
        partial = _fresh(folder)
        command = ["mvn", "-q", "-B", "-f", str(JAVA / "pom.xml"), f"-Dkafka.version={version}"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


def _fresh(folder: Path) -> Path:
    """Return an empty folder beside `folder`, to be renamed to it when complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial
