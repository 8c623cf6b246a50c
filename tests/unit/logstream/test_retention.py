"""Records are deleted by decision of the leader, on every replica, permanently."""

from types import SimpleNamespace
from typing import Any

import pytest

from rpc.peer import FrameType
from segments.api import CorruptRecord, OffsetOutOfRange, ReadRefused, SegmentLimits, SegmentSpan
from segments.memory import MemoryStore
from vdl.errors import ErrorCode
from vdl.logstream.group import offset_for_time as times
from vdl.logstream.group.offset_for_time import NO_RECORD, TimedOffset
from vdl.logstream.group.retention import (
    KEEP,
    RetentionPolicy,
    UntimedSegments,
    held_starts,
    retention_start,
)
from vdl.records.batch import Record, build_batch, first_at_or_after, read_header

SPANS = [SegmentSpan(10, 100, 1_000), SegmentSpan(20, 100, 2_000), SegmentSpan(25, 50, 3_000)]


@pytest.mark.parametrize(
    ("policy", "now_ms", "start"),
    [
        (RetentionPolicy(), 10**9, 0),
        (RetentionPolicy(retention_ms=500), 1_500, 0),
        (RetentionPolicy(retention_ms=500), 1_501, 10),
        (RetentionPolicy(retention_ms=500), 2_501, 20),
        (RetentionPolicy(retention_ms=500), 9_999, 25),
        (RetentionPolicy(retention_bytes=250), 0, 0),
        (RetentionPolicy(retention_bytes=150), 0, 10),
        (RetentionPolicy(retention_bytes=149), 0, 10),
        (RetentionPolicy(retention_bytes=50), 0, 20),
        (RetentionPolicy(retention_bytes=0), 0, 20),
        (RetentionPolicy(retention_ms=500, retention_bytes=50), 1_501, 20),
    ],
)
def test_whole_segments_go_oldest_first(policy: RetentionPolicy, now_ms: int, start: int) -> None:
    """By time older segments, including the newest; by size those beyond it, never the newest."""
    assert retention_start(SPANS, policy, now_ms, UntimedSegments()) == start


def test_segment_behind_a_younger_one_stays() -> None:
    """Timestamps are the clients' and need not rise, but a log is cut only at its start."""
    spans = [SegmentSpan(10, 100, 5_000), SegmentSpan(20, 100, 1_000)]
    policy = RetentionPolicy(retention_ms=500)
    assert retention_start(spans, policy, 5_200, UntimedSegments()) == 0


def test_segment_without_times_goes_with_the_next_that_has_one() -> None:
    """It is older, even if this leader has known it only briefly."""
    untimed, policy = UntimedSegments(), RetentionPolicy(retention_ms=500)
    spans = [
        SegmentSpan(10, 100, -1), SegmentSpan(10, 100, -1), SegmentSpan(20, 100, 2_000),
        SegmentSpan(30, 100, -1), SegmentSpan(40, 100, 4_000), SegmentSpan(40, 0, -1),
    ]  # fmt: skip
    untimed.look(spans, 2_500)
    starts = [retention_start(spans, policy, ms, untimed) for ms in (2_500, 2_501, 4_500, 4_501)]
    assert starts == [0, 20, 30, 40]


def test_last_segments_without_times_go_when_a_leader_has_known_them_so_long() -> None:
    """The time counts from its own last record; a segment whose end moves is new again."""
    untimed, policy = UntimedSegments(), RetentionPolicy(retention_ms=500)
    early = [SegmentSpan(10, 100, -1), SegmentSpan(15, 50, -1)]
    late = [SegmentSpan(10, 100, -1), SegmentSpan(18, 80, -1)]
    untimed.look(early, 1_000)
    assert retention_start(early, policy, 1_500, untimed) == 0
    untimed.look(late, 1_300)
    assert retention_start(late, policy, 1_501, untimed) == 10
    assert retention_start(late, policy, 1_800, untimed) == 10
    assert retention_start(late, policy, 1_801, untimed) == 18
    assert retention_start(late, policy, 1_801, UntimedSegments()) == 0, "a new leader"
    assert retention_start(late, RetentionPolicy(retention_bytes=80), 0, untimed) == 10


@pytest.mark.parametrize(
    ("policy", "now_ms", "needed", "starts"),
    [
        (RetentionPolicy(retention_ms=500), 2_501, 20, (20, 20)),
        (RetentionPolicy(retention_ms=500), 2_501, 19, (10, 10)),
        (RetentionPolicy(retention_ms=500), 2_501, 9, (0, 10)),
        (RetentionPolicy(retention_ms=500), 2_001, 9, (0, 10)),
        (RetentionPolicy(retention_ms=500), 2_000, 9, (0, 0)),
        (RetentionPolicy(retention_ms=500), 3_000, 9, (0, 10)),
        (RetentionPolicy(retention_ms=500), 3_001, 9, (20, 20)),
        (RetentionPolicy(retention_bytes=149), 0, 9, (0, 0)),
        (RetentionPolicy(retention_bytes=75), 0, 12, (10, 10)),
        (RetentionPolicy(retention_bytes=50), 0, 9, (0, 10)),
        (RetentionPolicy(retention_bytes=12), 0, 12, (20, 20)),
        (RetentionPolicy(retention_bytes=0), 0, 0, (20, 20)),
        (RetentionPolicy(), 10**9, 0, (0, 0)),
    ],
)
def test_what_a_follower_needs_goes_only_when_twice_as_much_is_kept(
    policy: RetentionPolicy, now_ms: int, needed: int, starts: tuple[int, int]
) -> None:
    """Whole segments, as always; up to four times as much for a follower that makes progress."""
    assert held_starts(SPANS, policy, now_ms, UntimedSegments(), needed=needed) == starts


def written(cluster: Any, records: int) -> int:
    group_id = cluster.create_topic()
    for _ in range(records):
        cluster.append(cluster.leader(group_id))
        cluster.run(10)
    return int(group_id)


def delete(cluster: Any, group_id: int, offset: int) -> list[ErrorCode]:
    answers: list[ErrorCode] = []
    cluster.leader(group_id).delete_records(
        offset, deadline_ns=cluster.deadline(), done=answers.append
    )
    cluster.run(100)
    return answers


def starts(cluster: Any, group_id: int) -> set[int]:
    streams = (n.host.stream(group_id) for n in cluster.nodes.values() if not n.clock.stopped)
    return {stream.log_start_offset for stream in streams}


def test_deleted_records_are_gone_on_every_replica(cluster: Any) -> None:
    """They cannot be read either, though they are still on disk (KIP-107)."""
    group_id = written(cluster, 10)
    assert delete(cluster, group_id, 4) == [ErrorCode.NONE]
    cluster.run(700)
    assert starts(cluster, group_id) == {4}
    stream = cluster.leader(group_id)
    with pytest.raises(OffsetOutOfRange):
        stream.read(3, 1 << 20)
    assert stream.read(4, 1 << 20).end_offset == 10
    assert delete(cluster, group_id, 4) == [ErrorCode.NONE]
    assert delete(cluster, group_id, 2) == [ErrorCode.NONE]
    assert delete(cluster, group_id, 11) == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert delete(cluster, group_id, -1) == [ErrorCode.NONE]
    assert stream.log_start_offset == stream.high_watermark == 10


def test_round_goes_on_when_thousands_of_partitions_are_led_elsewhere(cluster: Any) -> None:
    """Their topic was deleted, or the server was cut off, during the round."""
    group_id = written(cluster, 10)
    trimming = cluster.nodes[cluster.leader(group_id).leader_server].host.trimming
    gone = SimpleNamespace(serving=False)
    policy = RetentionPolicy(retention_bytes=1)
    asked: list[object] = []
    trimming._state.store = SimpleNamespace(segment_spans=lambda log, done: asked.append(log))
    led = [(cluster.leader(group_id), policy), *[(gone, policy)] * 5_000]
    trimming._retain_next(led, 0, 0)
    assert asked == [cluster.leader(group_id).group.log]


def test_log_start_does_not_move_back_after_failover_and_restart(cluster: Any) -> None:
    """It is in the log, so the next leader has it."""
    group_id = written(cluster, 10)
    delete(cluster, group_id, 6)
    old = cluster.leader(group_id).leader_server
    cluster.nodes[old].crash()
    cluster.run(2_000)
    assert cluster.leader(group_id).log_start_offset == 6
    for node in cluster.nodes.values():
        if not node.clock.stopped:
            node.crash()
        node.start()
    cluster.run(2_000)
    assert starts(cluster, group_id) == {6}


def test_deleted_records_are_cut_from_the_log_once_a_checkpoint_covers_them(cluster: Any) -> None:
    """Not before: a restart replays from the checkpoint, and the entries hold producer windows."""
    group_id = written(cluster, 10)
    delete(cluster, group_id, 6)
    cluster.run(2_000)
    log = cluster.leader(group_id).group.log
    assert log.first_index == 1
    for node in cluster.nodes.values():
        node.store.checkpoint()
    cluster.run(2_000)
    assert log.log_start_offset == 6
    assert log.first_index == 8
    for node in cluster.nodes.values():
        node.crash()
        node.start()
    cluster.run(2_000)
    assert cluster.leader(group_id).read(6, 1 << 20).end_offset == 10


DAY_MS = 86_400_000
WEEK = RetentionPolicy(retention_ms=7 * DAY_MS)


def aged(cluster: Any, days: int) -> int:
    """Create a partition with records of this age, which keeps records for a week."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    stamp = cluster.nodes[1].clock.wall_ms() - days * DAY_MS
    for _ in range(3):
        cluster.append(stream, timestamp=stamp)
        cluster.run(10)
    for node in cluster.nodes.values():
        node.front.retention = WEEK
    return int(group_id)


@pytest.mark.parametrize("days", [8, 40_000])
def test_leader_whose_clock_is_ahead_deletes_nothing(expiring: Any, days: int) -> None:
    """Records of an hour ago are not older because one clock of three is ahead."""
    cluster = expiring
    group_id = aged(cluster, 0)
    cluster.run(4_000)
    cluster.nodes[cluster.leader(group_id).leader_server].clock.jump_wall(days * DAY_MS)
    cluster.run(10_000)
    assert starts(cluster, group_id) == {0}


def test_server_started_ahead_deletes_nothing(expiring: Any) -> None:
    """It deletes nothing when it leads either, for any time."""
    cluster = expiring
    group_id = aged(cluster, 0)
    node = cluster.nodes[cluster.leader(group_id).leader_server]
    node.crash()
    node.wall_base_ms += 8 * DAY_MS
    node.start()
    node.front.retention = WEEK
    cluster.run(15_000)
    assert cluster.leader(group_id).leader_server == node.id
    assert starts(cluster, group_id) == {0}


def test_leader_whose_clock_is_in_1970_deletes_what_is_old(expiring: Any) -> None:
    """Otherwise its disk would fill."""
    cluster = expiring
    group_id = aged(cluster, 30)
    clock = cluster.nodes[cluster.leader(group_id).leader_server].clock
    clock.jump_wall(-clock.wall_ms())
    cluster.run(5_000)
    assert starts(cluster, group_id) == {3}


def test_clocks_that_were_all_wrong_delete_within_a_hold_of_their_correction(expiring: Any) -> None:
    """Without a restart, and not before: clocks that are corrected soon have deleted nothing."""
    cluster = expiring
    group_id = aged(cluster, 0)
    for days in (8, -8, -20_000, 20_000, 8):
        for node in cluster.nodes.values():
            node.clock.jump_wall(days * DAY_MS)
        cluster.run(2_900)
        assert starts(cluster, group_id) == {0}
    cluster.run(1_500)
    assert starts(cluster, group_id) == {3}


class BesideDeaf:
    """A partition that keeps records for a week, with some older ones on two replicas.

    The third one's server is linked but takes nothing.
    """

    def __init__(self, cluster: Any, days: int) -> None:
        self.cluster = cluster
        self.group_id = cluster.create_topic()
        cluster.run(500)
        stream = cluster.leader(self.group_id)
        self.deaf = cluster.nodes[stream.leader_server % 3 + 1]
        frame = self.deaf.host.frame
        self.deaf.host.frame = lambda server, kind, payload: (
            None if kind is FrameType.RAFT else frame(server, kind, payload)
        )
        for _ in range(3):
            cluster.append(stream, timestamp=cluster.nodes[1].clock.wall_ms() - days * DAY_MS)
            cluster.run(10)
        for node in cluster.nodes.values():
            node.front.retention = WEEK

    @property
    def start(self) -> int:
        start: int = self.cluster.leader(self.group_id).log_start_offset
        return start


def test_retention_waits_for_a_follower_that_is_being_fed(expiring: Any) -> None:
    """It would otherwise begin at the log's start repeatedly. Entries it has are not needed."""
    world = BesideDeaf(expiring, 8)
    expiring.run(8_000)
    assert world.start == 0
    del world.deaf.host.frame
    expiring.run(4_000)
    assert starts(expiring, world.group_id) == {3}


def test_retention_waits_for_no_follower_that_is_stuck(expiring: Any) -> None:
    """Twice as much is kept for it, and no more: the others' disks would fill."""
    world = BesideDeaf(expiring, 15)
    expiring.run(8_000)
    assert world.start == 3


def test_producers_are_slowed_for_a_follower_that_retention_would_pass(expiring: Any) -> None:
    """They append half as fast as it takes entries, while it takes any; a stuck one is passed."""
    world = BesideDeaf(expiring, 15)
    for node in expiring.nodes.values():
        node.front.retention = KEEP
    expiring.run(1_000)
    stream = expiring.leader(world.group_id)
    progress = next(
        found
        for replica, found in stream.group.node.raft.progress.items()
        if replica >> 16 == world.deaf.id
    )
    clock = expiring.nodes[1].clock
    spans = [SegmentSpan(3, 300, clock.wall_ms() - 15 * DAY_MS)]

    def look() -> None:
        now_ms = clock.wall_ms()
        stream.log_start.retain(
            spans, WEEK, settled_ms=now_ms, stamp_ms=now_ms, fed=[world.deaf.id]
        )
        expiring.run(50)

    def appended(count: int) -> int:
        before = stream.end_offset
        for _ in range(count):
            expiring.append(stream, ms=10_000)
        expiring.run(50)
        return int(stream.end_offset - before)

    progress.match = 0
    look()
    assert (world.start, appended(2)) == (0, 2), "nobody knows yet whether it takes any"
    progress.match = 1
    look()
    assert (world.start, appended(3)) == (0, 1)
    progress.match = 3
    stream._outbox.mark_dirty(stream.group)
    expiring.run(50)
    assert stream.end_offset == 7
    expiring.run(1_500)
    assert stream.end_offset == 8, "it takes no more"
    assert appended(5) == 5
    look()
    assert (world.start, appended(2)) == (0, 1), "it took some since"
    look()
    assert (world.start, stream.end_offset) == (3, 15)


def test_follower_that_gets_on_slowly_for_ever_does_not_fill_disks(expiring: Any) -> None:
    """It takes an entry between two checks, and new ones are larger than those it takes."""
    world = BesideDeaf(expiring, 15)
    for node in expiring.nodes.values():
        node.front.retention = KEEP
    expiring.run(1_000)
    stream = expiring.leader(world.group_id)
    progress = stream.group.node.raft.progress
    slow = next(known for replica, known in progress.items() if replica >> 16 == world.deaf.id)
    now_ms = expiring.nodes[1].clock.wall_ms()
    starts = []
    for match, days in enumerate((15, 20, 28, 29)):
        slow.match = match
        spans = [SegmentSpan(3, 300, now_ms - days * DAY_MS)]
        stream.log_start.retain(
            spans, WEEK, settled_ms=now_ms, stamp_ms=now_ms, fed=[world.deaf.id]
        )
        expiring.run(50)
        starts.append(world.start)
    assert starts == [0, 0, 0, 3]


def test_retention_waits_for_no_follower_that_is_away(expiring: Any) -> None:
    """The time of its return is unknown."""
    world = BesideDeaf(expiring, 8)
    world.deaf.crash()
    expiring.run(8_000)
    assert world.start == 3


def test_retention_looks_again_when_a_follower_cannot_be_looked_after(
    expiring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without descriptors the entries that a follower needs cannot be read; keeping all is safe."""
    world = BesideDeaf(expiring, 15)
    log = expiring.leader(world.group_id).group.log
    offset_after = type(log).offset_after

    def refuse(log: Any, index: int) -> int:
        if index >= log.last_index:  # which is in memory
            return int(offset_after(log, index))
        raise ReadRefused("too many open files")

    with monkeypatch.context() as patches:
        patches.setattr(type(log), "offset_after", refuse)
        expiring.run(8_000)
        assert world.start == 0
    expiring.run(8_000)
    assert world.start == 3


def test_retention_waits_for_nobody_on_a_full_disk(expiring: Any) -> None:
    """Deleting frees space."""
    world = BesideDeaf(expiring, 8)
    expiring.run(8_000)
    stream = expiring.leader(world.group_id)
    trimming = expiring.nodes[stream.leader_server].host.trimming
    trimming._status = SimpleNamespace(is_full=True)
    trimming._retain_next(
        [(stream, WEEK)], trimming._state.time.settled_ms(), trimming._state.time.now_ms()
    )
    expiring.run(5)
    assert world.start == 3


def test_retention_waits_for_no_follower_whose_disk_is_full(
    expiring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes nothing before space is freed, so the wait would never end."""
    cluster, segments = expiring, SegmentLimits(bytes=400)
    for node in cluster.nodes.values():
        node.front.retention = RetentionPolicy(segments=segments)
    group_id = cluster.create_topic()
    cluster.run(500)
    leader = cluster.leader(group_id)
    servers = [server for server in cluster.nodes if server != leader.leader_server]
    others = [cluster.nodes[server].store for server in servers]
    full: set[bytes] = {others[0].directory_id}
    has_room = property(lambda store: store.directory_id not in full)
    monkeypatch.setattr(MemoryStore, "accepts_appends", has_room)
    cluster.run(500)
    for _ in range(10):
        cluster.append(leader, b"v" * 120)
        cluster.run(50)
    full |= {others[1].directory_id}
    cluster.run(1_000)
    for node in cluster.nodes.values():
        node.front.retention = RetentionPolicy(retention_bytes=1_000, segments=segments)
    cluster.run(10_000)
    assert leader.log_start_offset > 0


def test_retention_deletes_what_the_policy_does_not_keep(expiring: Any) -> None:
    """The leader checks, all replicas delete."""
    cluster = expiring
    group_id = written(cluster, 10)
    for node in cluster.nodes.values():
        node.front.retention = RetentionPolicy(retention_ms=1)
    cluster.run(5_000)
    assert starts(cluster, group_id) == {10}
    fates = cluster.append(cluster.leader(group_id), timestamp=1 << 50)
    cluster.run(3_000)
    assert [fate.base_offset for fate in fates] == [10]
    assert starts(cluster, group_id) == {10}


def test_deletion_whose_leader_is_deposed_has_an_open_fate(cluster: Any) -> None:
    """The next leader may still commit it."""
    group_id = written(cluster, 3)
    leader = cluster.leader(group_id)
    server = leader.leader_server
    for other in (1, 2, 3):
        if other != server:
            cluster.network.cut(server, other)
            cluster.network.cut(other, server)
    answers: list[ErrorCode] = []
    leader.delete_records(2, deadline_ns=cluster.deadline(60_000), done=answers.append)
    cluster.run(5_000)
    assert answers == [ErrorCode.REQUEST_TIMED_OUT]


def led_again(cluster: Any, group_id: int) -> int:
    """Transfer the leadership of a partition to another server. Return its term there."""
    stream = cluster.leader(group_id)
    server = stream.leader_server
    transferee = cluster.nodes[server % 3 + 1].host.groups[group_id]
    stream.group.node.transfer_leader(transferee.replica_id)
    cluster.nodes[server].host.mark_dirty(stream.group)
    cluster.run(300)
    term = cluster.leader(group_id).term
    assert isinstance(term, int)
    return term


def test_epoch_ends_where_the_next_one_with_records_begins(cluster: Any) -> None:
    """KIP-101, KIP-279: for each epoch up to the present one, also those without a record."""
    group_id = written(cluster, 4)
    first = cluster.leader(group_id).term
    led_again(cluster, group_id)
    last = led_again(cluster, group_id)
    stream = cluster.leader(group_id)
    cluster.append(stream)
    cluster.run(50)
    assert stream.end_offset_for_epoch(first) == (first, 4)
    assert stream.end_offset_for_epoch(last - 1) == (last - 1, 4)
    assert stream.end_offset_for_epoch(last) == (last, 5)
    assert stream.end_offset_for_epoch(last + 1) == (-1, -1)
    assert stream.end_offset_for_epoch(-1) == (-1, -1)


def test_deleted_epoch_ended_at_the_logs_start(cluster: Any) -> None:
    """A consumer that has read to there has read no truncated record (KIP-101, KIP-107).

    The answer is the same before the entries are cut from the log, after it, and when the rest is
    cut too.
    """
    group_id = written(cluster, 10)
    old = cluster.leader(group_id).term
    led_again(cluster, group_id)
    stream = cluster.leader(group_id)
    assert stream.end_offset_for_epoch(old) == (old, 10)
    assert delete(cluster, group_id, -1) == [ErrorCode.NONE]
    assert stream.end_offset_for_epoch(old) == (old, 10)
    led_again(cluster, group_id)
    for _ in range(2):
        for node in cluster.nodes.values():
            node.store.checkpoint()
        cluster.run(2_500)
    stream = cluster.leader(group_id)
    assert stream.group.log.term(stream.group.log.first_index - 1) > old
    assert stream.end_offset_for_epoch(old) == (old, 10)
    cluster.append(stream)
    cluster.run(50)
    assert stream.end_offset_for_epoch(old) == (old, 10)
    assert stream.end_offset_for_epoch(old - 1) == (old - 1, 10)
    assert stream.end_offset_for_epoch(stream.term) == (stream.term, 11)


def at_time(cluster: Any, group_id: int, timestamp: int) -> TimedOffset:
    found: list[Any] = []
    cluster.leader(group_id).offset_for_time(timestamp, found.append)
    cluster.run(100)
    (answer,) = found
    assert isinstance(answer, TimedOffset)
    return answer


def test_time_finds_no_deleted_record(cluster: Any) -> None:
    """KIP-79, KIP-107: the first remaining record with that time or a later one, and its own time.

    The earlier records are still on disk.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    for timestamp in (100, 900, 200, 300, 950, 400):
        cluster.append(stream, timestamp=timestamp)
        cluster.run(5)
    epoch = stream.term
    assert at_time(cluster, group_id, 150) == TimedOffset(1, 900, epoch)
    assert delete(cluster, group_id, 3) == [ErrorCode.NONE]
    assert stream.group.log.first_index == 1
    assert at_time(cluster, group_id, 0) == TimedOffset(3, 300, epoch)
    assert at_time(cluster, group_id, 150) == TimedOffset(3, 300, epoch)
    assert at_time(cluster, group_id, 350) == TimedOffset(4, 950, epoch)
    assert at_time(cluster, group_id, 951) == NO_RECORD
    assert delete(cluster, group_id, 5) == [ErrorCode.NONE]
    assert at_time(cluster, group_id, 500) == NO_RECORD
    assert delete(cluster, group_id, -1) == [ErrorCode.NONE]
    assert at_time(cluster, group_id, 0) == NO_RECORD


def test_time_finds_no_deleted_record_of_a_batch_that_is_left(cluster: Any) -> None:
    """The log starts inside a batch: its first records count as deleted."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    batch = build_batch([Record(value=b"v", timestamp=at) for at in (300, 100, 200)])
    header = read_header(batch)
    stream.append(
        memoryview(batch), header, deadline_ns=cluster.deadline(), done=lambda appended: None
    )
    cluster.run(5)
    assert at_time(cluster, group_id, 50).offset == 0
    assert delete(cluster, group_id, 1) == [ErrorCode.NONE]
    assert at_time(cluster, group_id, 50) == TimedOffset(1, 100, stream.term)
    assert at_time(cluster, group_id, 150) == TimedOffset(2, 200, stream.term)
    assert at_time(cluster, group_id, 250) == NO_RECORD


def at_largest_time(cluster: Any, group_id: int) -> TimedOffset:
    found: list[Any] = []
    cluster.leader(group_id).offset_of_largest_time(found.append)
    cluster.run(200)
    (answer,) = found
    assert isinstance(answer, TimedOffset)
    return answer


def test_largest_time_is_that_of_a_record_that_is_left(cluster: Any) -> None:
    """KIP-734: of equals the first.

    Deleted records are in the same segment, and have the largest time known of it.
    """
    group_id = cluster.create_topic()
    assert at_largest_time(cluster, group_id) == NO_RECORD
    stream = cluster.leader(group_id)
    for timestamp in (100, 900, 200, 700, 300, 700, 1 << 62, 400):
        cluster.append(stream, timestamp=timestamp)
        cluster.run(5)
    epoch = stream.term
    assert at_largest_time(cluster, group_id) == TimedOffset(6, 1 << 62, epoch)
    assert delete(cluster, group_id, 7) == [ErrorCode.NONE]
    assert at_largest_time(cluster, group_id) == TimedOffset(7, 400, epoch)
    assert delete(cluster, group_id, -1) == [ErrorCode.NONE]
    assert at_largest_time(cluster, group_id) == NO_RECORD


def test_largest_time_is_found_by_few_questions() -> None:
    """The bound may lie any distance above the largest time."""
    times_of = [5, 80, 7, 80, 3]
    asked: list[int] = []

    def find(timestamp_ms: int, done: times.Done) -> None:
        asked.append(timestamp_ms)
        offsets = [n for n, at in enumerate(times_of) if at >= timestamp_ms]
        done(TimedOffset(offsets[0], times_of[offsets[0]], 1) if offsets else NO_RECORD)

    for bound_ms in (80, 81, 1000, (1 << 63) - 1):
        found: list[object] = []
        asked.clear()
        times.find_offset_of_largest_time(bound_ms, find, found.append)
        assert found == [TimedOffset(1, 80, 1)]
        assert len(asked) <= 65
    times_of = [-1, -1]
    found = []
    times.find_offset_of_largest_time(-1, find, found.append)
    assert found == [TimedOffset(0, -1, 1)]


def test_batch_without_the_record_it_promises_has_few_others_read(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late record is deleted: the entries close behind it are read, then the store is searched.

    Reading on to the end would mean the whole log.
    """
    monkeypatch.setattr(times, "WALK_BYTES", 300)
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    batch = build_batch([Record(value=b"v", timestamp=at) for at in (900, 100)])
    stream.append(
        memoryview(batch), read_header(batch), deadline_ns=cluster.deadline(), done=lambda _: None
    )
    cluster.run(5)
    for n in range(60):
        cluster.append(stream, timestamp={40: 800, 55: 700}.get(n, 200))
        cluster.run(5)
    assert delete(cluster, group_id, 1) == [ErrorCode.NONE]
    read: list[int] = []
    entries = type(stream.group.log).entries

    def counted(log: Any, first: int, end: int, bytes_max: int) -> Any:
        found = entries(log, first, end, bytes_max)
        read.extend(entry.index for entry in found)
        return found

    monkeypatch.setattr(type(stream.group.log), "entries", counted)
    for timestamp, offset in ((500, 42), (800, 42), (801, -1), (150, 2), (100, 1)):
        read.clear()
        assert at_time(cluster, group_id, timestamp).offset == offset
        assert len(read) <= 8, (timestamp, read)


def test_batches_are_walked_in_the_pool(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of many records takes time, in which the loop serves others."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    cluster.append(stream, timestamp=100)
    cluster.run(5)
    workers = stream.group.store.workers
    pool = workers.pool
    inside: list[bool] = []
    walks: list[bool] = []

    def watched(job: Any, done: Any) -> None:
        def run() -> Any:
            inside.append(True)
            try:
                return job()
            finally:
                inside.clear()

        pool(run, done)

    def walk(*arguments: Any) -> Any:
        walks.append(bool(inside))
        return first_at_or_after(*arguments)

    monkeypatch.setattr(workers, "pool", watched)
    monkeypatch.setattr(times, "first_at_or_after", walk)
    assert at_time(cluster, group_id, 50) == TimedOffset(0, 100, stream.term)
    assert walks == [True]


def test_record_deleted_while_it_was_looked_for_is_not_found(cluster: Any) -> None:
    """The search reads the disk; in the meantime the log's start moves."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    for timestamp in (100, 200, 300):
        cluster.append(stream, timestamp=timestamp)
        cluster.run(5)
    found: list[Any] = []
    stream.offset_for_time(50, found.append)
    assert found == []
    stream.state.log_start_offset = 2
    cluster.run(100)
    assert found == [TimedOffset(2, 300, stream.term)]


def test_index_that_is_damaged_where_a_log_is_to_be_cut_is_read_there(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read rebuilds it; the log's first entry may be in another segment."""
    group_id = cluster.create_topic()
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(20)
    host = cluster.nodes[1].host
    group = host.groups[group_id]
    asked: list[tuple[int, int]] = []

    def read(_store: Any, _log: Any, first: int, end: int, _bytes_max: int, _done: Any) -> None:
        asked.append((first, end))

    monkeypatch.setattr(MemoryStore, "entries_cold", read)
    for position in (3, 4, 99):

        def trim(_: Any, position: int = position) -> bool:
            raise CorruptRecord("index check", position)

        host.trimming._cut(group, trim)
    assert asked == [(3, 4), (4, 5)]
