"""What a look-up in a large index costs: `python -m tests.bench.index_lookup --entries 100000000`.

Writes a synthetic log's index (40 bytes an entry, so 4 GB for a hundred million), with batches of
one to nine records, in a directory of its own that is removed afterwards; then looks up random
offsets, warm, and prints CPU and wall time for each. Not a test: machines differ.
"""

import argparse
import random
import tempfile
import time
from bisect import bisect_right
from pathlib import Path

from segments.fs import RealFileSystem
from segments.index import encode_index_header, pack_idx
from segments.segment import LogFiles, SegmentInfo

FRAME_BYTES = 1000
SEGMENT_BYTES = 64 << 20
INDEX_ENTRIES = 102_400
LOOKUPS = 20_000


def build(directory, entries):
    """(files, segments, first offset of every thousandth entry, end offset)."""
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


if __name__ == "__main__":
    main()
