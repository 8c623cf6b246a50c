"""Idle producers are forgotten on all replicas alike, without wall clocks (KIP-98)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from segments.memory import MemoryStore
from tests.unit.logstream.conftest import Cluster
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group import producer_expiry
from vdl.logstream.group.producer_expiry import (
    KEPT_MIN,
    KEPT_TOGETHER,
    PARTS,
    PRODUCERS_KEPT,
    ProducerExpiry,
    ProducerMarks,
    kept_of_each,
)
from vdl.logstream.options import HostOptions

DAY_MS = 86_400_000
EXPIRATION_MS = 10_000
CHECK_MS = 1_000
LATE_MS = EXPIRATION_MS // PARTS + 2 * CHECK_MS + 1_000
"""Maximum extra time for which a producer may be kept: the distance of marks, and two checks."""


@pytest.fixture
def forgetting() -> Cluster:
    """Return hosts that forget producers after ten seconds, with a clock hold of one."""
    return Cluster(
        producer_expiration_ms=EXPIRATION_MS,
        producer_expiration_check_ms=CHECK_MS,
        clock_hold_ms=1_000,
    )


def send(cluster: Any, group_id: int, pid: int, sequence: int) -> ErrorCode:
    """Return the leader's answer to a batch of one record."""
    fates = cluster.append(
        cluster.leader(group_id), producer_id=pid, producer_epoch=0, base_sequence=sequence
    )
    cluster.run(200)
    (fate,) = fates
    return ErrorCode(fate.error)


def states(cluster: Any, group_id: int) -> list[Any]:
    streams = (n.host.stream(group_id) for n in cluster.nodes.values() if not n.clock.stopped)
    return [stream.items() for stream in streams]


def known(cluster: Any, group_id: int, pid: int) -> set[bool]:
    """Return the set of answers of all replicas: True where the producer is known."""
    streams = (n.host.stream(group_id) for n in cluster.nodes.values() if not n.clock.stopped)
    return {stream.state.producers.get(pid) is not None for stream in streams}


def test_idle_producer_is_forgotten_everywhere_and_the_live_one_is_not(forgetting: Any) -> None:
    """It is not forgotten before its time is over. All replicas stay equal."""
    cluster = forgetting
    group_id = cluster.create_topic()
    assert send(cluster, group_id, 7, 0) is ErrorCode.NONE
    sent = 0
    for _ in range(EXPIRATION_MS // 500 - 1):
        assert send(cluster, group_id, 8, sent) is ErrorCode.NONE
        sent += 1
        cluster.run(300)
    assert known(cluster, group_id, 7) == {True}
    for _ in range(LATE_MS // 500 + 1):
        assert send(cluster, group_id, 8, sent) is ErrorCode.NONE
        sent += 1
        cluster.run(300)
    assert known(cluster, group_id, 7) == {False}
    assert known(cluster, group_id, 8) == {True}
    first, *others = states(cluster, group_id)
    assert others == [first, first]
    assert send(cluster, group_id, 7, 1) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "once"
    assert send(cluster, group_id, 7, 1) is ErrorCode.NONE
    assert send(cluster, group_id, 8, sent) is ErrorCode.NONE


def test_producers_that_are_too_many_are_forgotten_once_nobody_sends_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The excess ones are forgotten, those that were idle longest.

    Not before a client has given up an unanswered batch, so that nothing is written twice.
    """
    monkeypatch.setattr(producer_expiry, "PRODUCERS_KEPT", 2)
    monkeypatch.setattr(producer_expiry, "KEPT_MIN", 1)
    monkeypatch.setattr(producer_expiry, "RETRIED_NS", EXPIRATION_MS * MS)
    cluster: Any = Cluster(producer_expiration_check_ms=CHECK_MS)
    group_id = cluster.create_topic()
    for pid in range(5):
        assert send(cluster, group_id, pid, 0) is ErrorCode.NONE
    cluster.run(EXPIRATION_MS - 3_000)
    high_watermark = cluster.leader(group_id).high_watermark
    assert send(cluster, group_id, 0, 0) is ErrorCode.NONE
    assert cluster.leader(group_id).high_watermark == high_watermark, "it was there already"
    cluster.run(3_000 + LATE_MS)
    assert [known(cluster, group_id, pid) for pid in range(5)] == [{False}] * 3 + [{True}] * 2
    cluster.run(2 * EXPIRATION_MS)
    assert known(cluster, group_id, 3) == {True}
    first, *others = states(cluster, group_id)
    assert others == [first, first]


@pytest.mark.parametrize("partitions", [0, 1, 200, 300, 656, 5_000, 16_384, 100_000])
def test_producers_of_all_partitions_are_bounded_together(partitions: int) -> None:
    """Each partition has the limit of a single one, until the product is too large."""
    kept = kept_of_each(partitions)
    assert KEPT_MIN <= kept <= PRODUCERS_KEPT
    assert kept * partitions <= KEPT_TOGETHER or kept == KEPT_MIN
    assert kept == PRODUCERS_KEPT or partitions > KEPT_TOGETHER // PRODUCERS_KEPT


def test_one_command_forgets_all_and_none_follows(forgetting: Any) -> None:
    """Neither one idle producer nor a lack of producers makes a log grow."""
    cluster = forgetting
    group_id = cluster.create_topic()
    for pid in range(5):
        send(cluster, group_id, pid, 0)
    last = cluster.leader(group_id).group.node.last_index
    cluster.run(3 * EXPIRATION_MS)
    assert known(cluster, group_id, 4) == {False}
    assert cluster.leader(group_id).group.node.last_index - last <= 2
    assert states(cluster, group_id) == [[]] * 3


@pytest.mark.parametrize("days", [8, 40_000, -8])
@pytest.mark.parametrize("clocks", [1, 3])
def test_wall_clocks_expire_nothing(forgetting: Any, days: int, clocks: int) -> None:
    """The leader's clock does not, nor do all of them together for longer than a hold."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    cluster.run(2_000)
    leader = cluster.leader(group_id).leader_server
    for server in [leader, *(other for other in (1, 2, 3) if other != leader)][:clocks]:
        cluster.nodes[server].clock.jump_wall(days * DAY_MS)
    cluster.run(EXPIRATION_MS - 3_000)
    assert known(cluster, group_id, 7) == {True}
    assert send(cluster, group_id, 7, 1) is ErrorCode.NONE


def test_server_started_days_ahead_expires_nothing(forgetting: Any) -> None:
    """It does not when it leads, either."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    node = cluster.nodes[cluster.leader(group_id).leader_server]
    node.crash()
    node.wall_base_ms += 8 * DAY_MS
    node.start()
    cluster.run(5_000)
    assert cluster.leader(group_id).leader_server == node.id
    assert known(cluster, group_id, 7) == {True}
    assert send(cluster, group_id, 7, 1) is ErrorCode.NONE


def test_next_leader_knows_how_long_producers_were_idle(forgetting: Any) -> None:
    """Otherwise a partition whose leader changes more often would never forget."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    cluster.run(EXPIRATION_MS - 3_000)
    old = cluster.leader(group_id).leader_server
    cluster.nodes[old].crash()
    cluster.run(1_000)
    cluster.nodes[old].start()
    cluster.run(3_000 - 1_000 + LATE_MS)
    assert known(cluster, group_id, 7) == {False}


def test_servers_that_restart_reckon_anew(forgetting: Any) -> None:
    """The windows return with the log; the idle times are lost, so producers are kept longer."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    for _ in range(2):
        cluster.run(EXPIRATION_MS - 3_000)
        for node in cluster.nodes.values():
            node.crash()
            node.start()
    cluster.run(5_000)
    assert known(cluster, group_id, 7) == {True}
    cluster.run(EXPIRATION_MS - 5_000 + LATE_MS)
    assert known(cluster, group_id, 7) == {False}


@pytest.mark.parametrize("checkpoints", [False, True])
def test_restart_finds_what_was_forgotten_forgotten(forgetting: Any, checkpoints: bool) -> None:
    """With a replay of the batches and the command, or a load of the checkpoint."""
    cluster = forgetting
    group_id = cluster.create_topic()
    for pid in (7, 8):
        send(cluster, group_id, pid, 0)
    if checkpoints:
        for node in cluster.nodes.values():
            node.store.checkpoint()
    for sequence in range(1, (EXPIRATION_MS + LATE_MS) // 200):
        send(cluster, group_id, 8, sequence)
    before = states(cluster, group_id)
    assert known(cluster, group_id, 7) == {False}
    if checkpoints:
        for node in cluster.nodes.values():
            node.store.checkpoint()
        cluster.run(100)
    for node in cluster.nodes.values():
        node.crash()
        node.start()
    cluster.run(3_000)
    assert states(cluster, group_id) == before
    assert known(cluster, group_id, 7) == {False}


@pytest.mark.parametrize("missing", ["old", "away"])
def test_nothing_expires_while_a_member_may_not_know_the_command(
    forgetting: Any, missing: str
) -> None:
    """A replica stops at a command that its version does not know."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    other = cluster.leader(group_id).leader_server % 3 + 1
    alive = cluster.nodes[cluster.leader(group_id).leader_server].host._alive
    present = alive[other]
    if missing == "old":
        alive[other] = replace(present, version=3)
    else:
        cluster.nodes[other].crash()
    cluster.run(EXPIRATION_MS + LATE_MS)
    assert known(cluster, group_id, 7) == {True}
    if missing == "old":
        alive[other] = present
    else:
        cluster.nodes[other].start()
    cluster.run(LATE_MS)
    assert not cluster.leader(group_id).state.producers.get(7)


def test_long_polls_are_not_woken(forgetting: Any) -> None:
    """No change is visible to consumers."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    stream = cluster.leader(group_id)
    woken: list[int] = []
    stream.wait_for(stream.high_watermark, lambda: woken.append(1))
    cluster.run(EXPIRATION_MS + LATE_MS)
    assert known(cluster, group_id, 7) == {False}
    assert woken == []
    stream.delete_records(-1, deadline_ns=cluster.deadline(), done=lambda error: None)
    cluster.run(200)
    assert woken == [1], "the log begins elsewhere"


def test_full_disk_takes_no_such_command(forgetting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has space for more important ones."""
    cluster = forgetting
    group_id = cluster.create_topic()
    send(cluster, group_id, 7, 0)
    stream = cluster.leader(group_id)
    cluster.run(EXPIRATION_MS - 2_000)
    for node in cluster.nodes.values():
        node.host.periodic._producer_expiry._streams = {}
    monkeypatch.setattr(MemoryStore, "accepts_appends", False)
    now_ns = cluster.time.now_ns + 10 * EXPIRATION_MS * 1_000_000
    last = stream.group.node.last_index
    stream.expire_producers(now_ns, kept=2, may_append=True)
    assert stream.group.node.last_index == last
    monkeypatch.undo()
    stream.expire_producers(now_ns, kept=2, may_append=True)
    stream.expire_producers(now_ns, kept=2, may_append=True)
    assert stream.group.node.last_index == last + 1, "one is under way"


def test_thousands_of_partitions_are_not_looked_at_together() -> None:
    """Each is checked once per check interval."""
    looked: list[int] = []

    def stream(group_id: int) -> Any:
        def expire_producers(now_ns: int, *, kept: int, may_append: bool) -> None:
            looked.append(group_id)

        return SimpleNamespace(group=SimpleNamespace(members=[]), expire_producers=expire_producers)

    options = HostOptions(producer_expiration_check_ms=60_000)
    streams = {i: stream(i) for i in range(10, 1_210)}
    expiry = ProducerExpiry(streams, alive={}, server_id=1, options=options)
    for second in range(60):
        expiry.look(second)
        assert len(looked) == 20 * (second + 1)
    assert sorted(looked) == sorted(streams)


def test_marks_are_bounded_and_never_early() -> None:
    """This holds for any writes between two checks."""
    marks = ProducerMarks(2_400)
    for now in range(0, 50_000, 7):
        marks.note(now + 1, now)
        idle = marks.idle_index(now)
        assert idle <= max(0, now - 2_400 + 1)
        assert now < 2_600 or idle >= now - 2_400 - 100 - 14
        assert len(marks._marks) <= PARTS + 2


def test_marks_of_nothing_new_are_not_made() -> None:
    """A partition without new writes has one mark, of when its newest batch was first seen."""
    marks = ProducerMarks(2_400)
    for now in range(0, 2_400, 100):
        marks.note(5, now)
        assert marks.idle_index(now) == 0
    assert marks.idle_index(2_400) == 5
    marks.note(None, 2_500)
    assert marks.idle_index(9_000) == 0
