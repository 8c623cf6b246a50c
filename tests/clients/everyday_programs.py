"""Programs for the everyday uses of a client (everyday.py), and how they are built."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from tests.clients.clients import DRIVERS, node_program, python_environment
from tests.clients.go_program import go_program

INSTALL_SECONDS_MAX = 240


@dataclass(frozen=True, slots=True)
class Program:
    """A client's program: how it is built, its requirements, and results that it omits."""

    command: Callable[[], list[str]]
    needs: str = ""
    """Marker of tests that use it: `go`, `node` or none."""
    untold: frozenset[str] = frozenset()


def _aiokafka() -> list[str]:
    folder = DRIVERS / "aiokafka"
    python = python_environment("aiokafka", folder / "requirements.txt")
    return [str(python), str(folder / "everyday.py")]


def _kafka_go() -> list[str]:
    return [str(go_program(DRIVERS / "kafka_go"))]


def _kafkajs() -> list[str]:
    return ["node", str(node_program(DRIVERS / "kafkajs") / "everyday.js")]


PROGRAMS = {
    "aiokafka": Program(_aiokafka),
    "kafka-go": Program(_kafka_go, needs="go", untold=frozenset({"offsets"})),
    "kafkajs": Program(_kafkajs, needs="node"),
}


def install_kcat() -> None:
    """Install Debian's package where it is missing, in CI alone: other machines are not changed.

    Raises CalledProcessError and TimeoutExpired.
    """
    if shutil.which("kcat") or os.environ.get("CI") != "true" or os.geteuid() != 0:
        return
    for command in (["update", "-qq"], ["install", "-qq", "-y", "kcat"]):
        subprocess.run(
            ["apt-get", *command],
            check=True,
            timeout=INSTALL_SECONDS_MAX,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        )
