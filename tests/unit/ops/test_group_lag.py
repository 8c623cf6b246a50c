"""Lag of consumer groups: what is counted, and that each page does a bounded part of the work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ids import GroupId, Index, Offset
from vdl.records.batch import BatchFields, Record, build_batch, patch_position
from vdl.server import group_lag
from vdl.server.group_lag import PARTITIONS_TIMED, GroupLags
from vdl.state.aborted import AbortedRange
from vdl.state.changed_parts import ChangedParts
from vdl.state.offsets import Offsets

NOW_MS = 1_000_000
COORDINATOR = GroupId(1)
PRODUCER = 7


class Stream:
    """A partition whose record at offset n was written at n seconds, each in a batch."""

    def __init__(self, end: int, start: int = 0, *, on_disk: bool = False) -> None:
        self.high_watermark = self.last_stable_offset = Offset(end)
        self.log_start_offset = Offset(start)
        self.on_disk = on_disk
        self.markers = set()
        self.in_transactions = set()
        self.ranges = []
        self.looks = 0

    def _batch(self, offset):
        record = Record(offset=0, timestamp=offset * 1_000, key=None, value=b"")
        is_transactional = offset in self.in_transactions
        fields = BatchFields(
            is_control=offset in self.markers,
            is_transactional=is_transactional,
            producer_id=PRODUCER if is_transactional else -1,
        )
        batch = build_batch([record], fields)
        patch_position(memoryview(batch), base_offset=offset, leader_epoch=1)
        return batch

    def in_memory(self, offset, count_max):
        self.looks += 1
        if self.on_disk or offset < self.log_start_offset:
            return []
        return [self._batch(n) for n in range(offset, min(self.high_watermark, offset + count_max))]

    def aborted(self, start, end):
        return self.ranges


class World:
    """A coordinator led here, and the partitions of some topics."""

    def __init__(self, rows_max: int = 100) -> None:
        self.topics = {}
        self.streams = {}
        self.offsets = {COORDINATOR: Offsets(ChangedParts())}
        host = SimpleNamespace(
            catalog=SimpleNamespace(topics=self.topics), agreed_ms=lambda: NOW_MS
        )
        self.lags = GroupLags(host, self.streams.get, lambda: self.offsets, rows_max)

    def add_topic(self, name, *streams):
        first = 100 + 1_000 * len(self.topics)
        ids = [GroupId(first + n) for n in range(len(streams))]
        self.topics[name] = SimpleNamespace(partitions=ids, topic_id=bytes(16))
        self.streams.update({i: s for i, s in zip(ids, streams, strict=True) if s is not None})

    def commit(self, group, topic, offsets, *, partition_group=0, topic_id=bytes(16)):
        self.offsets[COORDINATOR]._by_group.setdefault(group, {}).update(
            {
                (topic, p): SimpleNamespace(
                    offset=Offset(o), partition_group=partition_group, topic_id=topic_id
                )
                for p, o in offsets.items()
            }
        )

    def look(self):
        steps = list(self.lags.look())
        found = {(one.key, *(v for _, v in one.labels)): one.value for one in self.lags.samples()}
        return found, len(steps)


def test_lag_is_the_sum_of_records_and_the_age_of_the_oldest():
    world = World()
    world.add_topic("t", Stream(100), Stream(50), Stream(20))
    world.commit("g", "t", {0: 90, 1: 10, 2: 20})
    found, _ = world.look()
    assert found["lag_records", "g", "t"] == 10 + 40
    assert found["lag_seconds", "g", "t"] == (NOW_MS - 10_000) / 1_000


def test_group_at_the_end_has_no_lag():
    world = World()
    world.add_topic("t", Stream(5))
    world.commit("g", "t", {0: 5})
    found, _ = world.look()
    assert found["lag_records", "g", "t"] == 0
    assert found["lag_seconds", "g", "t"] == 0


def test_follower_that_is_behind_a_commit_shows_no_negative_lag():
    world = World()
    world.add_topic("t", Stream(5))
    world.commit("g", "t", {0: 8})
    assert world.look()[0]["lag_records", "g", "t"] == 0


def test_partition_without_a_replica_here_is_counted_apart():
    world = World()
    world.add_topic("t", None, Stream(7))
    world.commit("g", "t", {0: 1, 1: 4})
    found, _ = world.look()
    assert found["lag_records", "g", "t"] == 3
    assert found["lag_partitions_elsewhere",] == 1


def test_topic_that_is_gone_has_no_row():
    world = World()
    world.commit("g", "t", {0: 1})
    found, _ = world.look()
    assert ("lag_records", "g", "t") not in found


def test_deleted_records_do_not_count_as_the_first_unread_one():
    """The first record that the group can still read decides."""
    world = World()
    world.add_topic("t", Stream(100, start=60))
    world.commit("g", "t", {0: 10})
    assert world.look()[0]["lag_seconds", "g", "t"] == (NOW_MS - 60_000) / 1_000


def test_rows_with_most_records_behind_are_shown():
    world = World(rows_max=2)
    world.add_topic("t", Stream(1_000))
    for n in range(5):
        world.commit(f"g{n}", "t", {0: n * 100})
    found, _ = world.look()
    assert {key[1] for key in found if key[0] == "lag_records"} == {"g0", "g1"}
    assert found["lag_rows_left_out",] == 3


def test_page_examines_a_bounded_number_of_offsets_and_the_next_goes_on(monkeypatch):
    monkeypatch.setattr(group_lag, "OFFSETS_PER_PAGE", 22)  # one more for each group
    monkeypatch.setattr(group_lag, "_STEP_OFFSETS", 4)
    world = World()
    world.add_topic("t", *[Stream(9) for _ in range(10)])
    for n in range(5):
        world.commit(f"g{n}", "t", dict.fromkeys(range(10), 0))
    seen = [len([key for key in world.look()[0] if key[0] == "lag_records"]) for _ in range(3)]
    assert seen == [2, 4, 5]


def test_group_with_many_offsets_is_examined_in_steps(monkeypatch):
    monkeypatch.setattr(group_lag, "_STEP_OFFSETS", 10)
    world = World()
    world.add_topic("t", *[Stream(9) for _ in range(100)])
    world.commit("g", "t", dict.fromkeys(range(100), 0))
    found, steps = world.look()
    assert found["lag_records", "g", "t"] == 900
    assert steps >= 10


def test_first_unread_record_is_looked_up_once_for_each_commit():
    stream = Stream(100)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    world.look()
    world.look()
    assert stream.looks == 1
    world.commit("g", "t", {0: 20})
    found, _ = world.look()
    assert stream.looks == 2
    assert found["lag_seconds", "g", "t"] == (NOW_MS - 20_000) / 1_000


def test_records_of_a_bounded_number_of_partitions_are_looked_up_for_a_row():
    streams = [Stream(100 + n) for n in range(3 * PARTITIONS_TIMED)]
    world = World()
    world.add_topic("t", *streams)
    world.commit("g", "t", dict.fromkeys(range(len(streams)), 5))
    world.look()
    assert [stream.looks for stream in streams] == [0] * 2 * PARTITIONS_TIMED + [
        1
    ] * PARTITIONS_TIMED


def test_record_on_disk_is_not_read_and_has_no_seconds():
    """A scrape must not look like a consumer that is behind."""
    world = World()
    world.add_topic("t", Stream(100, on_disk=True))
    world.commit("g", "t", {0: 10})
    found, _ = world.look()
    assert found["lag_records", "g", "t"] == 90
    assert ("lag_seconds", "g", "t") not in found


def test_time_stays_known_when_the_record_leaves_the_memory():
    stream = Stream(100)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    world.look()
    stream.on_disk = True
    assert world.look()[0]["lag_seconds", "g", "t"] == (NOW_MS - 10_000) / 1_000


def test_group_before_a_marker_alone_is_not_late():
    """Consumers need not commit the offset of a marker: it would be late for ever."""
    stream = Stream(11)
    stream.markers = {10}
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    assert world.look()[0]["lag_seconds", "g", "t"] == 0
    stream.high_watermark = stream.last_stable_offset = Offset(13)
    assert world.look()[0]["lag_seconds", "g", "t"] == (NOW_MS - 11_000) / 1_000


def test_group_before_an_aborted_transaction_is_not_late_once_it_has_ended():
    stream = Stream(12)
    stream.in_transactions = {10, 11}
    stream.last_stable_offset = Offset(10)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    assert world.look()[0]["lag_seconds", "g", "t"] == (NOW_MS - 10_000) / 1_000
    stream.markers = {12}
    stream.ranges = [AbortedRange(PRODUCER, Offset(10), Offset(12), Index(5))]
    stream.high_watermark = stream.last_stable_offset = Offset(13)
    assert world.look()[0]["lag_seconds", "g", "t"] == 0


def test_many_markers_in_front_of_what_is_unknown_are_no_answer():
    stream = Stream(1_000)
    stream.markers = set(range(1_000))
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    assert ("lag_seconds", "g", "t") not in world.look()[0]


def test_row_of_partitions_elsewhere_has_no_lag():
    world = World()
    world.add_topic("t", None, None)
    world.commit("g", "t", {0: 1, 1: 4})
    found, _ = world.look()
    assert ("lag_records", "g", "t") not in found
    assert ("lag_seconds", "g", "t") not in found
    assert found["lag_partitions_elsewhere",] == 2


@pytest.mark.parametrize("old", [{"partition_group": 99}, {"topic_id": b"x" * 16}])
def test_offset_in_a_former_topic_of_this_name_is_no_lag(old):
    world = World()
    world.add_topic("t", Stream(100))
    world.commit("g", "t", {0: 1}, **old)
    assert ("lag_records", "g", "t") not in world.look()[0]


@pytest.mark.parametrize(("committed", "behind"), [(-(1 << 60), 40), (1 << 60, 0), (70, 30)])
def test_lag_is_never_more_than_the_log_has(committed, behind):
    """Offsets are clients' choice: one of nonsense must not displace those who are behind."""
    world = World()
    world.add_topic("t", Stream(100, start=60))
    world.commit("g", "t", {0: committed})
    assert world.look()[0]["lag_records", "g", "t"] == behind


def test_rows_that_are_kept_are_bounded_and_those_most_behind(monkeypatch):
    monkeypatch.setattr(group_lag, "_STEP_OFFSETS", 10)
    world = World(rows_max=3)
    world.add_topic("t", Stream(1_000))
    for n in range(300):
        world.commit(f"g{n}", "t", {0: 999 - n})
    kept = 0
    for _ in world.lags.look():
        kept = max(kept, sum(map(len, world.lags._now.rows.values())))
    assert kept <= 2 * 3 + 10
    found, _ = world.look()
    assert {key[1] for key in found if key[0] == "lag_records"} == {"g299", "g298", "g297"}
    assert found["lag_rows_left_out",] == 297


def test_row_that_is_shown_is_kept_current_while_there_are_many(monkeypatch):
    monkeypatch.setattr(group_lag, "_STEP_OFFSETS", 10)
    world = World(rows_max=1)
    world.add_topic("t", Stream(1_000))
    for n in range(100):
        world.commit(f"g{n}", "t", {0: 900 - n})
    assert world.look()[0]["lag_records", "g99", "t"] == 199
    world.commit("g99", "t", {0: 1_000})
    found, _ = world.look()
    assert ("lag_records", "g99", "t") not in found
    assert found["lag_records", "g98", "t"] == 198


def test_work_of_a_round_grows_with_offsets_and_not_with_their_square(monkeypatch):
    """Examining a group must not look through the rows of all others."""

    class Rows(dict):
        steps = 0

        def __iter__(self):
            Rows.steps += len(self)
            return super().__iter__()

        def items(self):
            Rows.steps += len(self)
            return super().items()

    world = World(rows_max=10_000)
    world.add_topic("t", Stream(9))
    for n in range(300):
        world.commit(f"g{n}", "t", {0: 1})
    world.lags._now.rows = Rows()
    world.look()
    assert Rows.steps <= 3 * 300


def test_group_with_more_offsets_than_a_page_may_examine_goes_on_at_the_next(monkeypatch):
    monkeypatch.setattr(group_lag, "OFFSETS_PER_PAGE", 20)
    monkeypatch.setattr(group_lag, "_STEP_OFFSETS", 4)
    world = World()
    world.add_topic("t", *[Stream(9) for _ in range(50)])
    world.commit("g", "t", dict.fromkeys(range(50), 0))
    found = [world.look() for _ in range(3)]
    assert ("lag_records", "g", "t") not in found[0][0]
    assert found[2][0]["lag_records", "g", "t"] == 450
    assert max(steps for _, steps in found) <= 9


def test_nothing_is_examined_where_no_row_is_wanted():
    world = World(rows_max=0)
    stream = Stream(9)
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 1})
    assert world.look()[1] == 0
    assert stream.looks == 0


def test_rows_of_a_coordinator_that_moved_are_gone():
    world = World()
    world.add_topic("t", Stream(9))
    world.commit("g", "t", {0: 1})
    assert ("lag_records", "g", "t") in world.look()[0]
    del world.offsets[COORDINATOR]
    assert ("lag_records", "g", "t") not in world.look()[0]


def test_rows_of_a_deleted_group_are_gone_at_the_next_round():
    world = World()
    world.add_topic("t", Stream(9))
    world.commit("g", "t", {0: 1})
    world.look()
    world.offsets[COORDINATOR]._by_group.clear()
    assert ("lag_records", "g", "t") not in world.look()[0]
