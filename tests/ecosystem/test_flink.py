"""Flink: a keyed sum from one topic into another, and exactly once across failures of the job.

VDL_FLINK_RECORDS and VDL_FLINK_FAILURES set the size of the last test, and how often the job fails;
VDL_FLINK_LEADERS the number of leaders killed meanwhile.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.programs import Program, classes, java
from tests.ecosystem.records import Record, Topics

pytestmark = pytest.mark.takes_turns(parts=2)

RECORDS = 20_000
ONCE_RECORDS = int(os.environ.get("VDL_FLINK_RECORDS", "20000"))
FAILURES = int(os.environ.get("VDL_FLINK_FAILURES", "2"))
LEADERS = int(os.environ.get("VDL_FLINK_LEADERS", "0"))
IS_LONG = ONCE_RECORDS > RECORDS
NAMES = 50
# Options that Flink requires of the JVM from version 17 on.
OPENED = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.util", "java.lang", "java.time", "java.util.concurrent")
)
FAILED = "fails in the middle"


def test_flink_adds_up_what_is_in_a_topic(topics: Topics, log: Path) -> None:
    """Each record yields one total, and the last total of each name is correct."""
    amounts = _amounts(topics, "adders", RECORDS)
    with _program(topics, log, "adders", "AT_LEAST_ONCE", "INCREMENTING", "0") as program:
        program.wait_for_end("the job is done")
        assert program.says("finished"), program.tail()
    _check(topics.read("adders-totals"), amounts)


@pytest.mark.parametrize("naming", ["INCREMENTING", "POOLING"] if IS_LONG else ["POOLING"])
def test_flink_writes_each_total_exactly_once_over_failures(
    servers: ReplicaSet | None, topics: Topics, log: Path, naming: str
) -> None:
    """`DeliveryGuarantee.EXACTLY_ONCE`: each total is written exactly once.

    Records written since the last checkpoint are aborted, by producers that take over the
    transactional ids, or find the open transactions by ListTransactions. Prepared ones are
    committed by producers of the same epoch.
    """
    group = f"once-{naming.lower()}"
    amounts = _amounts(topics, group, ONCE_RECORDS)
    with (
        topics.follow(f"{group}-totals") as written,
        _program(topics, log, group, "EXACTLY_ONCE", naming, str(FAILURES)) as program,
    ):
        for number in range(LEADERS):
            enough = ONCE_RECORDS * (number + 1) / (LEADERS + 1)
            program.wait_for("totals are written", lambda n=enough: written.count() >= n)
            leader = topics.leader(f"{group}-totals", number)
            if servers is not None and leader > 0:
                servers.kill(leader)
                servers.start(leader)
                servers.wait_serving(leader)
        program.wait_for_end("the job is done")
        assert program.says("finished"), program.tail()
        written.count()
        _check(written.records, amounts)
    failures = program.log.read_text(errors="replace").count(FAILED)
    assert failures >= FAILURES, program.tail()


def _program(topics: Topics, log: Path, *arguments: str) -> Program:
    command = java(classes("flink"), "vdl.Totals", topics.bootstrap, *arguments)
    command[1:1] = OPENED
    return Program(command, log)


def _amounts(topics: Topics, group: str, count: int) -> list[tuple[str, int]]:
    """Produce and return the summands."""
    rng = random.Random(11)
    topics.create(f"{group}-amounts", f"{group}-totals")
    amounts = [(f"n{rng.randrange(NAMES)}", rng.randrange(1, 1_000)) for _ in range(count)]
    topics.produce(
        f"{group}-amounts",
        [Record(name.encode(), f"{name} {amount}".encode()) for name, amount in amounts],
    )
    return amounts


def _check(written: list[Record], amounts: list[tuple[str, int]]) -> None:
    """Check that each record is in the totals of its name once, in any order."""
    expected: dict[str, Counter[int]] = defaultdict(Counter)
    for name, amount in amounts:
        expected[name][amount] += 1
    totals: dict[str, list[int]] = defaultdict(lambda: [0])
    for record in written:
        name, total = (record.value or b"").decode().split(" ")
        totals[name].append(int(total))
    found = {
        name: Counter(after - before for before, after in pairwise(sorted(some)))
        for name, some in totals.items()
    }
    assert len(written) == len(amounts)
    assert found == expected
