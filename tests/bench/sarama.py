"""One synchronous sarama producer: records of four sizes, sent by one, ten, 25 and fifty a call.

The table of the system of 2018, on this machine: acks=all, replication 3, one partition; a call of
SendMessages is made when the previous one is acknowledged. The program is in Go (tests/bench/go).
Figures: records and megabytes a second, and milliseconds a call. Measured in two passes
(tests/bench/beside_peer.py).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.bench.beside_peer import comparison, set_peer_defaults
from tests.bench.rounds import Comparison, Figures
from tests.bench.systems import System
from tests.bench.targets import SARAMA
from tests.bench.topics import create_led_topic
from tests.clients.go_program import go_program

RECORD_BYTES = (100, 500, 1_024, 4_096)
BATCH_RECORDS = (1, 10, 25, 50)
WARM_UP_SECONDS = 0.3
CALL_SECONDS_MAX = 60.0
SOURCES = Path(__file__).parent / "go"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="for each cell of the table")
    set_peer_defaults(parser)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    one_pass = partial(_one_pass, program=go_program(SOURCES), seconds=options.seconds)
    made = comparison(one_pass, SARAMA)
    made.settings["client"] = {"sarama": _version(), "acks": "all"}
    yield made


def _one_pass(system: System, name: str, *, program: Path, seconds: float) -> Figures:
    topic = f"sarama-{name}"
    create_led_topic(system.bootstrap, topic)
    figures: Figures = {}
    for record_bytes in RECORD_BYTES:
        for batch_records in BATCH_RECORDS:
            numbers = map(str, (record_bytes, batch_records, WARM_UP_SECONDS, seconds))
            done = subprocess.run(
                [str(program), system.bootstrap, topic, *numbers],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=CALL_SECONDS_MAX,
            )
            cell = f"{record_bytes}_bytes_by_{batch_records}"
            figures |= {f"{cell}_{key}": value for key, value in json.loads(done.stdout).items()}
    return figures


def _version() -> str:
    """Return the library's version, from go.mod."""
    words = (SOURCES / "go.mod").read_text(encoding="utf-8").split()
    return words[words.index("github.com/IBM/sarama") + 1]
