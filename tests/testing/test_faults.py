"""Applications with classic bugs are found under faults, and their counterparts are not.

Faults that an application need not survive are left out for both of a pair: one that does its work
at least once repeats it after a crash.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testing import applications as apps
from vdl.testing import Cluster
from vdl.testing.application import App, Env
from vdl.testing.faults import (
    Event,
    Fault,
    FaultFound,
    as_test,
    check_under_faults,
    run_under_faults,
    schedules,
)

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 40
EXAMPLES_OF_RIGHT_ONES = 8
SECONDS = 240.0
ALL = tuple(Fault)
OF_CLUSTERS = ALL[2:6]

PAIRS = [
    (apps.COMMITS_FIRST, apps.COMMITS_AFTER, ALL[:2]),
    (apps.COMMITS_OWN_OFFSET, apps.COMMITS_NEXT_OFFSET, (Fault.CRASH,)),
    (apps.AUTO_COMMITS, apps.STORES_AFTER, ALL[:2]),
    (apps.STARTS_AT_LATEST, apps.STARTS_AT_EARLIEST, (Fault.CRASH,)),
    (apps.DEDUPES_IN_MEMORY, apps.DEDUPES_IN_DATABASE, (Fault.CRASH,)),
    (apps.COUNTS_PARTITIONS_ONCE, apps.COUNTS_PARTITIONS_AGAIN, (Fault.GROW_TOPIC,)),
    (apps.SENDS_UNACKNOWLEDGED, apps.SENDS_ACKNOWLEDGED, OF_CLUSTERS),
    (apps.IGNORES_ERRORS, apps.LOOKS_AT_ERRORS, OF_CLUSTERS),
    (apps.RETRIES_PLAINLY, apps.RETRIES_IDEMPOTENTLY, OF_CLUSTERS),
    (apps.HAS_NO_FENCE, apps.HAS_A_FENCE, ALL[:2]),
    (apps.READS_UNCOMMITTED, apps.READS_COMMITTED, (Fault.CRASH,)),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as made:
        yield made


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize(
    ("wrong", "faults"), [(wrong, faults) for wrong, _, faults in PAIRS],
    ids=[wrong.name for wrong, _, _ in PAIRS],
)  # fmt: skip
def test_faults_find_each_classic_bug(
    cluster: Cluster, wrong: App, faults: tuple[Fault, ...]
) -> None:
    """It is found within the given number of schedules, and shrunk to one or two faults."""
    with pytest.raises(FaultFound) as found:
        check_under_faults(cluster, wrong, faults=faults, examples=EXAMPLES, seconds=SECONDS)
    print(found.value)
    assert 1 <= len(found.value.schedule) <= 2
    assert f"from tests.testing.applications import {wrong.name}" in str(found.value)


@pytest.mark.takes_turns(parts=2)
@pytest.mark.parametrize(
    ("right", "faults"), [(right, faults) for _, right, faults in PAIRS],
    ids=[right.name for _, right, _ in PAIRS],
)  # fmt: skip
def test_faults_find_nothing_in_right_applications(
    cluster: Cluster, right: App, faults: tuple[Fault, ...]
) -> None:
    tried = check_under_faults(
        cluster, right, faults=faults, examples=EXAMPLES_OF_RIGHT_ONES, seconds=SECONDS
    )
    assert tried >= 1


def test_faults_print_a_test_that_fails(tmp_path: Path) -> None:
    """The printed source is a test of its own."""
    source = as_test(apps.COMMITS_FIRST, [Event(0, Fault.CRASH)])
    file = tmp_path / "test_printed.py"
    file.write_text(source.replace("from tests.testing.applications", "from applications"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        cwd=tmp_path,
        env={"PATH": "", "PYTHONPATH": f"{ROOT}:{ROOT}/tests/testing"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "lost: ['0']" in done.stdout


def stepless(env: Env) -> None:
    del env


def failing(env: Env) -> None:
    env.step()
    raise RuntimeError("by itself")


@pytest.mark.parametrize(
    ("code", "problem"), [(stepless, "announces no step"), (failing, "by itself")]
)
def test_faults_on_an_application_that_cannot_be_judged_say_so(
    cluster: Cluster, code: object, problem: str
) -> None:
    app = App("CODE", code, stepless)  # type: ignore[arg-type]
    with pytest.raises((ValueError, AssertionError), match=problem):
        check_under_faults(cluster, app)


def test_schedules_are_sorted_and_within_bounds() -> None:
    from hypothesis import find

    found = find(schedules(3, (Fault.CRASH, Fault.POWER_CUT)), lambda events: len(events) == 2)
    assert found == sorted(found, key=lambda event: event.order)
    assert all(event.step < 3 for event in found)


def test_event_can_be_copied_from_a_report() -> None:
    assert eval(repr([Event(2, Fault.CRASH)])) == [Event(2, Fault.CRASH)]


def test_run_with_every_fault_leaves_the_cluster_whole(cluster: Cluster) -> None:
    faults = [Event(0, fault) for fault in Fault if fault is not Fault.REPLACE]
    run_under_faults(cluster, apps.COMMITS_AFTER, faults)
    assert all(cluster.pid(server) for server in cluster.servers)
