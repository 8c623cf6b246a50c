"""Prepares the external programs of tests: `python -m tests.programs FOLDER`.

Clients in other languages are compiled, and programs of Kafka's ecosystem are fetched, into
`.cache`. This belongs to a stage's set-up, where its progress is visible; a test that is run by
itself prepares its own programs. Programs that cannot be prepared are reported, and the tests that
need them skip or fail.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.clients.clients import CLIENTS, OLD_CLIENTS, is_here
from tests.clients.everyday_programs import PROGRAMS, install_kcat
from tests.clients.share_workers import share_worker
from tests.codec.java_oracle import oracle_command
from tests.ecosystem import apicurio
from tests.ecosystem.programs import classes, libraries
from tests.unit.ops.promtool import fetch_promtool

Making = tuple[str, Callable[[], object]]
"""Name of a program, and the function that prepares it.

The function may raise OSError, CalledProcessError, TimeoutExpired or skip.
"""


def of_clients() -> Iterator[Making]:
    for client in (*CLIENTS, *OLD_CLIENTS):
        if is_here(client):
            yield client.name, client.command
    for name, program in PROGRAMS.items():
        if not program.needs or shutil.which(program.needs):
            yield name, program.command
    if shutil.which("java"):
        yield "share groups", share_worker
    yield "kcat", install_kcat


def of_codec() -> Iterator[Making]:
    if shutil.which("java"):
        yield "Kafka's codec", oracle_command


def of_ecosystem() -> Iterator[Making]:
    if shutil.which("java"):
        yield "Kafka, Streams, Connect", lambda: classes("java")
        yield "Flink", lambda: classes("flink")
        yield "Debezium", lambda: libraries("debezium")
        yield "Apicurio", apicurio.installed


def of_pipeline() -> Iterator[Making]:
    if shutil.which("java"):
        yield "Iceberg's catalog", lambda: classes("iceberg")
        yield "Kafka Connect", lambda: libraries("java")
        yield "Debezium", lambda: libraries("debezium")
        yield "Apicurio", apicurio.installed


def of_unit() -> Iterator[Making]:
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        yield "promtool", fetch_promtool


FOLDERS = {
    "clients": of_clients,
    "codec": of_codec,
    "ecosystem": of_ecosystem,
    "pipeline": of_pipeline,
    "unit": of_unit,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make ready what the tests of a folder drive.")
    parser.add_argument("folder", choices=FOLDERS)
    for name, make in FOLDERS[parser.parse_args().folder]():
        print(f"setup: {name}", flush=True)
        began = time.monotonic()
        try:
            make()
        except (OSError, subprocess.SubprocessError, pytest.skip.Exception) as error:
            print(f"setup: {name} is not to be had: {error}", file=sys.stderr)
        else:
            print(f"setup: {name} is ready ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
