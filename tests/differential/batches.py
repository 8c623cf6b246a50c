"""Record batches to send, valid and broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any

from vdl.records.batch import BatchFields, Record, build_batch, seal

TIME_MS = 1_700_000_000_000
"""Timestamp of the first record; each next one is a millisecond later."""

I16, I32, I64 = Struct(">h"), Struct(">i"), Struct(">q")
LENGTH_AT, MAGIC_AT, CRC_AT, ATTRIBUTES_AT, DELTA_AT = 8, 16, 17, 21, 23
MAX_TIME_AT, COUNT_AT = 35, 57


def batch(values: Iterable[bytes], *, time_ms: int = TIME_MS, **fields: Any) -> bytes:
    """Return a valid batch of records with these values, and keys `k`."""
    records = [Record(b"k", value, timestamp=time_ms + at) for at, value in enumerate(values)]
    return bytes(build_batch(records, BatchFields(**fields)))


def changed(good: bytes, *changes: tuple[Struct, int, int], sealed: bool = True) -> bytes:
    """Return the batch with numbers overwritten, and a matching CRC if `sealed`."""
    view = bytearray(good)
    for form, at, value in changes:
        form.pack_into(view, at, value)
    if sealed:
        seal(view)
    return bytes(view)


def flipped(good: bytes, at: int) -> bytes:
    """Return the batch with one bit wrong."""
    view = bytearray(good)
    view[at] ^= 1
    return bytes(view)


GOOD = batch([b"a", b"b", b"c"])

BROKEN: dict[str, Callable[[], bytes]] = {
    "empty records": lambda: b"",
    "one byte": lambda: b"\0",
    "a header and no more": lambda: GOOD[:61],
    "half a batch": lambda: GOOD[:-3],
    "bytes behind it": lambda: GOOD + b"\0\0\0",
    "two batches": lambda: GOOD + GOOD,
    "a flipped bit": lambda: flipped(GOOD, len(GOOD) - 1),
    "a wrong sum": lambda: flipped(GOOD, CRC_AT),
    "magic 3": lambda: changed(GOOD, (Struct(">b"), MAGIC_AT, 3)),
    "magic -1": lambda: changed(GOOD, (Struct(">b"), MAGIC_AT, -1)),
    "length too small": lambda: changed(GOOD, (I32, LENGTH_AT, 10)),
    "length too large": lambda: changed(GOOD, (I32, LENGTH_AT, 1 << 20)),
    "negative length": lambda: changed(GOOD, (I32, LENGTH_AT, -1)),
    "no record counted": lambda: changed(GOOD, (I32, COUNT_AT, 0)),
    "negative count": lambda: changed(GOOD, (I32, COUNT_AT, -1)),
    "one record too few counted": lambda: changed(GOOD, (I32, COUNT_AT, 2), (I32, DELTA_AT, 1)),
    "one record too many counted": lambda: changed(GOOD, (I32, COUNT_AT, 4), (I32, DELTA_AT, 3)),
    "a last offset that does not fit": lambda: changed(GOOD, (I32, DELTA_AT, 5)),
    "a base offset": lambda: changed(GOOD, (I64, 0, 77)),
    "codec 5": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 5)),
    "codec 7": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 7)),
    "gzip that is none": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 1)),
    "zstd that is none": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 4)),
    "said to be LogAppendTime": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 8)),
    "a control batch": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 0x20)),
    "a transactional batch": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 0x10)),
    "an unused attribute": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 0x100)),
    "a delete horizon": lambda: changed(GOOD, (I16, ATTRIBUTES_AT, 0x40)),
    "a wrong largest time": lambda: changed(GOOD, (I64, MAX_TIME_AT, 5)),
    "no time": lambda: batch([b"a"], time_ms=-1),
    "a time below nought": lambda: batch([b"a"], time_ms=-7),
    "a time far ahead": lambda: batch([b"a"], time_ms=1 << 52),
    "too large": lambda: batch([b"x" * 1_100_000]),
}
"""Batches that a producer should not send, and some that it may."""
