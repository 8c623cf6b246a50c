"""What compaction keeps of a partition's batches: the newest record of each key.

`BatchCleaner` is what `segments.api.RecordCleaner` asks for. Rules, as Kafka's cleaner has them but
where it says so:

* A record goes when a later one of the entries that were looked at has the same key. One without a
  key goes: it was written before its topic was compacted.
* A deletion marker, a record without a value, goes when it is in an entry of which the leader says
  so: `delete.retention.ms` after every replica lost what it deletes. Kafka writes that time into
  the batch (KIP-534), because each of its replicas decides for itself.
* Base offset, last offset delta and timestamps of a batch stay, so the records that stay are copied
  as they are. The codec stays, too, but where what is left would be too small for its readers.
* A batch of which nothing stays becomes an empty one, a header, while its sequence numbers may be
  asked for: it is among the last `WINDOW_BATCHES` of its producer. So windows that are built from
  the compacted log are those that were built from all of it. Otherwise nothing of it stays, but
  for the very last batch: who reads on behind the others must find where they end.
* A batch that cannot be read stays whole. Nothing is known of its keys, so no deletion marker
  behind it goes: it might be needed for a record in there.
* All transactions that are looked at are over (`Compact` sees to that). Records of an aborted one
  go, and supersede nothing. Of its first batch the header stays, for as long as the partition's
  state lists it: so a list that is built from the compacted log is the one that all have.
* A marker stays while anything of its transaction does, or of an aborted one the list; then it goes
  as a deletion marker does. The last one of each producer stays: it has the producer's epoch.

Short keys are told apart as they are, longer ones by 128 bits of BLAKE2b with a random key of their
own for each compaction, so nobody can write two keys for one. What comes of it depends on no such
number.

Memory is bounded by `keys_max`: see `scan`. The most that is held decompressed is one batch.

Must not know: logs, files, replicas, when a topic is compacted.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Protocol

from ids import NO_INDEX, Index
from vdl.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LENGTH_FROM,
    BatchHeader,
    CorruptBatch,
    read_header,
    seal,
)
from vdl.records.compression import (
    Compression,
    CorruptCompression,
    compress_readably,
    decompress,
)
from vdl.records.walk import PLACE, places

Buffer = bytes | bytearray | memoryview

WINDOW_BATCHES = 5
"""Of a producer, as its partition remembers them (`vdl.state.producers`)."""
PRODUCERS_MAX = 32_768
"""Producers whose last batches are kept, as their partition remembers them."""
KEYS_MAX = 1 << 19
"""Keys of one pass: about 90 MB."""
_DIGEST_BYTES = 16
_COUNT_AT = 57
_LENGTH_AT = 8
_CODEC_AT = 22
"""The low byte of the attributes."""


class EntryLike(Protocol):
    """An entry of a log, as far as it is looked at."""

    data: Buffer

    @property
    def index(self) -> Index: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def records(self) -> int: ...


class Aborted(Protocol):
    """An aborted transaction: what its producer wrote in [first_offset, last_offset)."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class _Last:
    """What of one producer came last."""

    __slots__ = ("epoch", "indexes", "is_open", "marker")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.indexes: list[int] = []
        """Of its batches of this epoch."""
        self.marker = 0
        """Index of its last marker; 0 if there is none."""
        self.is_open = False
        """Its transaction has no marker yet."""


class LastBatches:
    """Which entries hold the last batches and the last marker of each producer. Those are the same,
    whether entries that hold others were shown or not. As `vdl.state.producers` remembers them."""

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Last] = OrderedDict()
        """By producer id; who wrote last is last."""

    def note(self, header: BatchHeader, index: int) -> None:
        """A batch or marker of a producer, behind all that were noted."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        known = self._producers.pop(producer_id, None) or _Last(epoch)
        if known.epoch != epoch:
            known.epoch, known.indexes = epoch, []
        if header.is_control:
            known.marker, known.is_open = index, False
        else:
            known.indexes = [*known.indexes, index][-WINDOW_BATCHES:]
            known.is_open = header.is_transactional
        self._producers[producer_id] = known
        if len(self._producers) > PRODUCERS_MAX:
            self._forget_one()

    def _forget_one(self) -> None:
        for producer_id, known in self._producers.items():
            if not known.is_open:
                del self._producers[producer_id]
                return

    def indexes(self) -> frozenset[int]:
        return frozenset(
            n for known in self._producers.values() for n in (*known.indexes, known.marker)
        )


class BatchCleaner:
    """One compaction of one log: see the module and `segments.api.RecordCleaner`."""

    def __init__(self, *, keys_max: int = KEYS_MAX, aborted: Iterable[Aborted] = ()) -> None:
        """`aborted`: all that the partition's state lists."""
        self._keys_max = keys_max
        self._listed: Iterable[Aborted] | None = aborted
        """Not sorted by producer yet: that takes long for a long list, and is left to the thread
        that cleans."""
        self._aborted: dict[int, tuple[array[int], array[int]]] = {}
        """By producer id: the first offsets and the last ones, rising."""
        self._written: set[int] = set()
        """Producers of whose transaction something stays, as far as entries were cleaned."""
        self._cleaned = 0
        """The last entry that was cleaned in this pass."""
        self._cleaned_marker: Buffer | None = None
        """What was left of it, if it is a marker."""
        self._secret = os.urandom(_DIGEST_BYTES)
        self._newest: dict[bytes, int] = {}
        """Key → offset of its newest record, of this pass."""
        self._last_batches = LastBatches()
        self._kept: frozenset[int] | None = None
        self._shown = 0
        """The last entry that was shown."""
        self._last = 0
        """The last entry with a batch."""
        self._is_any_unread = False
        """In this pass a batch was met that cannot be read."""

    def scan(self, entries: Sequence[EntryLike], *, keys_from: int) -> Index:
        full_at = NO_INDEX
        for entry in entries:
            if not entry.records:
                continue
            data = memoryview(entry.data)
            if entry.index > self._shown:
                self._note(entry, data)
            if entry.index < keys_from or full_at or not data:
                continue
            if len(self._newest) >= self._keys_max:
                full_at = entry.index
            else:
                self._note_keys(entry, data)
        return full_at or (entries[-1].index + 1 if entries else NO_INDEX)

    def _note(self, entry: EntryLike, data: memoryview) -> None:
        self._shown = self._last = entry.index
        self._kept = None
        if data:
            header = read_header(data)
            if header.has_producer_id:
                self._last_batches.note(header, entry.index)

    def _note_keys(self, entry: EntryLike, data: memoryview) -> None:
        header = read_header(data)
        if header.is_control or self._aborted_from(header) >= 0:
            return
        with contextlib.suppress(CorruptBatch):
            records = bytes(_payload(header, data))
            # Of one that cannot be read to its end all records stay: those before the fault count.
            found, _ = places(records, header.count)
            newest, digest, base_offset = self._newest, self._digest, header.base_offset
            for _, _, delta, at, length, _ in PLACE.iter_unpack(found):
                if length >= 0:
                    key = records[at : at + length]
                    newest[key if length < _DIGEST_BYTES else digest(key)] = base_offset + delta

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()

    def next_pass(self) -> None:
        self._newest = {}
        self._is_any_unread = False
        self._written = set()
        self._cleaned = 0

    def clean(self, entry: EntryLike, *, markers_upto: int) -> Buffer | None:
        data = memoryview(entry.data)
        header = read_header(data)
        if header.is_control:
            return self._clean_marker(entry, header, markers_upto)
        left = self._clean_batch(entry, header, data, markers_upto)
        if entry.index > self._cleaned:
            self._cleaned = entry.index
            if header.is_transactional and (left is None or len(left)):
                self._written.add(header.producer_id)
        return left

    def _clean_marker(
        self, entry: EntryLike, header: BatchHeader, markers_upto: int
    ) -> Buffer | None:
        """A segment is cleaned again from its beginning when the first entry is met of which
        something goes. So what was cleaned before has stayed, but for the last one."""
        if entry.index < self._cleaned:
            return None
        if entry.index == self._cleaned:
            return self._cleaned_marker
        stays = (
            header.producer_id in self._written
            or entry.index > markers_upto
            or self._is_needed(entry.index)
        )
        self._written.discard(header.producer_id)
        self._cleaned = entry.index
        self._cleaned_marker = None if stays else b""
        return self._cleaned_marker

    def _clean_batch(
        self, entry: EntryLike, header: BatchHeader, data: memoryview, markers_upto: int
    ) -> Buffer | None:
        aborted_from = self._aborted_from(header)
        if header.count and aborted_from < 0:
            try:
                left = self._clean_records(entry, header, data, markers_upto)
            except CorruptBatch:
                self._is_any_unread = True
                return None
            if left is None or left:
                return left
        if aborted_from != header.base_offset and not self._is_needed(entry.index):
            return b""
        return _emptied(data) if header.count else None

    def _is_needed(self, index: int) -> bool:
        """Whether an entry has to stay, whatever is in it."""
        if self._kept is None:
            self._kept = self._last_batches.indexes()
        return index in self._kept or index == self._last

    def _sort(self, aborted: Iterable[Aborted]) -> None:
        for one in aborted:
            known = self._aborted.get(one.producer_id)
            if known is None:
                known = self._aborted[one.producer_id] = array("q"), array("q")
            known[0].append(one.first_offset)
            known[1].append(one.last_offset)

    def _aborted_from(self, header: BatchHeader) -> int:
        """The first offset of the aborted transaction that a batch belongs to; -1 for none."""
        if not header.is_transactional:
            return -1
        if self._listed is not None:
            self._sort(self._listed)
            self._listed = None
        known = self._aborted.get(header.producer_id)
        if known is None:
            return -1
        firsts, lasts = known
        position = bisect_right(firsts, header.base_offset) - 1
        is_in = position >= 0 and header.base_offset < lasts[position]
        return firsts[position] if is_in else -1

    def _clean_records(
        self, entry: EntryLike, header: BatchHeader, data: memoryview, markers_upto: int
    ) -> Buffer | None:
        """The batch with the records that stay, None when all do, empty when none does. Raises
        CorruptBatch."""
        records = bytes(_payload(header, data))
        found, is_whole = places(records, header.count)
        if not is_whole:
            raise CorruptBatch("records", HEADER_BYTES)
        markers_go = entry.index <= markers_upto and not self._is_any_unread
        newest, digest, base_offset = self._newest, self._digest, header.base_offset
        parts: list[bytes] = []
        count = run_start = run_end = 0
        for start, end, delta, at, length, value in PLACE.iter_unpack(found):
            if length < 0 or (markers_go and value < 0):
                continue
            key = records[at : at + length]
            if length >= _DIGEST_BYTES:
                key = digest(key)
            if newest.get(key, -1) > base_offset + delta:
                continue
            count += 1
            if start != run_end:
                parts.append(records[run_start:run_end])
                run_start = start
            run_end = end
        parts.append(records[run_start:run_end])
        if count == header.count:
            return None
        if not count:
            return b""
        left = bytearray(data[:HEADER_BYTES])
        # What went may have been all that kept the rest from becoming too small.
        codec, packed = compress_readably(Compression(header.codec), b"".join(parts))
        left[_CODEC_AT] = left[_CODEC_AT] & ~CODEC_MASK | codec
        left += packed
        return _finished(left, count)


def _payload(header: BatchHeader, data: memoryview) -> memoryview:
    """The records without their compression. Raises CorruptBatch."""
    try:
        return decompress(Compression(header.codec), data[HEADER_BYTES:])
    except (CorruptCompression, ValueError) as error:
        raise CorruptBatch("compressed records", HEADER_BYTES) from error


def _emptied(data: memoryview) -> bytearray:
    """A batch without records: what is known of it beside them stays. As in Kafka's, nothing is
    compressed: nothing would be no codec's output."""
    batch = bytearray(data[:HEADER_BYTES])
    batch[_CODEC_AT] &= ~CODEC_MASK
    return _finished(batch, 0)


def _finished(batch: bytearray, count: int) -> bytearray:
    """The batch with so many records, sealed."""
    batch[_LENGTH_AT : _LENGTH_AT + 4] = (len(batch) - LENGTH_FROM).to_bytes(4, "big")
    batch[_COUNT_AT : _COUNT_AT + 4] = count.to_bytes(4, "big")
    seal(batch)
    return batch
