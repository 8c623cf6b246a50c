"""Checks of the records in a produced batch, before the append: on the loop if that is quick, else
in a thread that only computes.

`check` gives a verdict at once, or says that the batch must leave the loop. Then `check_later`
gives it, and the caller keeps the order of what follows. Rules and codes are Kafka's
(`LogValidator`): unreadable records are INVALID_RECORD; well-formed records that are not allowed
are named one by one, as INVALID_TIMESTAMP or INVALID_RECORD (KIP-467). Compressed data that no
client can read, or that becomes more than any of them could, is INVALID_RECORD; Kafka says
UNKNOWN_SERVER_ERROR.

Message sets of clients before 0.11 become a batch here (`convert`, `convert_later`), under the same
rules and bounds.

A topic may ask for a codec (`compression.type`). Then what is not compressed so is compressed anew,
in the same step: the records are at hand there, and known to be sound. A batch that becomes more
than `OUTPUT_BYTES_MAX` keeps its producer's.

Bounds over all connections:

* `CHECKS_AT_ONCE` batches are checked in threads at a time, each decompressed into a buffer of
  `OUTPUT_BYTES_MAX`. No more is ever held decompressed; the buffers are reused.
* What that has no room for is decompressed and walked piece by piece (`_LongCheck`), one batch at a
  time. Such a check may take seconds, so it gives its thread back after each `SLICE_BYTES`: those
  that are quick never wait for all of it.
* Threads take batches in turns between those who sent them: one that sends many, or expensive
  ones, keeps others waiting for one batch.
* Batches that wait for a thread are held as they were sent, `WAITING_BYTES_MAX` in all, of which
  nobody has more than it leaves free (`kafka/shares.py`). From there on, `has_its_share` says that
  no further Produce of that asker may start. What is compressed counts as
  `COMPRESSED_BYTES_COUNTED` at least, so that what waits cannot become more than a hundred times as
  much.

Must not know: requests, connections, logs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from mmap import PAGESIZE, mmap
from typing import Any, NamedTuple

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.fair_queue import FairQueue
from vdl.kafka.host import Compute
from vdl.kafka.shares import Shares
from vdl.records import legacy
from vdl.records import walk as record_walk
from vdl.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    BatchHeader,
    read_header,
    recompressed,
)
from vdl.records.compression import (
    OUTPUT_BYTES_MAX,
    Compression,
    CorruptCompression,
    decompress_into,
)
from vdl.records.inflation import INFLATED_BYTES_MAX, Inflated, inflated
from vdl.records.walk import (
    FAULT_TEXTS,
    IS_NATIVE,
    OUT_OF_TIME,
    Fault,
    Refused,
    Slot,
    begin_parts,
    walk_part,
)

CHECKS_AT_ONCE = 2
"""Times `OUTPUT_BYTES_MAX` is the most that is held decompressed."""

LARGE_BYTES_COUNTED = 16 << 20
"""As so much a larger batch counts that waits: others are not to wait for it. One at a time comes
here (`has_large`), and it is part of its request, which is counted whole."""

WAITING_BYTES_MAX = 64 << 20
"""Bytes of batches, as they were sent, that may wait for a thread or be in one."""

COMPRESSED_BYTES_COUNTED = OUTPUT_BYTES_MAX // 100
"""As so much the smallest compressed batch counts that waits."""

SLICE_BYTES = 16 << 20
"""Of a long check, decompressed: some milliseconds, as of the longest one that is not."""

WINDOW_BYTES = 1 << 20
"""What of it is decompressed at a time. A header's name is not longer."""

LOOP_COMPRESSED_BYTES = 32 << 10
LOOP_DECOMPRESSED_BYTES = 128 << 10
"""What is compressed is checked on the loop when it is no larger than this, before and after."""

LOOP_RECOMPRESSED_BYTES = 16 << 10
"""Records that get another codec on the loop, without compression: half a millisecond of gzip."""

LOOP_BYTES_IN_PYTHON = 16 << 10
"""What is checked on the loop where there is only the walk in Python; and message sets of old
clients, before and after they are decompressed."""

SCRATCH_KEPT_BYTES = 2 << 20
"""A larger part of a buffer than this goes back to the system after its use."""

RECORD_ERRORS_IN_TEXT = 3
"""As many as Kafka has in the text for the whole batch."""


class Codec(NamedTuple):
    """How a topic keeps its batches."""

    compression: Compression
    level: int | None
    """See `compress`."""
    bytes_max: int
    """The largest batch, as it is then."""


class Recompressed(NamedTuple):
    """A batch that is sound and has another codec now."""

    max_timestamp: int
    batch: memoryview
    header: BatchHeader


Verdict = int | Recompressed | BaseException
"""The largest timestamp of the records (ms, -1 for none), if the batch is taken as it is; what is
taken in its place; a KafkaError; or what should not be."""

Bounds = tuple[int, int, bool]
"""What a partition asks of each record: the oldest and the newest timestamp (ms), both inclusive;
whether it must have a key. A plain tuple, because one is made for each batch."""


_NOT_DECOMPRESSED = "the records cannot be decompressed, or become too large"
_NO_ROOM = object()
"""A batch is corrupt, or becomes more than there is room for."""


class RecordsRefused(KafkaError):
    """Records that are well formed and not wanted: (index, why) of each (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class _Waiting:
    """A batch that left the loop: its bytes as they were sent, what is done with them in a thread,
    and who gets the outcome."""

    __slots__ = ("asker", "begin_long", "bytes", "done", "job")

    def __init__(
        self,
        asker: str,
        size: int,
        job: Callable[[Scratch], Any],
        done: Callable[[Any], None],
        begin_long: Callable[[], _LongCheck] | None,
    ) -> None:
        self.asker = asker
        self.bytes = size
        self.job = job
        self.done = done
        self.begin_long = begin_long
        """Where there may be no room for what it becomes."""


class _LongCheck:
    """The check of a batch that becomes more than there is room for, piece by piece."""

    __slots__ = ("_batch", "_bounds", "_header", "_left", "_refused", "_rest", "_room", "_state",
                 "_stream")  # fmt: skip

    def __init__(self, batch: memoryview, header: BatchHeader, bounds: Bounds) -> None:
        self._batch = batch
        self._header = header
        self._bounds = bounds
        self._stream: Inflated | None = None
        self._room = memoryview(b"")
        self._rest = 0
        """Bytes at the beginning of the room that are not walked yet."""
        self._left = INFLATED_BYTES_MAX
        self._state = begin_parts(header.count, header.base_timestamp, *bounds)
        self._refused: list[Refused] = []

    def step(self) -> int | KafkaError | None:
        """A part of it, in a thread; the verdict, or None: there is more to do."""
        try:
            if self._stream is None:
                codec = Compression(self._header.attributes & CODEC_MASK)
                self._stream = inflated(codec, self._batch[HEADER_BYTES:])
                self._room = memoryview(bytearray(WINDOW_BYTES))
            until = self._left - SLICE_BYTES
            while self._left > until:
                if self._step(self._stream):
                    return self._verdict()
        except CorruptCompression:
            return KafkaError(ErrorCode.INVALID_RECORD, _NOT_DECOMPRESSED)
        except KafkaError as error:
            return error
        return None

    def _step(self, stream: Inflated) -> bool:
        """Walk the next piece; whether it is the last. Raises KafkaError, CorruptCompression."""
        room, rest = self._room, self._rest
        size = stream.readinto(room[rest:])
        self._left -= size
        if self._left < 0:
            raise KafkaError(ErrorCode.INVALID_RECORD, _NOT_DECOMPRESSED)
        end = rest + size
        fault, walked, refused = walk_part(room[:end], self._state, not size)
        self._refused += refused
        if not fault and not walked and end == len(room):
            fault = Fault.HEADER_NAME
        if fault:
            index = self._state[Slot.INDEX]
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {index}: {FAULT_TEXTS[fault]}")
        self._rest = end - walked
        room[: self._rest] = room[walked:end]
        return not size

    def _verdict(self) -> int:
        """Of the whole. Raises KafkaError."""
        if self._refused:
            raise _refusal(tuple(self._refused), self._bounds)
        return self._state[Slot.MAX_TIMESTAMP]


class Scratch:
    """Room for what one batch decompresses to. Its pages are taken as they are written."""

    __slots__ = ("_map", "view")

    def __init__(self) -> None:
        self._map = mmap(-1, OUTPUT_BYTES_MAX)
        self.view = memoryview(self._map)

    def trim(self) -> None:
        """Give back what a large batch took."""
        from mmap import MADV_DONTNEED

        kept = -(-SCRATCH_KEPT_BYTES // PAGESIZE) * PAGESIZE
        self._map.madvise(MADV_DONTNEED, kept, OUTPUT_BYTES_MAX - kept)


class RecordChecks:
    """The checks of one server. `loop_bytes`: what is not compressed is checked on the loop when it
    is no larger."""

    __slots__ = (
        "_compute",
        "_convert_scratch",
        "_is_long_running",
        "_large",
        "_long",
        "_loop_bytes",
        "_loop_compressed_bytes",
        "_loop_scratch",
        "_running",
        "_scratches",
        "_waiting",
        "_waiting_bytes",
        "is_short",
        "left_loop",
        "long",
        "recompressed",
        "refused",
    )

    def __init__(self, compute: Compute, loop_bytes: int) -> None:
        self._compute = compute
        self._loop_bytes = loop_bytes if IS_NATIVE else min(loop_bytes, LOOP_BYTES_IN_PYTHON)
        self._loop_compressed_bytes = min(loop_bytes, LOOP_COMPRESSED_BYTES)
        self._loop_scratch = memoryview(b"")
        self._convert_scratch = memoryview(b"")
        self._scratches: list[Scratch] = []
        self._running = 0
        self._waiting: FairQueue[_Waiting] = FairQueue()
        self._long: FairQueue[_Waiting] = FairQueue()
        """What is to be checked piece by piece."""
        self._is_long_running = False
        self._large = 0
        self._waiting_bytes = Shares(WAITING_BYTES_MAX)
        self.is_short = False
        """Whether so much waits for the threads that an asker may have its share."""
        self.recompressed = 0
        """Batches that got the codec of their topic."""
        self.left_loop = 0
        """Batches that were checked in a thread."""
        self.long = 0
        """Batches that were checked piece by piece."""
        self.refused = 0
        """Batches whose inside was not what it should be."""

    @property
    def has_large(self) -> bool:
        """Whether a batch is in its check that is large: no other should come."""
        return self._large > 0

    def has_its_share(self, asker: str) -> bool:
        """Return whether so much of the asker waits for the threads that nothing further of it may
        come. What comes in one request is taken whole: it may be more than was free."""
        return self._waiting_bytes.has_share(asker)

    def check(
        self,
        batch: memoryview,
        header: BatchHeader,
        bounds: Bounds,
        wanted: Codec | None = None,
    ) -> int | Recompressed | None:
        """The verdict on the records, whose header is checked already; None when this is for
        `check_later`. `wanted`: the topic's codec, None to keep the producer's. Raises
        KafkaError."""
        codec = header.attributes & CODEC_MASK
        changes = wanted is not None and wanted.compression != codec
        if changes and len(batch) > LOOP_RECOMPRESSED_BYTES:
            return None
        records = batch[HEADER_BYTES:]
        if codec:
            if len(batch) > self._loop_compressed_bytes:
                return None
            if not self._loop_scratch:
                self._loop_scratch = memoryview(bytearray(LOOP_DECOMPRESSED_BYTES))
            try:
                size = decompress_into(Compression(codec), records, self._loop_scratch)
            except CorruptCompression:
                return None  # corrupt, or larger than the room here
            records = self._loop_scratch[:size]
        elif len(batch) > self._loop_bytes:
            return None
        if changes and len(records) > LOOP_RECOMPRESSED_BYTES:
            return None
        try:
            max_timestamp = judge(records, header, bounds, release=False)
            if not changes:
                return max_timestamp
            assert wanted is not None, header
            self.recompressed += 1
            return _recompressed(batch, records, max_timestamp, wanted)
        except KafkaError:
            self.refused += 1
            raise

    def check_later(
        self,
        batch: memoryview,
        header: BatchHeader,
        bounds: Bounds,
        done: Callable[[Verdict], None],
        wanted: Codec | None = None,
        *,
        asker: str = "",
    ) -> None:
        """As `check`, whatever the size, in the turn of `asker`; `done` gets the verdict. Batches
        come out in any order."""
        size = len(batch)
        if header.attributes & CODEC_MASK:
            size = max(size, COMPRESSED_BYTES_COUNTED)
        job = partial(_judge_in_thread, batch, header, bounds, wanted)
        self._leave_loop(size, job, done, asker, partial(_LongCheck, batch, header, bounds))

    def convert(
        self, records: memoryview, bytes_max: int, bounds: Bounds, wanted: Codec | None = None
    ) -> memoryview | None:
        """The batch that a message set of magic 0 or 1 is stored as; None when this is for
        `convert_later`. `bytes_max`: of a message, and of the batch. Raises KafkaError."""
        if len(records) > LOOP_BYTES_IN_PYTHON:
            return None
        if not self._convert_scratch:
            self._convert_scratch = memoryview(bytearray(LOOP_BYTES_IN_PYTHON))
        try:
            scratch = self._convert_scratch
            return _convert(records, bytes_max, bounds, wanted, scratch, release=False)
        except CorruptCompression:
            return None  # corrupt, or larger than the room here
        except KafkaError:
            self.refused += 1
            raise

    def convert_later(
        self,
        records: memoryview,
        bytes_max: int,
        bounds: Bounds,
        done: Callable[[memoryview | BaseException], None],
        wanted: Codec | None = None,
        *,
        asker: str = "",
    ) -> None:
        """As `convert`, whatever the size, in the turn of `asker`; `done` gets the batch, or what
        speaks against it."""
        job = partial(_convert_in_thread, records, bytes_max, bounds, wanted)
        self._leave_loop(max(len(records), COMPRESSED_BYTES_COUNTED), job, done, asker)

    def _leave_loop(
        self,
        size: int,
        job: Callable[[Scratch], Any],
        done: Callable[[Any], None],
        asker: str,
        begin_long: Callable[[], _LongCheck] | None = None,
    ) -> None:
        self.left_loop += 1
        self._large += size > LARGE_BYTES_COUNTED
        self._waiting.put(asker, _Waiting(asker, size, job, done, begin_long))
        self._count_waiting(asker, size)
        self._start()

    def _count_waiting(self, asker: str, change: int) -> None:
        waiting = self._waiting_bytes
        change = max(-LARGE_BYTES_COUNTED, min(change, LARGE_BYTES_COUNTED))
        waiting.change(asker, change)
        self.is_short = 2 * waiting.used >= waiting.limit

    def _start(self) -> None:
        while self._waiting and self._running < CHECKS_AT_ONCE:
            one = self._waiting.take()
            self._running += 1
            scratch = self._scratches.pop() if self._scratches else Scratch()
            self._compute(partial(one.job, scratch), partial(self._done, one, scratch))

    def _done(self, one: _Waiting, scratch: Scratch, outcome: Any) -> None:
        self._running -= 1
        self._scratches.append(scratch)
        if outcome is _NO_ROOM:
            self._long.put(one.asker, one)
            self._start_long()
            self._start()
            return
        self._ended(one, outcome)

    def _start_long(self) -> None:
        if self._long and not self._is_long_running:
            one = self._long.take()
            assert one.begin_long is not None, one.job
            self._is_long_running = True
            self.long += 1
            self._step(one, one.begin_long())

    def _step(self, one: _Waiting, check: _LongCheck) -> None:
        self._compute(check.step, partial(self._stepped, one, check))

    def _stepped(self, one: _Waiting, check: _LongCheck, outcome: Any) -> None:
        if outcome is None:
            self._step(one, check)
            return
        self._is_long_running = False
        self._start_long()
        self._ended(one, outcome)

    def _ended(self, one: _Waiting, outcome: Any) -> None:
        self._large -= one.bytes > LARGE_BYTES_COUNTED
        self._count_waiting(one.asker, -one.bytes)
        self.refused += isinstance(outcome, KafkaError)
        self.recompressed += isinstance(outcome, Recompressed)
        self._start()
        one.done(outcome)


def judge(records: memoryview, header: BatchHeader, bounds: Bounds, *, release: bool) -> int:
    """The largest timestamp of a batch's records, which are not compressed. Raises KafkaError."""
    fault, index, max_timestamp, refused = record_walk.walk(
        records,
        header.count,
        header.base_timestamp,
        *bounds,
        release,
    )
    if fault:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record {index}: {FAULT_TEXTS[fault]}")
    if refused:
        raise _refusal(refused, bounds)
    return max_timestamp


def _judge_in_thread(
    batch: memoryview,
    header: BatchHeader,
    bounds: Bounds,
    wanted: Codec | None,
    scratch: Scratch,
) -> Verdict | object:
    """The verdict, or `_NO_ROOM`. Off the loop."""
    records = batch[HEADER_BYTES:]
    codec = header.attributes & CODEC_MASK
    try:
        if not codec:
            return _judge_and_compress(batch, header, bounds, wanted, records)
        size = OUTPUT_BYTES_MAX
        try:
            size = decompress_into(Compression(codec), records, scratch.view)
            return _judge_and_compress(batch, header, bounds, wanted, scratch.view[:size])
        except CorruptCompression:
            return _NO_ROOM
        finally:
            if size > SCRATCH_KEPT_BYTES:
                scratch.trim()
    except KafkaError as error:
        return error


def _convert(
    records: memoryview,
    bytes_max: int,
    bounds: Bounds,
    wanted: Codec | None,
    scratch: memoryview,
    *,
    release: bool,
) -> memoryview:
    """The checked batch of a message set. Raises KafkaError, CorruptCompression."""
    taken = legacy.take(records, scratch, bytes_max=bytes_max)
    max_timestamp = judge(memoryview(taken.payload), taken.header(), bounds, release=release)
    if wanted is not None and wanted.compression != taken.codec:
        taken.codec = Compression.NONE
        plain = memoryview(taken.batch(max_timestamp))
        if wanted.compression != Compression.NONE:
            return _recompressed(plain, memoryview(taken.payload), max_timestamp, wanted).batch
        batch = plain
    else:
        batch = memoryview(taken.batch(max_timestamp))
    if len(batch) > bytes_max:
        raise legacy.too_large_for_a_batch()
    return batch


def _convert_in_thread(
    records: memoryview, bytes_max: int, bounds: Bounds, wanted: Codec | None, scratch: Scratch
) -> memoryview | KafkaError:
    """The batch, or why there is none. Off the loop."""
    try:
        return _convert(records, bytes_max, bounds, wanted, scratch.view, release=True)
    except CorruptCompression:
        return KafkaError(ErrorCode.INVALID_RECORD, _NOT_DECOMPRESSED)
    except KafkaError as error:
        return error
    finally:
        scratch.trim()


def _judge_and_compress(
    batch: memoryview,
    header: BatchHeader,
    bounds: Bounds,
    wanted: Codec | None,
    records: memoryview,
) -> int | Recompressed:
    """The verdict on records without their compression. Raises KafkaError."""
    max_timestamp = judge(records, header, bounds, release=True)
    if wanted is None or wanted.compression == header.attributes & CODEC_MASK:
        return max_timestamp
    return _recompressed(batch, records, max_timestamp, wanted)


def _recompressed(
    batch: memoryview, records: memoryview, max_timestamp: int, codec: Codec
) -> Recompressed:
    """The batch as the topic keeps it. Raises MESSAGE_TOO_LARGE: it has grown too much."""
    made = memoryview(recompressed(batch, records, codec.compression, codec.level))
    if len(made) > codec.bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {len(made)} bytes as the topic compresses it, more than allowed",
        )
    return Recompressed(max_timestamp, made, read_header(made))


def _refusal(refused: tuple[Refused, ...], bounds: Bounds) -> RecordsRefused:
    """The error for records that are not wanted, in Kafka's words."""
    errors = []
    for index, why, timestamp in refused:
        if why == OUT_OF_TIME:
            text = (
                f"Timestamp {timestamp} of message with offset {index} is out of range. "
                f"The timestamp should be within [{bounds[0]}, {bounds[1]}]"
            )
        else:
            text = "Compacted topic cannot accept message without key"
        errors.append((index, text))
    if any(why == OUT_OF_TIME for _, why, _ in refused):
        message = "One or more records have been rejected due to invalid timestamp"
        return RecordsRefused(ErrorCode.INVALID_TIMESTAMP, message, errors)
    first = "; ".join(f"record {index}: {text}" for index, text in errors[:RECORD_ERRORS_IN_TEXT])
    message = f"One or more records have been rejected due to {len(errors)} record errors: {first}"
    return RecordsRefused(ErrorCode.INVALID_RECORD, message, errors)
