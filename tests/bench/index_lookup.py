"""Cost of a look-up in a large index: `python -m tests.bench.index_lookup --entries 100000000`.

Writes a synthetic log's index (40 bytes an entry, so 4 GB for a hundred million), with batches of
one to nine records, in a directory of its own that is removed afterwards; then looks up random
offsets, warm, and prints CPU and wall time for each; and the same for timestamps: the first segment
with one, among segments in no time order, and the Idx within it. Not a test: machines differ.
"""

import argparse
import random
import tempfile
import time
from bisect import bisect_right
from functools import partial
from pathlib import Path

from segments.io.fs import RealFileSystem
from segments.log.index import encode_index_header, pack_idx
from segments.log.largest_timestamps import LargestTimestamps
from segments.log.segment import LogFiles
from segments.log.segment_header import SegmentInfo

FRAME_BYTES = 1000
SEGMENT_BYTES = 64 << 20
INDEX_ENTRIES = 102_400
LOOKUPS = 20_000
SEGMENTS = 160_000
"""Ten terabytes of segments."""


def build(directory, entries):
    """Return (files, segments, first offset of every thousandth entry, end offset)."""
    files = LogFiles(RealFileSystem(), directory, 1, 9, INDEX_ENTRIES)
    per_segment = SEGMENT_BYTES // FRAME_BYTES
    segments, marks, offset, index = [], [], 0, 1
    for number in range(entries // INDEX_ENTRIES + 1):
        first = number * INDEX_ENTRIES
        rows = bytearray(INDEX_ENTRIES * 40)
        while index < first + INDEX_ENTRIES and index <= entries:
            segment, slot = divmod(index - 1, per_segment)
            if not slot:
                segments.append(SegmentInfo(segment + 1, index, offset))
            if index % 1000 == 0:
                marks.append(offset)
            records = 1 + index * 2654435761 % 9
            pack_idx(
                rows, (index - first) * 40, 1, index, offset, index, 64 + slot * FRAME_BYTES,
                FRAME_BYTES, segment + 1, 1, records, 0,
            )  # fmt: skip
            offset += records
            index += 1
        path = Path(files.index_path(number))
        path.write_bytes(encode_index_header(1, number) + rows)
    return files, segments, marks, offset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    entries = parser.parse_args().entries
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="vdl-index-") as directory:
        files, segments, marks, end = build(directory, entries)
        offsets = [rng.randrange(end) for _ in range(LOOKUPS)]
        for offset in offsets:
            index = files.index_of(segments, offset, 1, entries + 1)
            known = bisect_right(marks, offset)
            assert known * 1000 <= index < known * 1000 + 1000, (offset, index, known)
        cpu, wall = time.process_time(), time.perf_counter()
        for offset in offsets:
            files.index_of(segments, offset, 1, entries + 1)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        print(
            f"{entries} entries, {len(segments)} segments: "
            f"{cpu / LOOKUPS * 1e6:.1f} us CPU, {wall / LOOKUPS * 1e6:.1f} us a look-up"
        )
        look_up_times(files, segments, entries, rng)


def look_up_times(files, segments, entries, rng):
    """Measure look-ups by timestamp.

    In the index an entry's timestamp is its number. The segment, of 160,000 without a time order,
    is found in memory.
    """
    ends = [*(segment.first_index for segment in segments[1:]), entries + 1]
    maxima = LargestTimestamps([rng.randrange(entries) for _ in range(SEGMENTS)])
    asked = [(rng.randrange(SEGMENTS), rng.randrange(entries)) for _ in range(LOOKUPS)]
    cpu = time.process_time()
    for start, timestamp in asked:
        maxima.first(start, timestamp)
    in_memory = time.process_time() - cpu
    cpu = time.process_time()
    for _, timestamp in asked:
        place = bisect_right(ends, timestamp)
        files.search(segments[place].first_index, ends[place], partial(_is_at, timestamp))
    on_disk = time.process_time() - cpu
    print(
        f"by time: {in_memory / LOOKUPS * 1e6:.1f} us CPU for one of {SEGMENTS} segments, "
        f"{on_disk / LOOKUPS * 1e6:.1f} us CPU for its Idx"
    )


def _is_at(timestamp, idx):
    return idx.max_timestamp >= timestamp


if __name__ == "__main__":
    main()
