"""Logs are compacted by decision of the leader, on every replica, to the same bytes."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from raft.types import EntryKind
from rpc.compacted import Compacted, decode_compacted, encode_compacted
from rpc.errors import MalformedFrame
from rpc.peer import FrameType
from segments.api import SegmentSpan
from segments.memory import MemoryStore
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.cleanup.compaction import LogCompaction
from vdl.logstream.group.compaction import PARTS, CompactedMarks, CompactionPolicy, compaction_end
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.membership.reassignment import Reassignment
from vdl.records.batch import BatchFields, Record, build_batch, iter_records, read_header
from vdl.records.compression import Compression
from vdl.state.commands import AlterReassignments, Reassign

ALWAYS = CompactionPolicy(delete_retention_ms=0, dirty_ratio=0.0)
FOREVER_KEPT = CompactionPolicy(delete_retention_ms=1 << 60, dirty_ratio=0.0)
SPANS = [
    SegmentSpan(10, 100, 1_000, 4), SegmentSpan(20, 100, 2_000, 9), SegmentSpan(30, 100, 3_000, 14),
    SegmentSpan(40, 100, 4_000, 19), SegmentSpan(50, 10, 5_000, 24),
]  # fmt: skip
"""Three sealed segments, the newest, and the tail."""


@pytest.mark.parametrize(
    ("policy", "compacted", "now_ms", "upto"),
    [
        (CompactionPolicy(), 0, 9_000, 14),
        (CompactionPolicy(), 4, 9_000, 14),
        (CompactionPolicy(), 9, 9_000, 0),
        (CompactionPolicy(dirty_ratio=0.3), 9, 9_000, 14),
        (CompactionPolicy(dirty_ratio=0.0), 14, 9_000, 0),
        (CompactionPolicy(min_lag_ms=7_000), 0, 9_500, 9),
        (CompactionPolicy(min_lag_ms=9_000), 0, 9_500, 0),
        (CompactionPolicy(max_lag_ms=6_000), 9, 7_999, 0),
        (CompactionPolicy(max_lag_ms=6_000), 9, 8_000, 14),
    ],
)
def test_sealed_segments_are_compacted_when_it_is_worth_it(
    policy: CompactionPolicy, compacted: int, now_ms: int, upto: int
) -> None:
    """By their share of the log, or after the maximum lag; never if they are too young."""
    found = compaction_end(
        SPANS, policy, compacted=compacted, stable=24, settled_ms=now_ms, stamp_ms=now_ms
    )
    assert found == upto


@pytest.mark.parametrize(("stable", "upto"), [(14, 14), (13, 9), (4, 4), (3, 0)])
def test_segment_with_an_open_transaction_is_not_compacted(stable: int, upto: int) -> None:
    """Segments behind it are not either: it is not decided yet which of its records stay."""
    found = compaction_end(
        SPANS, CompactionPolicy(), compacted=0, stable=stable, settled_ms=9_000, stamp_ms=9_000
    )
    assert found == upto


def test_record_that_is_young_by_settled_time_stays_whatever_clocks_say() -> None:
    policy = CompactionPolicy(min_lag_ms=1, dirty_ratio=0.0)
    found = compaction_end(SPANS, policy, compacted=0, stable=24, settled_ms=0, stamp_ms=1 << 50)
    assert found == 0


def test_marks_let_markers_go_late_rather_than_early() -> None:
    marks = CompactedMarks()
    for second in range(100):
        marks.note(10 + second, 24_000, second * 1_000 * MS)
        upto = marks.markers_upto(24_000, second * 1_000 * MS)
        assert upto == (second - 14 if second >= 24 else 0)
        assert len(marks._marks) <= PARTS + 2
    fast = CompactedMarks()
    for n in range(1, 200):
        fast.note(n, 0, n)
    assert len(fast._marks) <= PARTS + 2
    assert fast.markers_upto(0, 200) == 199


def test_frame_is_checked() -> None:
    rows = [Compacted(3, 1 << 40, 9), Compacted(4, 5, 1)]
    (frame,) = encode_compacted(rows)
    assert decode_compacted(memoryview(frame)) == rows
    for wrong in (b"", frame[:-1], frame * 3000):
        with pytest.raises(MalformedFrame):
            decode_compacted(memoryview(wrong))


class Topic:
    """A compacted partition on three servers, with a writer."""

    def __init__(self, cluster: Any, policy: CompactionPolicy, seed: int = 1) -> None:
        self.cluster = cluster
        self.group_id = cluster.create_topic()
        self.rng = random.Random(seed)
        self.newest: dict[bytes, bytes | None] = {}
        self.sequences: dict[int, int] = {}
        self.written = 0
        for node in cluster.nodes.values():
            self.tune(node, policy)

    def tune(self, node: Any, policy: CompactionPolicy) -> None:
        node.front.compaction = policy
        node.store._options = type(node.store._options)(segment_bytes=600)

    def write(self, count: int, *, keys: int = 6) -> None:
        rng = self.rng
        for _ in range(count):
            stream = self.cluster.leader(self.group_id)
            records = [
                Record(
                    b"k%d" % rng.randrange(keys),
                    None if rng.random() < 0.4 else b"v%d.%d" % (self.written, n),
                    timestamp=self.written,
                )
                for n in range(rng.randint(1, 3))
            ]
            producer = rng.choice((-1, 7, 8))
            first = self.sequences.get(producer, 0) if producer >= 0 else -1
            fields = BatchFields(
                producer_id=producer, producer_epoch=0 if producer >= 0 else -1,
                base_sequence=first, compression=rng.choice(list(Compression)),
            )  # fmt: skip
            batch = build_batch(records, fields)
            fates: list[Any] = []
            stream.append(
                memoryview(batch), read_header(batch),
                deadline_ns=self.cluster.deadline(), done=fates.append,
            )  # fmt: skip
            self.cluster.run(5)
            assert [fate.error for fate in fates] == [0]
            self.sequences[producer] = first + len(records)
            self.newest.update({record.key or b"": record.value for record in records})
            self.written += 1

    def settle(self, ms: int = 12_000) -> None:
        """Let all servers checkpoint, decide and compact."""
        for _ in range(ms // 1_000):
            for node in self.live():
                node.store.checkpoint()
            self.cluster.run(1_000)

    def live(self) -> list[Any]:
        return [node for node in self.cluster.nodes.values() if not node.clock.stopped]

    def streams(self) -> list[Any]:
        found = [node.host.stream(self.group_id) for node in self.live()]
        return [stream for stream in found if stream is not None]

    def digests(self) -> list[Any]:
        """Return the state and every entry of each replica, which must be equal."""
        found = []
        for stream in self.streams():
            log = stream.group.log
            entries = [
                (e.index, e.term, int(e.kind), e.base_offset, e.records, bytes(e.data), e.timestamp)
                for e in log.entries(log.first_index, log.last_index + 1, 1 << 40)
            ]
            found.append((stream.items(), log.compaction, entries))
        return found

    def read(self, stream: Any) -> dict[bytes, bytes | None]:
        """Return the newest value of each key, for a reader from the beginning."""
        seen: dict[bytes, bytes | None] = {}
        offset = stream.log_start_offset
        while offset < stream.high_watermark:
            found = stream.read(offset, 500)
            assert found.buffers
            for data in found.buffers:
                header = read_header(data)
                assert header.last_offset >= offset
                offset = header.last_offset + 1
                for record in iter_records(memoryview(data)):
                    seen[record.key or b""] = record.value
        return {key: value for key, value in seen.items() if value is not None}

    def check(self) -> None:
        digests = self.digests()
        assert all(digest == digests[0] for digest in digests)
        values = {key: value for key, value in self.newest.items() if value is not None}
        for stream in self.streams():
            assert self.read(stream) == values


@pytest.mark.parametrize("seed", range(6))
def test_every_replica_holds_the_same_bytes_after_each_compaction(
    make_cluster: Callable[..., Any], seed: int
) -> None:
    """With changing leaders, and servers that crash and return, one of them with an empty disk."""
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS, seed)
    rng = random.Random(seed)
    for _ in range(5):
        topic.write(rng.randint(5, 25))
        event = rng.choice(("nothing", "restart", "away", "leader", "wipe"))
        node = cluster.nodes[rng.choice((1, 2, 3))]
        if event == "leader":
            node = cluster.nodes[cluster.leader(topic.group_id).leader_server]
        if event != "nothing":
            node.wipe() if event == "wipe" else node.crash()
            cluster.run(2_000)
            if event == "away":
                topic.write(20)
                topic.settle(6_000)
            node.start()
            topic.tune(node, ALWAYS)
            cluster.run(4_000)
        topic.settle()
        topic.check()
    assert topic.streams()[0].group.log.compaction.markers_upto > 0
    before = sum(len(e[5]) for e in topic.digests()[0][2] if e[2] == EntryKind.NORMAL)
    assert before < topic.written * 80


def test_marker_stays_while_a_replica_is_away_and_goes_afterwards(
    make_cluster: Callable[..., Any],
) -> None:
    """Otherwise the replica that is away would keep the deleted record, and could lead with it."""
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    leader = cluster.leader(topic.group_id).leader_server
    away = cluster.nodes[leader % 3 + 1]
    topic.write(10)
    topic.settle()
    away.crash()
    topic.write(30)
    topic.settle(15_000)
    topic.write(30)
    topic.settle(15_000)
    stream = cluster.leader(topic.group_id)
    assert stream.group.log.compaction.upto > 30
    (its_log,) = [log for log in away.store.logs.values() if log.group_id == topic.group_id]
    assert stream.group.log.compaction.markers_upto <= its_log.compaction.upto
    stuck = stream.group.log.compaction.markers_upto
    away.start()
    topic.tune(away, ALWAYS)
    cluster.run(3_000)
    for _ in range(3):
        topic.write(10)
        topic.settle()
    assert cluster.leader(topic.group_id).group.log.compaction.markers_upto > stuck
    topic.check()


def test_replica_that_left_and_comes_back_never_serves_what_was_deleted(
    make_cluster: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server keeps the log until the catalog knows that the move is finished.

    A move back adds the same replica again. Here the report of the move is late, and the replica's
    log ends with a record that was deleted while it was away.
    """
    cluster = make_cluster((1, 2, 3, 4), compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    away = cluster.nodes[3]
    while topic.newest.get(b"k5") is None:
        topic.write(1, keys=6)
    cluster.run(500)
    away.crash()
    cluster.run(3_000)
    while topic.newest[b"k5"] is not None:
        topic.write(1, keys=6)
    topic.write(30, keys=5)

    def move(*servers: int) -> None:
        change = Reassign("events", 0, list(servers))
        assert cluster.propose(AlterReassignments([change])).errors[0][0] is ErrorCode.NONE

    with monkeypatch.context() as patch:
        patch.setattr(Reassignment, "finish", lambda _: None)
        move(1, 2, 4)
        topic.settle()
        assert {r >> 16 for r in cluster.leader(topic.group_id).group.members} == {1, 2, 4}
        for _ in range(3):
            topic.write(10, keys=5)
            topic.settle(5_000)
        move(3, 1, 2)
    away.start()
    topic.tune(away, ALWAYS)
    cluster.run(10_000)
    stream = cluster.leader(topic.group_id)
    assert stream.group.replica_id == replica_id_of(3, 1)
    assert b"k5" not in topic.read(stream)
    topic.settle()
    topic.check()


def test_markers_are_kept_for_as_long_as_asked(make_cluster: Callable[..., Any]) -> None:
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, FOREVER_KEPT)
    for _ in range(3):
        topic.write(20)
        topic.settle()
    stream = cluster.leader(topic.group_id)
    assert stream.group.log.compaction.upto > 0
    assert stream.group.log.compaction.markers_upto == 0
    topic.check()


@pytest.mark.parametrize("policy", [ALWAYS, FOREVER_KEPT])
def test_log_that_is_compacted_is_not_looked_at_each_second(
    make_cluster: Callable[..., Any], policy: CompactionPolicy
) -> None:
    """With thousands of logs an idle server would do nothing else.

    The next decision is found all the same.
    """
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, policy)
    for _ in range(3):
        topic.write(20)
        topic.settle()
    follower = next(stream for stream in topic.streams() if not stream.is_leader)
    front = next(n.front for n in topic.live() if n.host.stream(topic.group_id) is follower)
    asked = front.asked
    cluster.run(60_000)
    assert front.asked - asked <= 4
    upto = follower.group.log.compaction.upto
    topic.write(20)
    topic.settle()
    assert follower.group.log.compaction.upto > upto > 0
    topic.check()


def test_replica_that_begins_behind_what_was_compacted_waits_for_nothing(
    make_cluster: Callable[..., Any],
) -> None:
    """It has nothing to compact: the decision is not repeated for it for ever."""
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    topic.write(30)
    topic.settle()
    stream = cluster.leader(topic.group_id)
    assert stream.state.compact_upto > 0
    codes: list[Any] = []
    stream.delete_records(-1, deadline_ns=cluster.deadline(), done=codes.append)
    topic.settle()
    assert codes == [0]
    new = cluster.nodes[stream.leader_server % 3 + 1]
    new.wipe()
    new.start()
    topic.tune(new, ALWAYS)
    cluster.run(8_000)
    topic.settle()
    (log,) = [log for log in new.store.logs.values() if log.group_id == topic.group_id]
    stream = cluster.leader(topic.group_id)
    assert log.first_index > stream.state.compact_upto
    before = stream.group.node.last_index
    topic.settle(60_000)
    assert stream.group.node.last_index == before
    # Markers of later records need not wait for it.
    topic.write(30)
    topic.settle()
    topic.write(30)
    topic.settle()
    assert cluster.leader(topic.group_id).state.markers_upto > 0


def test_server_that_is_away_stops_nothing_after_a_restart(
    make_cluster: Callable[..., Any],
) -> None:
    """The others have not heard of it since: it may have been away for months."""
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    topic.write(30)
    topic.settle()
    before = cluster.leader(topic.group_id).state.compact_upto
    assert before > 0
    away, *others = cluster.nodes.values()
    away.crash()
    for node in others:
        node.crash()
        cluster.run(1_000)
        node.start()
        topic.tune(node, ALWAYS)
        cluster.run(5_000)
    topic.write(30)
    topic.settle()
    assert cluster.leader(topic.group_id).state.compact_upto > before


def test_peers_of_before_stop_it(make_cluster: Callable[..., Any]) -> None:
    """A replica that does not know the command would stop."""
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    for node in cluster.nodes.values():
        node.host.compaction._versions = dict.fromkeys((1, 2, 3), 5)
        for server, hello in list(node.host.state.alive.items()):
            node.host.state.alive[server] = type(hello)(
                **{name: getattr(hello, name) for name in hello.__slots__} | {"version": 5}
            )
    topic.write(30)
    topic.settle()
    assert {s.state.compact_upto for s in topic.streams()} == {0}


def test_report_of_a_stranger_is_ignored(cluster: Any) -> None:
    """The report is for an absent group, or for a replica on another server than the sender."""
    group_id = cluster.create_topic()
    cluster.run(500)
    stream = cluster.leader(group_id)
    compaction = cluster.nodes[stream.leader_server].host.compaction
    others = [m for m in stream.group.members if m != stream.group.replica_id]
    for rows in ([Compacted(999, others[0], 5)], [Compacted(group_id, others[0], 5)]):
        (frame,) = encode_compacted(rows)
        compaction.received(12, memoryview(frame))
    assert compaction._replicas == {}
    assert FrameType.COMPACTED == 17
    assert isinstance(cluster.nodes[1].store, MemoryStore)


def test_many_logs_are_compacted_without_a_look_at_all_after_each(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check covers every log: one after each of a thousand would be a million."""
    topics = [Topic(cluster, ALWAYS)]
    for number in range(30):
        topic = object.__new__(Topic)
        vars(topic).update(vars(topics[0]))
        topic.group_id = cluster.create_topic(f"t{number}")
        topic.newest, topic.sequences = {}, {}
        topics.append(topic)
    for topic in topics:
        topic.write(25)
    looks: list[int] = []
    look = LogCompaction.look

    def counted(self: LogCompaction) -> None:
        looks.append(self._state.server_id)
        look(self)

    monkeypatch.setattr(LogCompaction, "look", counted)
    seconds = 40
    topics[0].settle(seconds * 1_000)
    done = [node.host.compaction.done for node in cluster.nodes.values()]
    assert min(done) >= len(topics)
    assert len(looks) <= (seconds + 1) * len(done)
    for topic in topics:
        topic.check()


def test_replica_that_cannot_compact_does_not_fill_the_log(
    make_cluster: Callable[..., Any],
) -> None:
    """It may have damage for months.

    The decision is repeated, because the replica may wait for an entry, but at growing intervals;
    and soon after another replica begins to wait.
    """
    cluster = make_cluster(compaction_check_ms=1_000)
    topic = Topic(cluster, ALWAYS)
    stream = cluster.leader(topic.group_id)
    stuck = cluster.nodes[stream.leader_server % 3 + 1]
    compact = stuck.store.compact

    def fails(*arguments: Any, done: Callable[[bool], None], **named: Any) -> None:
        stuck.store.workers.call_later(0, lambda: done(False))

    stuck.store.compact = fails
    topic.write(30)
    topic.settle()
    before = stream.group.node.last_index
    cluster.run(300_000)
    assert 2 <= stream.group.node.last_index - before <= 5
    assert stream.state.compact_upto > 0
    stuck.store.compact = compact
    cluster.run(20_000)
    for _ in range(2):
        topic.write(10)
        topic.settle()
    assert cluster.leader(topic.group_id).state.markers_upto > 0
    topic.check()
