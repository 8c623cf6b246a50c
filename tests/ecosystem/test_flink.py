"""Flink: a keyed sum from one topic into another."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

from tests.ecosystem.programs import Program, classes, java
from tests.ecosystem.records import Record, Topics

RECORDS = 20_000
NAMES = 50
GROUP = "adders"
# What Flink needs of the JVM from version 17 on.
OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.util", "java.lang", "java.time", "java.util.concurrent")
)


def test_flink_adds_up_what_is_in_a_topic(topics: Topics, log: Path) -> None:
    """Each record gives one total, and the last total of each name is right."""
    rng = random.Random(11)
    topics.create("amounts", "totals")
    amounts = [(f"n{rng.randrange(NAMES)}", rng.randrange(1_000)) for _ in range(RECORDS)]
    topics.produce(
        "amounts", [Record(name.encode(), f"{name} {amount}".encode()) for name, amount in amounts]
    )
    command = java(classes("flink"), "vdl.Totals", topics.bootstrap, GROUP)
    command[1:1] = OPENED
    with Program(command, log) as program:
        program.wait_for_end("the job is done")
        assert program.says("finished"), program.tail()
    expected: dict[str, int] = defaultdict(int)
    for name, amount in amounts:
        expected[name] += amount
    totals: dict[str, int] = defaultdict(int)
    written = [(record.value or b"").decode().split(" ") for record in topics.read("totals")]
    for name, total in written:
        totals[name] = max(totals[name], int(total))
    assert (len(written), totals) == (RECORDS, expected)
