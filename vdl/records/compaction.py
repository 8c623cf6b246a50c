"""Compaction of a partition's batches: only the newest record of each key is kept.

`BatchCleaner` implements `segments.api.RecordCleaner`. The rules are those of Kafka's cleaner,
except where noted:

* A record is removed if a later scanned entry has a record with the same key. A record without a
  key is removed: it was written before its topic was compacted.
* A deletion marker, a record without a value, is removed if its entry is within the leader's limit:
  `delete.retention.ms` after every replica removed the records that it deletes. Kafka writes that
  time into the batch (KIP-534), because each of its replicas decides independently.
* Base offset, last offset delta and timestamps of a batch are kept, so the remaining records are
  copied unchanged. The codec is kept as well, unless the remaining records would compress to less
  than readers accept.
* A batch without remaining records becomes an empty one, a header, while its sequence numbers may
  be needed: it is among the last `WINDOW_BATCHES` of its producer. So the compacted log yields the
  same windows as the original one. Otherwise the batch is removed, except for the very last one:
  readers behind the other batches must find the end.
* A batch that cannot be read is kept unchanged. Its keys are unknown, so no later deletion marker
  is removed: a record in the batch might need it.
* All transactions in the scanned entries have ended (`Compact` ensures that). Records of an aborted
  one are removed, and supersede nothing. The header of its first batch is kept for as long as the
  partition's state lists the transaction, so the compacted log yields the same list as the state.
* A transaction marker is kept while anything of its transaction is, or, if it was aborted, while
  the list has it. After that it is removed like a deletion marker. The last marker of each producer
  is kept: it has the producer's epoch.

Short keys are compared as they are, longer ones by 128 bits of BLAKE2b with a random key for each
compaction, so a client cannot construct two keys with the same digest. The result does not depend
on the random key.

Memory is bounded by `keys_max`: see `scan`. At most one batch is held decompressed.

Does not depend on logs, files, replicas, or on when a topic is compacted.
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
"""Number of batches that a partition remembers of a producer (`vdl.state.producers`)."""
PRODUCERS_MAX = 32_768
"""Number of producers whose last batches are kept; the same as a partition remembers."""
KEYS_MAX = 1 << 19
"""Maximum number of keys in one pass, which take about 90 MB."""
_DIGEST_BYTES = 16
_COUNT_AT = 57
_LENGTH_AT = 8
_CODEC_AT = 22
"""Low byte of the attributes."""


class EntryLike(Protocol):
    """The properties of a log entry that compaction uses."""

    data: Buffer

    @property
    def index(self) -> Index: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def records(self) -> int: ...


class Aborted(Protocol):
    """An aborted transaction: its producer's records in [first_offset, last_offset)."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class _Last:
    """Newest entries of one producer."""

    __slots__ = ("epoch", "indexes", "is_open", "marker")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.indexes: list[int] = []
        """Indexes of its batches in this epoch."""
        self.marker = 0
        """Index of its last marker; 0 if there is none."""
        self.is_open = False
        """True while its transaction has no marker."""


class LastBatches:
    """Entries with the last batches and the last marker of each producer.

    The result is the same with and without the entries that hold other batches.
    `vdl.state.producers` remembers the same batches.
    """

    def __init__(self) -> None:
        self._producers: OrderedDict[int, _Last] = OrderedDict()
        """By producer id; the latest writer is last."""

    def note(self, header: BatchHeader, index: int) -> None:
        """Record a batch or marker of a producer, in log order."""
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
        """Return the indexes of these entries."""
        return frozenset(
            n for known in self._producers.values() for n in (*known.indexes, known.marker)
        )


class BatchCleaner:
    """Cleaner for one compaction of one log: see the module and `segments.api.RecordCleaner`."""

    def __init__(self, *, keys_max: int = KEYS_MAX, aborted: Iterable[Aborted] = ()) -> None:
        """Create a cleaner. `aborted` has all transactions that the partition's state lists."""
        self._keys_max = keys_max
        self._listed: Iterable[Aborted] | None = aborted
        """Not sorted by producer yet.

        Sorting a long list takes long and is left to the cleaning thread.
        """
        self._aborted: dict[int, tuple[array[int], array[int]]] = {}
        """Producer id → ascending first offsets, and last offsets."""
        self._written: set[int] = set()
        """Producers with a remaining batch of their current transaction in cleaned entries."""
        self._cleaned = 0
        """Index of the last entry cleaned in this pass."""
        self._cleaned_marker: Buffer | None = None
        """Result for that entry, if it is a marker."""
        self._secret = os.urandom(_DIGEST_BYTES)
        self._newest: dict[bytes, int] = {}
        """Key → offset of its newest record, in this pass."""
        self._last_batches = LastBatches()
        self._kept: frozenset[int] | None = None
        self._shown = 0
        """Index of the last entry scanned."""
        self._last = 0
        """Index of the last entry with a batch."""
        self._is_any_unread = False
        """True if a batch in this pass could not be read."""

    def scan(self, entries: Sequence[EntryLike], *, keys_from: int) -> Index:
        """See `RecordCleaner.scan`."""
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
            # If a batch is unreadable, all its records are kept; those before the fault supersede
            # others.
            found, _ = places(records, header.count)
            newest, digest, base_offset = self._newest, self._digest, header.base_offset
            for _, _, delta, at, length, _ in PLACE.iter_unpack(found):
                if length >= 0:
                    key = records[at : at + length]
                    newest[key if length < _DIGEST_BYTES else digest(key)] = base_offset + delta

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=_DIGEST_BYTES, key=self._secret).digest()

    def next_pass(self) -> None:
        """See `RecordCleaner.next_pass`."""
        self._newest = {}
        self._is_any_unread = False
        self._written = set()
        self._cleaned = 0

    def clean(self, entry: EntryLike, *, markers_upto: int) -> Buffer | None:
        """See `RecordCleaner.clean`."""
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
        """Return the rest of a marker's entry.

        A segment is cleaned again from its beginning once the first entry that loses data is found.
        So earlier cleaned entries were kept unchanged, except possibly the last one.
        """
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
        """Return True if an entry must be kept, whatever its content."""
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
        """Return the first offset of the aborted transaction of a batch; -1 if it is in none."""
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
        """Return the batch with the remaining records, None if all remain, empty if none does.

        Raise CorruptBatch if the records cannot be read.
        """
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
        # The removed records may have kept the compressed size from becoming too small.
        codec, packed = compress_readably(Compression(header.codec), b"".join(parts))
        left[_CODEC_AT] = left[_CODEC_AT] & ~CODEC_MASK | codec
        left += packed
        return _finished(left, count)


def _payload(header: BatchHeader, data: memoryview) -> memoryview:
    """Return the uncompressed records. Raise CorruptBatch if that fails."""
    try:
        return decompress(Compression(header.codec), data[HEADER_BYTES:])
    except (CorruptCompression, ValueError) as error:
        raise CorruptBatch("compressed records", HEADER_BYTES) from error


def _emptied(data: memoryview) -> bytearray:
    """Return the batch without records, with the rest of its header.

    As in Kafka, the codec is cleared: no codec produces empty output.
    """
    batch = bytearray(data[:HEADER_BYTES])
    batch[_CODEC_AT] &= ~CODEC_MASK
    return _finished(batch, 0)


def _finished(batch: bytearray, count: int) -> bytearray:
    """Set the batch's length and record count, and seal it."""
    batch[_LENGTH_AT : _LENGTH_AT + 4] = (len(batch) - LENGTH_FROM).to_bytes(4, "big")
    batch[_COUNT_AT : _COUNT_AT + 4] = count.to_bytes(4, "big")
    seal(batch)
    return batch
