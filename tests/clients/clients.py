"""Which clients the suite runs, and how their drivers are built.

All are the newest published versions, unmodified: the Python ones come from the `dev` extra, the
Java, Go and Node ones from Maven Central, the Go module proxy and the npm registry, once, into
`.cache/clients`.
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
"""What the driver of old protocols needs, pinned."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client library: its name in test ids, the command of its driver, what it needs."""

    name: str
    command: Callable[[], list[str]]
    """Builds the driver where there is something to build."""
    needs: str = ""
    """The marker of tests that use it: `java`, `go` or none."""
    sends_null_headers: bool = True
    """Whether it can produce a header without a value, as the protocol allows."""


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", f"tests.clients.drivers.{module}"]


def java_classes(folder: Path, version: str) -> Path:
    """The programs of a folder, compiled against the client library of this version."""
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
    # The serial collector and the first compiler only: these processes live for seconds.
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"]
    flags += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    return ["java", *flags, "-cp", f"{classes}:{libraries}/*", "vdl.ClientDriver"]


def java_libraries(version: str) -> Path:
    """The folder with the client library and what it needs, filled once."""
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
    """An empty folder beside `folder`, to be renamed to it when complete."""
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
    """The interpreter of an environment with these packages, made once."""
    folder = CACHE / f"{name}-{digest([requirements])}"
    python = folder / "bin" / "python"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        # Not made elsewhere and moved: what is installed has its own path in it.
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
    """The folder with a Node program and the packages that its lock file names, filled once."""
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
    """The driver in an environment that has the last kafka-python that speaks old protocols."""
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
"""Clients that speak as those of the version of Kafka in their name did: message formats 0 and 1.
Java's can no longer be told to."""


def is_here(client: Client) -> bool:
    """Whether this machine has what the client needs."""
    return not client.needs or shutil.which(client.needs) is not None
