"""One replica set for all tests of this folder, and a Kafka beside it where one is needed.

VDL_TEST_BOOTSTRAP names brokers to use instead of starting servers of our own; VDL_TEST_REPLICATION
says how many copies they can keep, 3 by default.
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
    """The servers started for these tests; None where others are used."""
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
    """Where the brokers are."""
    return os.environ["VDL_TEST_BOOTSTRAP"] if servers is None else servers.bootstrap


@pytest.fixture
def topics(bootstrap: str) -> Topics:
    return Topics(bootstrap, replication=REPLICATION)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """An Apache Kafka of one node."""
    with Kafka(tmp_path_factory.mktemp("kafka")) as node:
        yield node


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the program under test prints to."""
    return tmp_path / "program.log"
