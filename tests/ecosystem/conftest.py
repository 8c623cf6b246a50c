"""One replica set for all tests of this folder, and a Kafka where one is needed.

VDL_TEST_BOOTSTRAP names existing brokers to use instead of starting servers; VDL_TEST_REPLICATION
is the replication factor that they support, 3 by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.kafka import Kafka
from tests.ecosystem.records import Topics

REPLICATION = int(os.environ.get("VDL_TEST_REPLICATION", "3"))


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet | None]:
    """Yield the servers started for these tests; None if existing brokers are used."""
    if os.environ.get("VDL_TEST_BOOTSTRAP"):
        yield None
        return
    replica_set = ReplicaSet(3)
    try:
        replica_set.up()
        yield replica_set
    finally:
        replica_set.close(failed="ecosystem" if request.session.testsfailed else "")


@pytest.fixture(scope="session")
def bootstrap(servers: ReplicaSet | None) -> str:
    """Return the brokers' addresses."""
    return os.environ["VDL_TEST_BOOTSTRAP"] if servers is None else servers.bootstrap


@pytest.fixture
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap, replication=REPLICATION)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Yield an Apache Kafka of one node."""
    with Kafka(tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the output file of the program under test."""
    return tmp_path / "program.log"
