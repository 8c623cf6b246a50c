"""One replica set and one pair of driver processes a client, for all tests of this folder.

VDL_TEST_BOOTSTRAP names existing brokers to use instead of starting servers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.clients import CLIENTS, Client
from tests.clients.driver import Driver
from tests.clients.topics import Topics

SOON = {"compaction.check_interval": "500ms", "storage.checkpoint_interval": "2s"}
"""Short intervals of periodic work, so that tests need not wait for it."""


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet | None]:
    """Yield the servers started for these tests; None where existing brokers are used."""
    if os.environ.get("VDL_TEST_BOOTSTRAP"):
        yield None
        return
    replica_set = ReplicaSet(3)
    try:
        replica_set.configure(SOON)
        replica_set.up()
        yield replica_set
    finally:
        replica_set.close(failed="clients" if request.session.testsfailed else "")


@pytest.fixture(scope="session")
def bootstrap(servers: ReplicaSet | None) -> str:
    """Return the brokers' addresses."""
    return os.environ["VDL_TEST_BOOTSTRAP"] if servers is None else servers.bootstrap


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Iterator[Topics]:
    made = Topics(bootstrap)
    yield made
    made.delete_all()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the clients' logs."""
    return tmp_path_factory.mktemp("drivers")


class Drivers:
    """Driver processes by client, started when first needed: a JVM starts slowly."""

    def __init__(self, bootstrap: str, logs: Path) -> None:
        self._bootstrap = bootstrap
        self._logs = logs
        self._started: dict[str, list[Driver]] = {}

    def of(self, client: Client, count: int) -> list[Driver]:
        """Return `count` drivers of a client, without open consumers."""
        started = self._started.setdefault(client.name, [])
        command = client.command() if len(started) < count else []
        while len(started) < count:
            log = self._logs / f"{client.name}-{len(started)}.log"
            started.append(Driver(client.name, command, self._bootstrap, log))
        return started[:count]

    def settle(self, client: Client, *, failed: bool) -> None:
        """Close what a scenario left open.

        After a failed one its processes are stopped: an answer may still be under way.
        """
        for driver in self._started.get(client.name, []):
            if failed:
                driver.stop()
            else:
                driver.ask("close")
        if failed:
            self._started.pop(client.name, None)

    def stop(self) -> None:
        for drivers in self._started.values():
            for driver in drivers:
                driver.stop()


@pytest.fixture(scope="session")
def drivers(bootstrap: str, logs: Path) -> Iterator[Drivers]:
    started = Drivers(bootstrap, logs)
    yield started
    started.stop()


def client_parameters() -> list[object]:
    """Return the clients as parameters of a test, marked with the tools that they need."""
    return [
        pytest.param(client, id=client.name, marks=getattr(pytest.mark, client.needs))
        if client.needs
        else pytest.param(client, id=client.name)
        for client in CLIENTS
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that takes `client` with every client."""
    if "client" in metafunc.fixturenames:
        metafunc.parametrize("client", client_parameters())
