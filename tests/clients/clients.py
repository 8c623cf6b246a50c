"""Clients that the suite runs, and how their drivers are built.

All are the newest published versions, unmodified. The Python ones come from the `dev` extra; the
Java, Go and Node ones are downloaded once from Maven Central, the Go module proxy and the npm
registry, into `.cache/clients`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.clients.go_program import BUILD_SECONDS_MAX, CACHE, digest, go_program

DRIVERS = Path(__file__).parent / "drivers"
OLD_REQUIREMENTS = DRIVERS / "old_kafka_python.txt"
"""Pinned requirements of the driver of old protocols."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client library: its name in test ids, the command of its driver, its requirements."""

    name: str
    command: Callable[[], list[str]]
    """Returns the driver's command, and builds the driver if necessary."""
    needs: str = ""
    """Marker of tests that use it: `java`, `go` or none."""
    sends_null_headers: bool = True
    """True if it can produce a header without a value, as the protocol allows."""


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.clients.drivers.{module}"]


def java_classes(folder: Path, version: str) -> Path:
    """Return the programs of a folder, compiled against this version of the client library."""
    libraries = java_libraries(version)
    sources = sorted(folder.rglob("*.java"))
    classes = CACHE / f"java-{version}-{digest(sources)}"
    if not classes.exists():
        partial = _fresh(classes)
        command = ["javac", "-d", str(partial), "-cp", f"{libraries}/*", *map(str, sources)]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        partial.rename(classes)
    return classes


def _java(version: str) -> list[str]:
    classes, libraries = java_classes(DRIVERS / "java", version), java_libraries(version)
    # The serial collector and the first compiler only: these processes run for seconds.
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"]
    flags += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", *flags, "-cp", f"{classes}:{libraries}/*", "vdl.ClientDriver"]


def java_libraries(version: str) -> Path:
    """Return the folder with the client library and its dependencies, filled once."""
    pom = DRIVERS / "java" / "pom.xml"
    folder = CACHE / f"java-{version}-libraries-{digest([pom])}"
    if not folder.exists():
        partial = _fresh(folder)
        command = ["mvn", "-q", "-B", "-f", str(pom)]
        command += [f"-Dkafka.version={version}", "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={partial}"]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        partial.rename(folder)
    return folder


def _go() -> list[str]:
    return [str(go_program(DRIVERS / "go"))]


def _sarama() -> list[str]:
    return [str(go_program(DRIVERS / "sarama"))]


def _fresh(folder: Path) -> Path:
    """Return an empty folder beside `folder`, to be renamed to it when complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


CLIENTS = (
    Client("confluent-kafka", lambda: _python("librdkafka")),
    Client("kafka-python", lambda: _python("kafka_python"), sends_null_headers=False),
    Client("java-4.4", lambda: _java("4.4.0"), needs="java"),
    Client("java-3.9", lambda: _java("3.9.2"), needs="java"),
    Client("franz-go", _go, needs="go"),
)


def python_environment(name: str, requirements: Path) -> Path:
    """Return the interpreter of an environment with these packages, created once."""
    folder = CACHE / f"{name}-{digest([requirements])}"
    python = folder / "bin" / "python"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Not created elsewhere and moved: installed files contain their own path.
        command = [sys.executable, "-m", "venv", "--clear", str(folder)]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        command = [str(python), "-m", "pip", "install", "--quiet"]
        command += ["--disable-pip-version-check", "-r", str(requirements)]
        try:
            subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return python


def node_program(folder: Path) -> Path:
    """Return the folder with a Node program and the packages of its lock file, filled once."""
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    built = CACHE / f"node-{digest(sources)}"
    if not built.exists():
        partial = _fresh(built)
        for source in sources:
            shutil.copy(source, partial)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX, cwd=partial)
        partial.rename(built)
    return built


def _old_kafka_python(api_version: str) -> list[str]:
    """Return the driver's command, with the last kafka-python that supports old protocols."""
    python = python_environment("kafka-python", OLD_REQUIREMENTS)
    return [str(python), "-m", "tests.clients.drivers.old_kafka_python", api_version]


OLD_CLIENTS = (
    Client("kafka-python-0.8.2", lambda: _old_kafka_python("0.8.2"), sends_null_headers=False),
    Client("kafka-python-0.9", lambda: _old_kafka_python("0.9"), sends_null_headers=False),
    Client("kafka-python-0.10", lambda: _old_kafka_python("0.10"), sends_null_headers=False),
    Client("librdkafka-0.8.2", lambda: [*_python("librdkafka"), "0.8.2"]),
    Client("librdkafka-0.9", lambda: [*_python("librdkafka"), "0.9.0"]),
    Client("sarama-0.8.2", lambda: [*_sarama(), "0.8.2.0"], needs="go"),
    Client("sarama-0.10", lambda: [*_sarama(), "0.10.0.0"], needs="go"),
)
"""Clients that use the protocol of the Kafka version in their name: message formats 0 and 1.

Java's client no longer supports it.
"""


def is_here(client: Client) -> bool:
    """Return True if this machine has the client's requirements."""
    return not client.needs or shutil.which(client.needs) is not None
