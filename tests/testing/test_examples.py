"""The samples in `examples/testing` run: Go and Java programs start a cluster and make it fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.clients import java_classes, java_libraries

pytestmark = pytest.mark.takes_turns(parts=2)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "testing"
RUN_SECONDS_MAX = 600
VERSION = "4.4.0"
"""Version of the Java client, one of those that `tests/clients` fetches."""


def run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"VDL_COMMAND": f"{sys.executable} -m vdl.cli"}
    environment["PYTHONPATH"] = str(EXAMPLES.parents[1])
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.go
def test_go_sample_passes_its_tests() -> None:
    assert "ok" in run(["go", "test", "-count=1", "./..."], EXAMPLES / "go")


@pytest.mark.java
def test_java_sample_passes_its_tests() -> None:
    classes = java_classes(EXAMPLES / "java" / "src", VERSION)
    path = f"{classes}:{java_libraries(VERSION)}/*"
    flags = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
    flags += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    assert "passed" in run(["java", *flags, "-cp", path, "vdl.testing.OrdersTest"], EXAMPLES)
