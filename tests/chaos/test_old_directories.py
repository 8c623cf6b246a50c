"""Data directories that contradict their peers' notes: old copies, swapped ones, and duplicates.

Old copies are restored as a whole or in part; a duplicate is used by a second process. Each is
reported. Nothing acknowledged is lost while a majority is intact.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.harness.cluster import create_topic, leader, wait_healthy
from tests.chaos.harness.load import IDEMPOTENT, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.replica_set import ROOT, ReplicaSet

pytestmark = pytest.mark.takes_turns(parts=2)

TOPIC = "old"
ACKS = 150
TOLD_SECONDS = 20.0
POLL_SECONDS = 0.02
PAST = "directory_from_the_past"
MADE_GOOD = ("logs", "meta")
"""Parts without information about votes, whose missing contents the journal has.

If files were released meanwhile, the replicas are lost. If a log got its first file after the copy,
the server does not start.
"""
LOCAL = ("data_missing", "replica_lost", "cannot_start", "foreign_file")

Figure = Callable[[str, object], None]


def store_of(replica_set: ReplicaSet, server_id: int) -> Path:
    return replica_set.server(server_id).directory / "store"


def stop(replica_set: ReplicaSet, server_id: int) -> None:
    replica_set.terminate(server_id)
    replica_set.wait_stopped(server_id)


def keep_copy(replica_set: ReplicaSet, server_id: int) -> Path:
    """Return a copy of a stopped server's directory, as a backup makes it."""
    stop(replica_set, server_id)
    copy = replica_set.directory / f"copy-{server_id}"
    shutil.copytree(store_of(replica_set, server_id), copy)
    replica_set.start(server_id)
    replica_set.wait_serving(server_id)
    wait_healthy(replica_set)
    return copy


def put_back(copy: Path, store: Path, part: str) -> None:
    """Restore a part of a stopped server's directory; "": all of it."""
    source, target = copy / part, store / part
    if target.is_dir():
        shutil.rmtree(target)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def wait_told(replica_set: ReplicaSet, server_id: int, *events: str) -> tuple[str, float]:
    """Return (the first of the events that is in the server's log, the seconds it took)."""
    began = time.monotonic()
    while True:
        log = replica_set.log(server_id)
        for event in events:
            if event in log:
                return event, time.monotonic() - began
        assert time.monotonic() - began < TOLD_SECONDS, log[-3_000:]
        time.sleep(POLL_SECONDS)


def served_or_ended(replica_set: ReplicaSet, server_id: int, served: int) -> str:
    """Wait until the server serves again, and return ""; or return why it does not start."""
    began = time.monotonic()
    while (log := replica_set.log(server_id)).count("event=serving") == served:
        if "data_missing" in log:
            return "data_missing"
        assert time.monotonic() - began < TOLD_SECONDS, log[-3_000:]
        time.sleep(POLL_SECONDS)
    return ""


def written(replica_set: ReplicaSet) -> Load:
    create_topic(replica_set, TOPIC)
    load = Load(replica_set.bootstrap, TOPIC, IDEMPOTENT)
    load.start()
    load.wait_acknowledged(ACKS)
    return load


@pytest.mark.takes_turns(parts=3)
@pytest.mark.parametrize("part", ["", "journal", "identity", "logs", "meta", "journal and meta"])
def test_part_of_a_directory_from_an_old_copy_is_found_out(
    replica_set: ReplicaSet, part: str, figure: Figure
) -> None:
    """An old part of a directory is detected, or repaired from the journal.

    The server's peers detect it, or the server itself where the parts contradict each other.
    Acknowledged records are there, and the server is a member again in the end.
    """
    load = written(replica_set)
    victim = next(s for s in replica_set.server_ids if s != leader(replica_set, TOPIC))
    copy = keep_copy(replica_set, victim)
    load.wait_acknowledged(ACKS)
    time.sleep(1)
    replica_set.kill(victim)
    for one in part.split(" and "):
        put_back(copy, store_of(replica_set, victim), one)
    served = replica_set.log(victim).count("event=serving")
    replica_set.start(victim)
    event = ""
    if part in MADE_GOOD:
        event = served_or_ended(replica_set, victim, served)
    else:
        event, seconds = wait_told(replica_set, victim, PAST, *LOCAL)
        figure(f"old {part or 'directory'}", f"{event} after {seconds:.1f} s")
    if event in {"data_missing", "cannot_start", "foreign_file"}:
        replica_set.wait_stopped(victim)
        replica_set.wipe(victim)
        replica_set.start(victim)
    wait_healthy(replica_set)
    load.stop()
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def test_old_copy_is_found_out_when_all_servers_were_restarted(replica_set: ReplicaSet) -> None:
    """The others' records of it are on their disks, too."""
    load = written(replica_set)
    victim = next(s for s in replica_set.server_ids if s != leader(replica_set, TOPIC))
    copy = keep_copy(replica_set, victim)
    load.wait_acknowledged(ACKS)
    time.sleep(6)
    load.stop()
    replica_set.kill(*replica_set.server_ids)
    put_back(copy, store_of(replica_set, victim), "")
    for server_id in replica_set.server_ids:
        replica_set.start(server_id)
    wait_told(replica_set, victim, PAST)
    wait_healthy(replica_set)
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def test_two_of_three_old_copies_do_not_overrule_the_third(replica_set: ReplicaSet) -> None:
    """Both are reported, and the partition has no leader.

    No client is answered from a log that lacks acknowledged records.
    """
    load = written(replica_set)
    leads = leader(replica_set, TOPIC)
    victims = [s for s in replica_set.server_ids if s != leads]
    copies = {victim: keep_copy(replica_set, victim) for victim in victims}
    load.wait_acknowledged(ACKS)
    load.stop()
    time.sleep(1)
    replica_set.kill(*victims)
    for victim in victims:
        put_back(copies[victim], store_of(replica_set, victim), "")
        replica_set.start(victim)
    for victim in victims:
        wait_told(replica_set, victim, PAST)
    for victim in victims:
        assert not serves(replica_set, victim)


def serves(replica_set: ReplicaSet, server_id: int) -> bool:
    """Return True if this server's own metadata names it as the leader of the topic's partition."""
    admin = AdminClient({"bootstrap.servers": replica_set.address(server_id), **QUIET})
    try:
        found = admin.list_topics(timeout=1.0).topics.get(TOPIC)
    except KafkaException:
        return False
    return found is not None and found.partitions[0].leader == server_id


def test_swapped_directories_are_refused(replica_set: ReplicaSet) -> None:
    """Swapped directories are refused before a port is opened; swapped back, both servers serve."""
    load = written(replica_set)
    load.stop()
    for server_id in (2, 3):
        stop(replica_set, server_id)
    swap(store_of(replica_set, 2), store_of(replica_set, 3))
    for server_id in (2, 3):
        replica_set.start(server_id)
    for server_id in (2, 3):
        replica_set.wait_stopped(server_id)
        log = replica_set.log(server_id)
        assert "foreign_directory" in log
        assert f"data directory of server {5 - server_id}" in log
    swap(store_of(replica_set, 2), store_of(replica_set, 3))
    for server_id in (2, 3):
        replica_set.start(server_id)
    wait_healthy(replica_set)
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def test_second_process_in_a_copy_ends_and_says_why(replica_set: ReplicaSet) -> None:
    """The first one continues, and no acknowledgement depends on the second."""
    load = written(replica_set)
    victim = next(s for s in replica_set.server_ids if s != leader(replica_set, TOPIC))
    copy = keep_copy(replica_set, victim)
    config = replica_set.server(victim).config_file.read_text(encoding="utf-8")
    second = replica_set.directory / "second"
    second.mkdir()
    copy.rename(second / "store")
    listen = replica_set.base_port + 45
    (second / "vdl.toml").write_text(
        moved(config) + f'\n[peer]\nlisten = "127.0.0.1:{listen}"\n', encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "serve", "--config", str(second / "vdl.toml")],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-3_000:]
    assert "second_process" in done.stderr + done.stdout
    load.wait_acknowledged(ACKS)
    wait_healthy(replica_set)
    load.stop()
    assert_kept(load, read_back(replica_set.bootstrap, TOPIC))


def moved(config: str) -> str:
    """Return the configuration of a second process: its own ports, the same peers.

    Its data is beside it, as the first one's is.
    """
    lines = config.splitlines()
    for n, line in enumerate(lines):
        if line.startswith("listen = "):
            host, _, port = line.rpartition(":")
            lines[n] = f'{host}:{int(port.rstrip(chr(34))) + 5}"'
    return "\n".join(lines) + "\n"
