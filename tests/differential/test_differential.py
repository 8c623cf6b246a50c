"""The same requests to Kafka and to VDL, three servers each: answers are compared field by field.

`make differential`. Skipped where Kafka cannot be started; it is no part of `make test`.
DIFFERENTIAL names two running clusters, as `KAFKA;VDL`, and DIFFERENCES a file to which all
unlisted differences are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.differential.compare import Known, differences, load_known, unlisted
from tests.differential.kafka_cluster import KafkaCluster, why_not
from tests.differential.scenarios import (
    access,
    cluster,
    configs,
    groups,
    metadata,
    modern_groups,
    reading,
    topics,
    transactional,
    writing,
)
from tests.differential.side import Side, Versions, common, versions_of

SETTINGS = {"kafka.group.initial.rebalance.delay.ms": 0}
SHOWN_MAX = 60

Scenario = Callable[[Side], None]
SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for module in (
        metadata,
        topics,
        writing,
        reading,
        groups,
        configs,
        cluster,
        transactional,
        modern_groups,
        access,
    )
    for scenario in module.SCENARIOS
}


@dataclass(slots=True)
class Pair:
    """Both clusters, and their common versions."""

    bootstraps: dict[str, str]
    versions: Versions
    known: list[Known]
    token: str
    """Token of this run in the names that it creates: the clusters may have been used before."""

    ran: set[str]
    """Scenarios that ran to their end, with nothing omitted."""


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if running := os.environ.get("DIFFERENTIAL"):
        kafka_at, _, vdl_at = running.partition(";")
        yield _pair(kafka_at, vdl_at)
        return
    if reason := why_not():
        pytest.skip(reason)
    kafka, servers = KafkaCluster(), ReplicaSet(3)
    try:
        servers.configure(SETTINGS)
        with ThreadPoolExecutor() as pool:
            starting = pool.submit(servers.up)
            try:
                kafka.up()
            except CalledProcessError as error:
                pytest.skip(f"Kafka's jars cannot be had: {error}")
            starting.result()
        yield _pair(kafka.bootstrap, servers.bootstrap)
    finally:
        kafka.close()
        servers.close(failed="differential" if request.session.testsfailed else "")


def _pair(kafka: str, vdl: str) -> Pair:
    versions = common(versions_of(_first(kafka)), versions_of(_first(vdl)))
    return Pair({"kafka": kafka, "vdl": vdl}, versions, load_known(), os.urandom(2).hex(), set())


def _first(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("name", SCENARIOS)
def test_answers_are_kafkas(pair: Pair, name: str) -> None:
    """Each answer is Kafka's, except for those that `known.toml` lists."""
    sides = [
        Side(which, bootstrap, pair.versions, f"d{pair.token}.{name}")
        for which, bootstrap in pair.bootstraps.items()
    ]
    try:
        with ThreadPoolExecutor() as pool:
            for running in [pool.submit(SCENARIOS[name], side) for side in sides]:
                running.result()
    finally:
        for side in sides:
            side.close()
    kafka, vdl = sides
    assert kafka.answers or kafka.left_out, "nothing was asked"
    found = differences(name, kafka.answers, vdl.answers)
    left = unlisted(found, pair.known)
    if path := os.environ.get("DIFFERENCES"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.writelines(f"{difference}\n" for difference in left)
    if not kafka.left_out:
        pair.ran.add(name)
    shown = "\n".join(map(str, left[:SHOWN_MAX]))
    assert not left, f"{len(left)} differences that are not in known.toml:\n{shown}"
    if kafka.left_out and not kafka.answers:
        pytest.skip(f"not offered here: {sorted(kafka.left_out)}")


def test_known_differences_are_still_there(pair: Pair) -> None:
    """A row of the list that matches nothing any more has to be removed."""
    gone = [row.where for row in pair.known if row.scenario in pair.ran and not row.used]
    assert not gone, f"known.toml lists what is no longer so: {gone}"
