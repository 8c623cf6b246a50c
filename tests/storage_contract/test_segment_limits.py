"""Limits at which a log begins a new segment, and the spans that its segments report."""

from dataclasses import replace

import pytest

from segments.api import HardState, SegmentLimits, SegmentSpan, StoredEntry
from tests.storage_contract.conftest import SMALL, DiskHarness, MemoryHarness


@pytest.fixture(params=[DiskHarness, MemoryHarness])
def harness(request, tmp_path):
    made = (
        MemoryHarness(SMALL)
        if request.param is MemoryHarness
        else DiskHarness(SMALL, directory=str(tmp_path / "data"))
    )
    made.start()
    yield made
    made.close()


def write(harness, log, timestamps, size=100):
    """Write an entry of one record for each timestamp, committed and in segments."""
    first, offset = log.last_index + 1, log.next_offset
    entries = [
        StoredEntry(1, first + n, 0, bytes(size), offset + n, 1, timestamp)
        for n, timestamp in enumerate(timestamps)
    ]
    harness.store.append(log, entries)
    harness.store.set_hard_state(log, HardState(1, 0, log.last_index))
    harness.store.submit()
    harness.pump()
    harness.store.checkpoint()
    harness.workers.advance(1_000)


def spans(harness, log):
    found = []
    harness.store.segment_spans(log, found.append)
    harness.pump()
    assert isinstance(found[0], list), found[0]
    return [span for span in found[0] if span.bytes]


def test_segments_say_where_they_end_and_how_young_they_are(harness):
    """Oldest first; together they cover everything that is committed."""
    log = harness.new_log()
    write(harness, log, range(1_000, 1_200))
    found = spans(harness, log)
    assert len(found) > 3
    assert found[-1].end_offset == log.next_offset == 200
    assert [span.end_offset for span in found] == sorted({span.end_offset for span in found})
    for span in found:
        assert span.max_timestamp == 999 + span.end_offset
        assert span.bytes <= SMALL.segment_bytes
    harness.store.append(log, [StoredEntry(1, log.last_index + 1, 0, b"x", 200, 1, 7_000)])
    assert spans(harness, log)[-1].end_offset == 200  # uncommitted entries are not there


def test_log_with_limits_of_its_own_rolls_by_them(harness):
    """A topic may configure smaller segments than the server's."""
    log, other = harness.new_log(), harness.new_log()
    harness.store.set_segment_limits(log, SegmentLimits(1 << 10))
    for one in (log, other):
        write(harness, one, range(100))
    assert len(spans(harness, log)) > 2 * len(spans(harness, other))
    assert all(span.bytes <= 1 << 10 for span in spans(harness, log))


def test_timestamps_too_far_apart_share_no_segment(harness):
    """Measured from a segment's first entry; entries without a timestamp fit anywhere."""
    log = harness.new_log()
    harness.store.set_segment_limits(log, SegmentLimits(1 << 20, span_ms=50))
    write(harness, log, [1_000, -1, 1_050, 1_051, 1_040, 1_101, 1_102])
    ends = [(span.end_offset, span.max_timestamp) for span in spans(harness, log)]
    assert ends == [(3, 1_050), (6, 1_101), (7, 1_102)]


def test_segment_of_an_earlier_life_is_rolled_by_its_first_timestamp(harness):
    """A restarted store looks the segment's first timestamp up in the index, and rolls by it."""
    log = harness.new_log()
    write(harness, log, [1_000, 1_010])
    log = harness.reopen()
    harness.store.set_segment_limits(log, SegmentLimits(1 << 20, span_ms=50))
    write(harness, log, [1_049, 1_060])
    assert [span.end_offset for span in spans(harness, log)] == [3, 4]


def test_log_that_is_empty_has_nothing_to_retain(harness):
    log = harness.new_log()
    found = []
    harness.store.segment_spans(log, found.append)
    harness.pump()
    assert found == [[SegmentSpan(0, 0, -1)]]


def test_segment_that_one_flush_begins_and_seals_knows_its_largest_timestamp(tmp_path):
    """Timestamps in no order: the sealed segments report the largest, the newest none yet."""
    options = replace(SMALL, checkpoint_entries=10**9, checkpoint_bytes=1 << 30)
    harness = DiskHarness(options, directory=str(tmp_path / "data"))
    harness.start()
    log = harness.new_log()
    times = [1_000 + n * 37 % 101 for n in range(200)]
    write(harness, log, times)
    assert len(log.segments) > 3
    ends = [*(segment.first_index for segment in log.segments[1:]), 201]
    known = [segment.sealed and segment.sealed.max_timestamp for segment in log.segments]
    largest = [
        max(times[segment.first_index - 1 : end - 1])
        for segment, end in zip(log.segments, ends, strict=True)
    ]
    assert known == [*largest[:-1], None]
    harness.close()
