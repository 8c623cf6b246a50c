"""`vdl recover` on the directories of real stores, and what their servers make of it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from segments.api import StoreOptions
from segments.directory.identity import read_identity
from segments.io.fs import RealFileSystem
from segments.store import DiskStore
from tests.unit.logstream.conftest import SERVERS, Cluster, Node
from vdl.commands.recover import recover
from vdl.logstream.bootstrap import BirthRecord, decode_record, encode_record
from vdl.logstream.group.replica_ids import replica_id_of

OPTIONS = StoreOptions(
    journal_file_bytes=1 << 20, journal_first_file_bytes=1 << 20, segment_bytes=8 << 10,
    place_bytes_min=32 << 10, meta_map_bytes=1 << 20,
)  # fmt: skip
RECORDS = 30


class DiskNode(Node):
    """A server with a directory on the disk."""

    cluster: DiskCluster

    @property
    def directory(self) -> Path:
        return self.cluster.folder / f"{self.id}-{self.directories}"

    def open_store(self, rng: random.Random) -> Any:
        store = DiskStore.open(
            RealFileSystem(), str(self.directory), self.workers, OPTIONS, rng, server_id=self.id
        )
        if not store.cluster_record():
            store.adopt_cluster(encode_record(self.cluster.record), lambda: None)
        return store

    def crash(self) -> None:
        """Crash, once the disk has done what it was doing: it belongs to this process."""
        store: Any = self.store
        store.abandon()
        self.cluster.run(20)
        super().crash()


class DiskCluster(Cluster):
    """Three hosts with directories on the disk."""

    node_type = DiskNode

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__()


@pytest.fixture
def ended(tmp_path: Path) -> DiskCluster:
    """Return hosts that have written records, and have ended all at once. Two disks are lost."""
    cluster = DiskCluster(tmp_path)
    group_id = cluster.create_topic()
    for n in range(RECORDS):
        cluster.append(cluster.leader(group_id), bytes([n]) * (100 if n % 10 else 40_000))
        cluster.run(5)
        if n == RECORDS // 2:
            for node in cluster.nodes.values():
                assert node.store is not None
                node.store.checkpoint()
    cluster.run(100)
    for node in cluster.nodes.values():
        node.crash()
    for server in (2, 3):
        cluster.nodes[server].store = None
        cluster.nodes[server].directories += 1
    return cluster


def survivor_of(cluster: DiskCluster) -> Path:
    return cluster.folder / "1-0"


def record_in(directory: Path) -> BirthRecord:
    identity = read_identity(RealFileSystem(), str(directory))
    assert identity is not None
    return decode_record(identity.cluster_record)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(recover, list(words))
    return result.exit_code, result.output


def plan_of(directory: Path) -> dict[str, Any]:
    code, out = run(str(directory), "--json")
    assert code == 0, out
    found: dict[str, Any] = json.loads(out)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def accept(directory: Path) -> None:
    name = record_in(directory).cluster_id
    code, out = run(str(directory), "--accept-data-loss", f"--yes={name}")
    assert code == 0, out


def test_plan_and_refusals_change_nothing(ended: DiskCluster) -> None:
    """Not a byte, whatever is shown; the words are required."""
    directory = survivor_of(ended)
    before = contents(directory)
    plan = plan_of(directory)
    rows = {row["name"]: row for row in plan["groups"]}
    assert list(rows) == [
        "catalog", *(f"coordinator-{n}" for n in range(1, 9)), "events-0"
    ]  # fmt: skip
    assert {row["fate"] for row in rows.values()} == {"kept"}
    assert rows["events-0"]["end_offset"] == RECORDS
    assert run(str(directory))[0] == 0
    assert run(str(directory), "--accept-data-loss")[0] == 2
    assert run(str(directory), "--accept-data-loss", "--yes=other")[0] == 1
    assert run(str(directory), "--yes=cluster")[0] == 2
    assert run(str(directory.parent))[0] == 1
    assert contents(directory) == before


def test_directory_of_a_running_server_is_refused(ended: DiskCluster) -> None:
    """Its lock is held."""
    ended.nodes[1].start()
    code, out = run(str(survivor_of(ended)))
    assert code == 1
    assert "stop the server first" in out


def test_damaged_directory_is_refused(ended: DiskCluster) -> None:
    """A start refuses it, too."""
    directory = survivor_of(ended)
    shutil.rmtree(directory / "journal")
    code, out = run(str(directory))
    assert code == 1
    assert "is missing" in out


def test_unreadable_applied_state_is_written_by_a_start(ended: DiskCluster) -> None:
    """The plan writes nothing, and says what to do."""
    directory = survivor_of(ended)
    with (directory / "meta/data.mdb").open("r+b") as file:
        file.write(bytes(1 << 14))
    code, out = run(str(directory))
    assert code == 1
    assert "start the server once" in out
    ended.nodes[1].start()
    ended.run(3_000)
    ended.nodes[1].crash()
    rows = {row["name"]: row for row in plan_of(directory)["groups"]}
    assert {row["fate"] for row in rows.values()} == {"kept"}
    assert rows["events-0"]["end_offset"] == RECORDS


def test_survivor_and_two_empty_servers_become_whole(ended: DiskCluster) -> None:
    """All records that it held, in three copies; a later loss of the survivor costs none."""
    accept(survivor_of(ended))
    assert not plan_of(survivor_of(ended))["is_needed"]
    ended.record = record_in(survivor_of(ended))
    assert ended.record.former_ids == ("cluster",)
    (group_id,) = (9,)
    ended.nodes[1].start()
    ended.run(3_000)
    assert ended.leader(group_id).high_watermark == RECORDS
    for server in (2, 3):
        ended.nodes[server].start()
    ended.run(20_000)
    members = ended.leader(group_id).group.node.membership
    assert members.incoming == {replica_id_of(1, 1), replica_id_of(2, 2), replica_id_of(3, 2)}
    ends = [ended.nodes[server].host.groups[group_id].log.next_offset for server in SERVERS]
    assert ends == [RECORDS] * 3
    ended.nodes[1].crash()
    ended.run(5_000)
    assert ended.leader(group_id).high_watermark == RECORDS


@pytest.mark.parametrize(
    "point",
    [
        "open.done:kill",
        "identity.before_write:kill@2",
        "identity.written:kill@2",
        "identity.durable:kill@2",
        "journal.before_sync:kill@2",
        "journal.torn:kill@2",
        "journal.after_sync:kill@2",
    ],
)
def test_recovery_that_is_killed_is_run_again(ended: DiskCluster, point: str) -> None:
    """Before or after, never between: the second run does whatever is left."""
    directory = survivor_of(ended)
    name = record_in(directory).cluster_id
    killed = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "recover", str(directory), "--accept-data-loss",
         f"--yes={name}"],
        check=False, capture_output=True, text=True,
        env={**os.environ, "VDL_FAILPOINTS": point},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed
    plan = plan_of(directory)
    fates = {row["fate"] for row in plan["groups"]}
    assert len(fates) == 1, "all groups or none"
    assert plan["is_needed"] or record_in(directory).former_ids, "never alone under the old id"
    if plan["is_needed"]:
        accept(directory)
    ended.record = record_in(directory)
    ended.nodes[1].start()
    ended.run(3_000)
    assert ended.leader(9).high_watermark == RECORDS
