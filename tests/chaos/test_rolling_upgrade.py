"""Servers of two builds work together: one after the other is upgraded, and back, under load.

`FROM` is the oldest build whose servers and directories have to work with this one. It moves on
when a format changes, which the changelog says then.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic
from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.chaos.harness.transactions import Transactor, problems, read_committed
from tests.chaos.test_rolling_encryption import wait_in_sync

pytestmark = pytest.mark.takes_turns(parts=2)

FROM = "917f93c77d4c"
SETTLED_ACKS = 50
PARTITIONS = 1
KILLED = 2
"""Server whose process is killed for each upgrade; the others stop as planned."""


@pytest.fixture
def former_build(tmp_path: Path) -> Path:
    """Return a folder with the sources of `FROM`."""
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{FROM}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"needs the history of this repository: {FROM}")
    packed, tree = tmp_path / "former.tar", tmp_path / "former"
    words = ["git", "archive", "-o", str(packed), FROM]
    subprocess.run([*words, "ids", "raft", "rpc", "segments", "vdl"], cwd=ROOT, check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(tree, filter="data")
    return tree


def test_servers_are_upgraded_and_downgraded_one_by_one(
    former_build: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """No send fails, no record is lost, doubled or moved, no transaction is torn."""

    def use(tree: Path) -> None:
        """Let processes that start from now on run this build."""
        monkeypatch.setenv("PYTHONPATH", str(tree))
        monkeypatch.setenv("PYTHONSAFEPATH", "1")

    def upgrade(server_id: int, tree: Path) -> None:
        use(tree)
        if server_id == KILLED:
            replica_set.kill(server_id)
        else:
            replica_set.terminate(server_id)
            replica_set.wait_stopped(server_id, seconds_max=60)
        replica_set.start(server_id)
        replica_set.wait_serving(server_id, seconds_max=60)
        assert environment(replica_set.pid(server_id))["PYTHONPATH"] == str(tree)

    use(former_build)
    replica_set = ReplicaSet(3)
    load = Load(replica_set.bootstrap, "plain", IDEMPOTENT)
    transactor = Transactor(
        replica_set.bootstrap, "transactions", PARTITIONS, 1, pause_seconds=0.02
    )
    failed = "rolling_upgrade"
    try:
        replica_set.up()
        create_topic(replica_set, "plain")
        create_topic(replica_set, "transactions")
        load.start()
        transactor.start()
        try:
            for tree in (ROOT, former_build, ROOT):
                for server_id in replica_set.server_ids:
                    load.wait_acknowledged(SETTLED_ACKS)
                    upgrade(server_id, tree)
                    wait_in_sync(replica_set, "plain")
        finally:
            transactor.stop()
            load.stop()
            transactor.join()
        figure("acknowledged", len(load.acks))
        figure("transactions", len(transactor.commits))
        assert load.failures == {}
        assert_kept(load, read_back(replica_set.bootstrap, "plain"))
        found = read_committed(replica_set.bootstrap, "transactions", PARTITIONS)
        assert problems(transactor.fates, found, PARTITIONS) == []
        assert transactor.fatal == []
        failed = ""
    finally:
        replica_set.close(failed=failed)


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started."""
    rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(row).split("=", 1) for row in rows if row)
