"""Checks of the records in a produced batch before the append: small batches on the event loop,
others in a thread that does nothing but compute.

`check` returns a verdict at once, or None if the batch must leave the loop. `check_later` then
delivers the verdict, and the caller keeps the order of the requests that follow. Rules and error
codes are Kafka's (`LogValidator`): unreadable records are INVALID_RECORD; well-formed records that
are not allowed are listed one by one, as INVALID_TIMESTAMP or INVALID_RECORD (KIP-467). Compressed
data that no client could read, or that decompresses to more than any client accepts, is
INVALID_RECORD; Kafka returns UNKNOWN_SERVER_ERROR.

Message sets of clients before 0.11 are converted to a batch here (`convert`, `convert_later`),
under the same rules and bounds.

A topic may require a codec (`compression.type`). A batch with another codec is recompressed in the
same step, because its decompressed and checked records are at hand. A batch that decompresses to
more than `OUTPUT_BYTES_MAX` keeps its producer's codec.

Bounds on time and memory:

* Up to `CHECKS_AT_ONCE` batches are checked in threads at a time, each decompressed into a buffer
  of `OUTPUT_BYTES_MAX`. No more is ever held decompressed; the buffers are reused.
* A batch that does not fit such a buffer is decompressed and walked piece by piece (`_LongCheck`),
  one batch at a time. Such a check may take seconds, so it yields its thread after each
  `SLICE_BYTES`: quick checks never wait for all of it.
* Threads serve the senders in turns: a sender of many or expensive batches delays each of the
  others by one batch at most.
* Batches waiting for a thread are held as they were sent, up to `WAITING_BYTES_MAX` in all. No
  sender may hold more than it leaves free (`kafka/shares.py`); beyond that, `has_its_share`
  returns True and the caller starts no further Produce of that sender. A compressed batch counts
  as at least `COMPRESSED_BYTES_COUNTED`, so the waiting batches decompress to at most a hundred
  times the bytes counted.

Does not depend on requests, connections or logs.
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
"""Batches checked in threads at once. Times `OUTPUT_BYTES_MAX`, this bounds the decompressed bytes
held."""

LARGE_BYTES_COUNTED = 16 << 20
"""Bytes that a larger waiting batch is counted as, so that it does not keep others from starting.
The caller admits one such batch at a time (`has_large`), and its memory is accounted for as part of
its request."""

WAITING_BYTES_MAX = 64 << 20
"""Bytes of batches, as they were sent, that may wait for a thread or be in one."""

COMPRESSED_BYTES_COUNTED = OUTPUT_BYTES_MAX // 100
"""Bytes that a smaller compressed batch is counted as while it waits."""

SLICE_BYTES = 16 << 20
"""Decompressed bytes of a long check before it yields its thread: some milliseconds, as long as the
longest check that is not split."""

WINDOW_BYTES = 1 << 20
"""Bytes of a long check that are decompressed at a time. A header name may not be longer."""

LOOP_COMPRESSED_BYTES = 32 << 10
LOOP_DECOMPRESSED_BYTES = 128 << 10
"""Largest compressed batch that is checked on the loop: its size before and after decompression."""

LOOP_RECOMPRESSED_BYTES = 16 << 10
"""Most bytes of records that are recompressed on the loop, before compression: half a millisecond
of gzip."""

LOOP_BYTES_IN_PYTHON = 16 << 10
"""Largest batch that is checked on the loop if only the walk in Python is available. Also the
largest message set of old clients converted on the loop, before and after decompression."""

SCRATCH_KEPT_BYTES = 2 << 20
"""Bytes of a buffer that stay allocated; the rest goes back to the system after use."""

RECORD_ERRORS_IN_TEXT = 3
"""Record errors quoted in the error text of a whole batch, as in Kafka."""


class Codec(NamedTuple):
    """Format in which a topic keeps its batches."""

    compression: Compression
    level: int | None
    """Compression level: see `compress`."""
    bytes_max: int
    """Largest size of a batch after compression."""


class Recompressed(NamedTuple):
    """Valid batch that was recompressed with its topic's codec."""

    max_timestamp: int
    batch: memoryview
    header: BatchHeader


Verdict = int | Recompressed | BaseException
"""Outcome of a check: the largest timestamp of the records (ms, -1 for none) if the batch is taken
as it is; the batch taken in its place; a KafkaError; or an unexpected exception."""

Bounds = tuple[int, int, bool]
"""Requirements of a partition on each record: oldest and newest timestamp (ms, both inclusive), and
True if a key is required. A plain tuple, because one is made for each batch."""


_NOT_DECOMPRESSED = "the records cannot be decompressed, or are too large after decompression"
_NO_ROOM = object()
"""Outcome of a batch that is corrupt, or that decompresses to more than the buffer holds."""


class RecordsRefused(KafkaError):
    """Well-formed records that are not allowed: (index, reason) of each (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class _Waiting:
    """Batch that left the loop: its size as it was sent, the job to run in a thread, and the
    callback for the outcome."""

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
        """Starts the check piece by piece; None if the job never needs one."""


class _LongCheck:
    """Check, piece by piece, of a batch that decompresses to more than a buffer holds."""

    __slots__ = ("_batch", "_bounds", "_header", "_left", "_refused", "_rest", "_room", "_state",
                 "_stream")  # fmt: skip

    def __init__(self, batch: memoryview, header: BatchHeader, bounds: Bounds) -> None:
        self._batch = batch
        self._header = header
        self._bounds = bounds
        self._stream: Inflated | None = None
        self._room = memoryview(b"")
        self._rest = 0
        """Bytes at the start of `_room` that are not walked yet."""
        self._left = INFLATED_BYTES_MAX
        self._state = begin_parts(header.count, header.base_timestamp, *bounds)
        self._refused: list[Refused] = []

    def step(self) -> int | KafkaError | None:
        """Check one slice, in a thread. Return the verdict, or None if there is more to do."""
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
        """Walk the next piece. Return True if it was the last. Raises KafkaError,
        CorruptCompression."""
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
        """Return the verdict on the whole batch. Raises KafkaError."""
        if self._refused:
            raise _refusal(tuple(self._refused), self._bounds)
        return self._state[Slot.MAX_TIMESTAMP]


class Scratch:
    """Buffer that one batch is decompressed into. Its pages are allocated as they are written."""

    __slots__ = ("_map", "view")

    def __init__(self) -> None:
        self._map = mmap(-1, OUTPUT_BYTES_MAX)
        self.view = memoryview(self._map)

    def trim(self) -> None:
        """Return the memory beyond `SCRATCH_KEPT_BYTES` to the system."""
        from mmap import MADV_DONTNEED

        kept = -(-SCRATCH_KEPT_BYTES // PAGESIZE) * PAGESIZE
        self._map.madvise(MADV_DONTNEED, kept, OUTPUT_BYTES_MAX - kept)


class RecordChecks:
    """The checks of one server. `loop_bytes`: largest uncompressed batch that is checked on the
    loop."""

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
        """Batches to be checked piece by piece."""
        self._is_long_running = False
        self._large = 0
        self._waiting_bytes = Shares(WAITING_BYTES_MAX)
        self.is_short = False
        """True if half of `WAITING_BYTES_MAX` is used, so that an asker may have reached its
        share."""
        self.recompressed = 0
        """Batches recompressed with their topic's codec."""
        self.left_loop = 0
        """Batches checked in a thread."""
        self.long = 0
        """Batches checked piece by piece."""
        self.refused = 0
        """Batches rejected because of their contents."""

    @property
    def has_large(self) -> bool:
        """True while a large batch is being checked; no other may start."""
        return self._large > 0

    def has_its_share(self, asker: str) -> bool:
        """Return True if the asker's waiting batches have used up its share, so that it may start
        no further Produce. The batches of one request are taken as a whole, even if they exceed
        what was free."""
        return self._waiting_bytes.has_share(asker)

    def check(
        self,
        batch: memoryview,
        header: BatchHeader,
        bounds: Bounds,
        wanted: Codec | None = None,
    ) -> int | Recompressed | None:
        """Return the verdict on the records of a batch whose header is already checked, or None if
        it is a case for `check_later`. `wanted`: the topic's codec, None to keep the producer's.
        Raises KafkaError."""
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
                return None  # corrupt, or larger than the scratch buffer
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
        """Check as `check` does, for any size, in the turn of `asker`; `done` receives the verdict.
        Batches complete in any order."""
        size = len(batch)
        if header.attributes & CODEC_MASK:
            size = max(size, COMPRESSED_BYTES_COUNTED)
        job = partial(_judge_in_thread, batch, header, bounds, wanted)
        self._leave_loop(size, job, done, asker, partial(_LongCheck, batch, header, bounds))

    def convert(
        self, records: memoryview, bytes_max: int, bounds: Bounds, wanted: Codec | None = None
    ) -> memoryview | None:
        """Return the batch that a message set of magic 0 or 1 is stored as, or None if it is a case
        for `convert_later`. `bytes_max` bounds each message and the batch. Raises KafkaError."""
        if len(records) > LOOP_BYTES_IN_PYTHON:
            return None
        if not self._convert_scratch:
            self._convert_scratch = memoryview(bytearray(LOOP_BYTES_IN_PYTHON))
        try:
            scratch = self._convert_scratch
            return _convert(records, bytes_max, bounds, wanted, scratch, release=False)
        except CorruptCompression:
            return None  # corrupt, or larger than the scratch buffer
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
        """Convert as `convert` does, for any size, in the turn of `asker`; `done` receives the
        batch, or the error."""
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
    """Return the largest timestamp of a batch's uncompressed records. Raises KafkaError."""
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
    """Return the verdict, or `_NO_ROOM`. Runs off the loop."""
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
    """Return the checked batch of a message set. Raises KafkaError, CorruptCompression."""
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
    """Return the batch, or the error that prevents it. Runs off the loop."""
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
    """Return the verdict on uncompressed records. Raises KafkaError."""
    max_timestamp = judge(records, header, bounds, release=True)
    if wanted is None or wanted.compression == header.attributes & CODEC_MASK:
        return max_timestamp
    return _recompressed(batch, records, max_timestamp, wanted)


def _recompressed(
    batch: memoryview, records: memoryview, max_timestamp: int, codec: Codec
) -> Recompressed:
    """Return the batch as the topic keeps it. Raises MESSAGE_TOO_LARGE if it grew too much."""
    made = memoryview(recompressed(batch, records, codec.compression, codec.level))
    if len(made) > codec.bytes_max:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the record batch has {len(made)} bytes after compression by the topic's codec, "
            "which is more than allowed",
        )
    return Recompressed(max_timestamp, made, read_header(made))


def _refusal(refused: tuple[Refused, ...], bounds: Bounds) -> RecordsRefused:
    """Return the error for records that are not allowed, in Kafka's words."""
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
