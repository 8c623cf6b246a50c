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
from tests.chaos.harness.members import members, until, vdl
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.chaos.harness.transactions import Transactor, problems, read_committed
from tests.chaos.test_rolling_encryption import wait_in_sync

pytestmark = pytest.mark.takes_turns(parts=2)

FROM = "917f93c77d4c"
SETTLED_ACKS = 50
PARTITIONS = 1
TOO_OLD = "runs a version in which these servers cannot be removed"
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

    def upgrade(server_id: int, tree: Path) -> None:
        use(monkeypatch, tree)
        if server_id == KILLED:
            replica_set.kill(server_id)
        else:
            replica_set.terminate(server_id)
            replica_set.wait_stopped(server_id, seconds_max=60)
        replica_set.start(server_id)
        replica_set.wait_serving(server_id, seconds_max=60)
        assert environment(replica_set.pid(server_id))["PYTHONPATH"] == str(tree)

    use(monkeypatch, former_build)
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


def test_first_servers_are_removed_once_all_servers_run_this_build(
    former_build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each removal is refused with a server that cannot take part, and nothing is stuck.

    Afterwards a server of the former build does not serve, and the others go on. The test ends with
    `FROM`: a later build knows the command.
    """

    def run(server_id: int, tree: Path) -> None:
        use(monkeypatch, tree)
        if server_id in replica_set.running():
            replica_set.terminate(server_id)
            replica_set.wait_stopped(server_id, seconds_max=60)
        replica_set.start(server_id)

    def refusal() -> str:
        code, _, error = vdl(replica_set.bootstrap, "member", "remove", "3", "--no-wait")
        return error if code else ""

    replica_set = ReplicaSet(4)
    replica_set.configure({}, voters=3)
    failed = "removal_in_an_upgrade"
    try:
        for server_id in (1, 2, 3):
            run(server_id, former_build)
        until(lambda: len(members(replica_set.bootstrap)) == 3, "the cluster does not form")
        assert "these cannot be moved" in refusal()
        run(4, former_build)
        words = "member", "add", "4", "--peer", replica_set.peer_address(4)
        until(lambda: not vdl(replica_set.bootstrap, *words)[0], "server 4 is not added")
        for server_id in (1, 2, 4):
            run(server_id, ROOT)
            until(lambda: are_there(replica_set), "they are not connected again")
            # Server 1 is the first that is asked, once it answers.
            until(lambda: TOO_OLD in refusal(), "it is not refused for the version of a server")
        run(3, ROOT)
        until(lambda: not refusal(), "the removal does not begin")
        until(lambda: members(replica_set.bootstrap).keys() == {1, 2, 4}, "it is not removed")
        run(2, former_build)
        until(lambda: 2 not in replica_set.running(), "the former build goes on")
        words = "topic", "create", "t", "--if-not-exists", "--replication-factor", "3"
        until(lambda: not vdl(replica_set.bootstrap, *words)[0], "the others do not go on")
        run(2, ROOT)
        until(lambda: are_there(replica_set), "it does not come back")
        failed = ""
    finally:
        replica_set.close(failed=failed)


def are_there(replica_set: ReplicaSet) -> bool:
    """Return True if all servers of the cluster are connected, and one answers."""
    found = members(replica_set.bootstrap).values()
    return bool(found) and all(one["is_connected"] for one in found)


def use(monkeypatch: pytest.MonkeyPatch, tree: Path) -> None:
    """Let processes that start from now on run this build."""
    monkeypatch.setenv("PYTHONPATH", str(tree))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


def environment(pid: int) -> dict[str, str]:
    """Return the environment with which a process was started."""
    rows = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(row).split("=", 1) for row in rows if row)
