"""One Spark session and one replica set for all tests of this folder.

Without Java, or without the `spark` extra, the tests that need them are skipped with a reason.
Positions, options, filters and job files are tested everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from vdl.pipeline.session import NotInstalled, check_installed, make_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """Session that all tests share: it costs about fifteen seconds of processor time."""
    try:
        check_installed()
    except NotInstalled as error:
        pytest.skip(str(error))
    settings = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    session = make_session("vdl-tests", settings=settings)
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[ReplicaSet]:
    replica_set = ReplicaSet(3)
    try:
        replica_set.up()
        yield replica_set
    finally:
        replica_set.close(failed="pipeline" if request.session.testsfailed else "")


@pytest.fixture(scope="session")
def bootstrap(servers: ReplicaSet) -> str:
    return servers.bootstrap


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Set that collects the files and folders as they are synced."""
    paths: set[str] = set()
    sync = os.fsync

    def fsync(descriptor: int) -> None:
        paths.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths
