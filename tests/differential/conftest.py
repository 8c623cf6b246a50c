"""Both clusters, for all tests of this folder that need no logins.

DIFFERENTIAL names two running ones, as `KAFKA;VDL`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from subprocess import CalledProcessError

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.differential.compare import Known, load_known
from tests.differential.kafka_cluster import KafkaCluster, why_not
from tests.differential.side import Versions, common, versions_of

SETTINGS = {"kafka.group.initial.rebalance.delay.ms": 0}


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
