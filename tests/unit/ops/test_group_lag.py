"""Lag of consumer groups: what is counted, and that each page does a bounded part of the work."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ids import GroupId, Offset
from segments.api import NotInMemory, OffsetOutOfRange, Slices, StorageError
from vdl.records.batch import Record, build_batch
from vdl.server import group_lag
from vdl.server.group_lag import PARTITIONS_TIMED, READS_PER_PAGE, GroupLags
from vdl.state.changed_parts import ChangedParts
from vdl.state.offsets import Offsets

NOW_MS = 1_000_000
COORDINATOR = GroupId(1)


class Stream:
    """A partition whose record at offset n was written at n seconds."""

    def __init__(self, end: int, start: int = 0, *, on_disk: bool = False) -> None:
        self.high_watermark = Offset(end)
        self.log_start_offset = Offset(start)
        self.on_disk = on_disk
        self.reads = 0
        self.waiting = []

    def _batch(self, offset):
        record = Record(offset=0, timestamp=offset * 1_000, key=None, value=b"")
        return Slices([build_batch([record])], 1)

    def read(self, offset, bytes_max, *, stable=False):
        self.reads += 1
        if self.on_disk:
            raise NotInMemory(0, 1)
        if offset < self.log_start_offset:
            raise OffsetOutOfRange("below")
        return self._batch(offset)

    def read_cold(self, offset, bytes_max, done, *, stable=False):
        self.waiting.append((offset, done))

    def answer(self, error=None):
        waiting, self.waiting = self.waiting, []
        for offset, done in waiting:
            done(error or self._batch(offset))


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
        self.topics[name] = SimpleNamespace(partitions=ids)
        self.streams.update({i: s for i, s in zip(ids, streams, strict=True) if s is not None})

    def commit(self, group, topic, offsets):
        self.offsets[COORDINATOR]._by_group.setdefault(group, {}).update(
            {(topic, p): SimpleNamespace(offset=Offset(o)) for p, o in offsets.items()}
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
    monkeypatch.setattr(group_lag, "OFFSETS_PER_PAGE", 20)
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


def test_first_unread_record_is_read_once_for_each_commit():
    stream = Stream(100)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    world.look()
    world.look()
    assert stream.reads == 1
    world.commit("g", "t", {0: 20})
    found, _ = world.look()
    assert stream.reads == 2
    assert found["lag_seconds", "g", "t"] == (NOW_MS - 20_000) / 1_000


def test_records_of_a_bounded_number_of_partitions_are_read_for_a_row():
    streams = [Stream(100) for _ in range(3 * PARTITIONS_TIMED)]
    world = World()
    world.add_topic("t", *streams)
    world.commit("g", "t", dict.fromkeys(range(len(streams)), 5))
    world.look()
    assert sum(stream.reads for stream in streams) == PARTITIONS_TIMED


def test_record_on_disk_is_known_at_a_later_page():
    stream = Stream(100, on_disk=True)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    assert ("lag_seconds", "g", "t") not in world.look()[0]
    stream.answer()
    assert world.look()[0]["lag_seconds", "g", "t"] == (NOW_MS - 10_000) / 1_000


def test_failed_read_is_tried_again():
    stream = Stream(100, on_disk=True)
    world = World()
    world.add_topic("t", stream)
    world.commit("g", "t", {0: 10})
    world.look()
    stream.answer(StorageError("damaged"))
    world.look()
    stream.answer()
    assert ("lag_seconds", "g", "t") in world.look()[0]


@pytest.mark.parametrize("pages", [1, 3])
def test_reads_from_disk_under_way_are_bounded(pages):
    streams = [Stream(100, on_disk=True) for _ in range(3 * READS_PER_PAGE)]
    world = World()
    for n, stream in enumerate(streams):
        world.add_topic(f"t{n}", stream)
        world.commit("g", f"t{n}", {0: 1})
    for _ in range(pages):
        world.look()
    assert sum(len(stream.waiting) for stream in streams) == READS_PER_PAGE


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
