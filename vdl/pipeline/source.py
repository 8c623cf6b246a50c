"""`format("vdl")`: Spark data source for topics, batch and stream, from brokers and segment files.

The driver's part plans offsets, cut into tasks. The executors' part is `read.read_range` and
`segment_read`, which do not depend on Spark. Spark keeps these objects in a Python process of its
own and sends pickles of them, so they hold options and no connections.

A stream's offset is `Positions`, with the topic ids in it: a topic that was deleted and created
again stops the query instead of being skipped to its end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from vdl.pipeline.errors import BatchUnreadable, PipelineError, TooLarge, UndecodableBatch
from vdl.pipeline.filters import Pushed, push
from vdl.pipeline.options import AtTime, ReadOptions, parse
from vdl.pipeline.positions import (
    OffsetRange,
    Positions,
    admit,
    capped,
    check_reachable,
    check_same_topics,
    cut,
    ranges,
    together,
)
from vdl.pipeline.registered.values import REGISTERED_DDL, Texts, with_texts
from vdl.pipeline.segment_read import SealedSegment, Seen, SegmentTask
from vdl.pipeline.topics import Topics
from vdl.pipeline.worker import exempt_modules_from_collection

NAMES_BATCH = "of message at"
"""Part of librdkafka's error that names a batch by its first offset."""
if TYPE_CHECKING:
    from vdl.pipeline.fetch import Leaders

SAMPLES_EVERY = 16
"""Number of batches between two samples of record sizes."""


@dataclass(frozen=True, slots=True)
class BrokerTask:
    """Ranges that one task reads over the protocol, one after the other."""

    pieces: tuple[OffsetRange, ...]


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets that retention removed, where that is allowed."""

    wanted: OffsetRange


class RangePartition(InputPartition):
    """Input of one task: a range over the protocol, or from segments, or a lost range."""

    def __init__(self, wanted: BrokerTask | SegmentTask | LostRange) -> None:
        super().__init__(wanted)


class VdlDataSource(DataSource):
    """Topics as rows; `options.py` has the options."""

    @classmethod
    def name(cls) -> str:
        return "vdl"

    def schema(self) -> str:
        from vdl.pipeline.read import DDL

        options = parse(self.options)
        columns = ", ".join(f"`{name}` {DDL[name]}" for name in options.columns)
        return f"{columns}, {REGISTERED_DDL}" if options.texts else columns

    def reader(self, schema: Any) -> VdlReader:
        del schema
        return VdlReader(parse(self.options))

    def streamReader(self, schema: Any) -> VdlStreamReader:
        del schema
        return VdlStreamReader(parse(self.options))


Act = TypeVar("Act", bound=Callable[..., Any])


def in_short(act: Act) -> Act:
    """Decorator that strips an error's cause and traceback.

    Spark would show them as a page, while the message says what to do.
    """

    @functools.wraps(act)
    def told_in_short(*given: Any) -> Any:
        try:
            return act(*given)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return cast("Act", told_in_short)  # has the same arguments


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[Any]:
    """Yield the rows of a partition, on executors, for both readers."""
    try:
        yield from _read_partition(partition, options)
    except PipelineError as error:
        raise error.with_traceback(None) from None  # as `in_short`


def _read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[Any]:
    task = partition.value
    if task is None:
        return  # Spark creates such a partition if there is nothing to read.
    assert isinstance(partition, RangePartition), partition
    found = read_task(task, options)
    if options.texts:
        found = with_texts(found, Texts.from_text(options.texts))
    yield from found
    exempt_modules_from_collection()


def read_task(task: BrokerTask | SegmentTask | LostRange, options: ReadOptions) -> Iterator[Any]:
    """Yield the records of one task."""
    if isinstance(task, SegmentTask):
        yield from read_segments(task, options)
    elif isinstance(task, LostRange):
        from vdl.pipeline.read import LOST, letter

        yield letter(task.wanted, LOST, options.columns)
    else:
        yield from read_ranges(task, options)


def read_ranges(task: BrokerTask, options: ReadOptions) -> Iterator[Any]:
    """Read one range after the other, with small batches combined, since each costs time."""
    import pyarrow as pa

    from vdl.pipeline.columns import CHUNK_BYTES, CHUNK_RECORDS
    from vdl.pipeline.fast_client import PLAIN_CLIENT, fast_client
    from vdl.pipeline.fetch import TOGETHER_RANGES, Leaders

    small: list[Any] = []
    rows = size = 0
    fast = fast_client(options.client)
    with Leaders(options.bootstrap, fast or PLAIN_CLIENT) as leaders:
        for number, wanted in enumerate(task.pieces):
            if number % TOGETHER_RANGES == 0 and len(task.pieces) > 1 and fast is not None:
                together = task.pieces[number : number + TOGETHER_RANGES]
                leaders.read_ahead(together, isolation=options.isolation)
            for batch in read_over(leaders, wanted, options):
                small.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= CHUNK_RECORDS or size >= CHUNK_BYTES or len(task.pieces) == 1:
                    yield small[0] if len(small) == 1 else pa.concat_batches(small)
                    small, rows, size = [], 0, 0
    if small:
        yield pa.concat_batches(small)


def read_broker(wanted: OffsetRange, options: ReadOptions) -> Iterator[Any]:
    """Read one range over connections of its own. Raises the errors of `read_range`."""
    from vdl.pipeline.fast_client import PLAIN_CLIENT, fast_client
    from vdl.pipeline.fetch import Leaders

    with Leaders(options.bootstrap, fast_client(options.client) or PLAIN_CLIENT) as leaders:
        yield from read_over(leaders, wanted, options)


def read_over(leaders: Leaders, wanted: OffsetRange, options: ReadOptions) -> Iterator[Any]:
    """Yield whole batches by our own reader, and after a failure the rest by librdkafka.

    With settings that only librdkafka understands, it reads everything. An unreadable batch fails,
    or yields a `letter` and the range continues after it. Raises the errors of `read_range`.
    """
    from vdl.pipeline.fast_client import fast_client
    from vdl.pipeline.fetch import FAILURES, read_batches

    is_fast = fast_client(options.client) is not None
    position = wanted.start
    while position < wanted.end:
        rest = OffsetRange(wanted.topic, wanted.partition, position, wanted.end)
        doubtful: BatchUnreadable | None = None
        if is_fast:
            try:
                for behind, batch in read_batches(
                    rest,
                    leaders=leaders,
                    columns=options.columns,
                    isolation=options.isolation,
                ):
                    yield batch
                    position = behind
            except BatchUnreadable as error:
                position = error.start
                if not isinstance(error.__cause__, TooLarge):
                    yield _letter(error, options)
                    position = error.end
                    continue
                doubtful = error  # librdkafka may have more room
            except FAILURES:
                leaders.forget()
            else:
                return
        end = wanted.end if doubtful is None else doubtful.end
        rest = OffsetRange(wanted.topic, wanted.partition, position, end)
        try:
            for offset, batch in read_library(rest, options):
                yield batch
                position = offset
        except BatchUnreadable as error:
            found = doubtful or behind_unreadable(error, rest, options)
            yield _letter(found, options)
            position = found.end
        else:
            position = end


def read_library(wanted: OffsetRange, options: ReadOptions) -> Iterator[tuple[int, Any]]:
    """Yield (offset after the batch, records of the range) as librdkafka reads them."""
    from vdl.pipeline.read import read_range

    columns = options.columns if "offset" in options.columns else (*options.columns, "offset")
    for batch in read_range(
        wanted,
        bootstrap=options.bootstrap,
        columns=columns,
        stall_seconds=options.stall_seconds,
        isolation=options.isolation,
        client=options.client,
        allow_loss=options.allow_loss,
        letters=options.letters,
    ):
        yield batch.column("offset")[-1].as_py() + 1, batch.select(list(options.columns))


def behind_unreadable(
    found: BatchUnreadable, wanted: OffsetRange, options: ReadOptions
) -> BatchUnreadable:
    """Return the error with the end of its batch, found by librdkafka only.

    librdkafka does not report the end of a batch, but the offset at which a batch begins that it
    cannot decompress: so the first offset with another error is searched. For other errors the end
    is the next offset. Raises PipelineError.
    """
    if not options.letters:
        raise found

    def is_inside(offset: int) -> bool:
        piece = OffsetRange(wanted.topic, wanted.partition, offset, wanted.end)
        try:
            next(read_library(piece, options), None)
        except BatchUnreadable as error:
            return error.reason == found.reason
        return False

    low, step = found.start, 1
    if NAMES_BATCH in found.reason:
        while low + step < wanted.end and is_inside(low + step):
            low, step = low + step, step * 2
    high = min(low + step, wanted.end)
    while high - low > 1:
        middle = (low + high) // 2
        if is_inside(middle):
            low = middle
        else:
            high = middle
    return BatchUnreadable(
        found.topic, found.partition, start=found.start, end=high, reason=found.reason
    )


def _letter(found: BatchUnreadable, options: ReadOptions) -> Any:
    """Return a letter for an unreadable batch, or raise its error unless letters are enabled."""
    from vdl.pipeline.read import letter

    if not options.letters:
        raise found
    wanted = OffsetRange(found.topic, found.partition, found.start, found.end)
    return letter(wanted, found.reason, options.columns, found.data)


def read_segments(task: SegmentTask, options: ReadOptions) -> Iterator[Any]:
    """Read one segment after the other, each from its file as far as possible.

    The rest is read over the protocol: retention may have removed the file, this executor may not
    see it, or it may be damaged.
    """
    from vdl.pipeline.inflated import Inflated
    from vdl.pipeline.segment_read import FAILURES, read_segment

    columns = options.columns if "offset" in options.columns else (*options.columns, "offset")
    memory = Inflated()
    for piece in task.pieces:
        wanted, position = piece.wanted, piece.wanted.start
        try:
            for batch in read_segment(piece, columns=columns, memory=memory):
                if batch.num_rows:
                    position = batch.column("offset")[-1].as_py() + 1
                yield batch.select(list(options.columns))
        except (*FAILURES, UndecodableBatch):
            rest = OffsetRange(wanted.topic, wanted.partition, position, wanted.end)
            if rest.count:
                yield from read_broker(rest, options)


def plan(
    options: ReadOptions,
    wanted: Sequence[OffsetRange],
    known: Positions,
    seen: Seen | None = None,
) -> list[InputPartition]:
    """Return the tasks for these ranges.

    `known` has the topics' ids and partitions; `seen`: segments found by earlier plans.
    """
    if not options.segments:
        return broker_tasks(wanted, options.tasks_min)
    from vdl.pipeline.segment_read import FAILURES, divide, find, group

    places: list[dict[tuple[str, int], list[SealedSegment]]] = []
    for directory in options.segments:
        place: dict[tuple[str, int], list[SealedSegment]] = {}
        for topic, topic_known in known.topics.items():
            try:
                count = len(topic_known.offsets)
                found = find(directory, topic, topic_known.topic_id, count, seen)
            except FAILURES:
                continue  # Not on this machine, or damaged: the brokers have all data.
            place |= {(topic, partition): sealed for partition, sealed in found.items()}
        places.append(place)
    from_files, rest = divide(wanted, places)
    tasks: list[InputPartition] = [
        RangePartition(task) for task in group(from_files, tasks_min=options.tasks_min)
    ]
    return tasks + broker_tasks(rest, options.tasks_min)


def broker_tasks(wanted: Sequence[OffsetRange], tasks_min: int) -> list[InputPartition]:
    """Return the ranges as tasks over the protocol."""
    pieces = together(cut(wanted, tasks_min=tasks_min), tasks_min=tasks_min)
    return [RangePartition(BrokerTask(tuple(few))) for few in pieces]


class VdlReader(DataSourceReader):
    """Batch read from `start` to `end`."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._pushed, left = push(filters)
        return left

    @in_short
    def partitions(self) -> Sequence[InputPartition]:
        with closing(Topics(self._options)) as topics:
            return self._planned(topics)

    def _planned(self, topics: Topics) -> Sequence[InputPartition]:
        known = topics.bounds()
        start = topics.resolve_within(self._options.start, known)
        end = topics.resolve_within(self._options.end, known)
        check_same_topics(start, end)
        lost: list[InputPartition] = []
        if not self._options.allow_loss:
            check_reachable(start, known.firsts, known.ends)
        else:
            lost = lost_between(start, known.firsts, end, self._options)
            start = later(start, known.firsts)
        if self._pushed.time_first_ms is not None:
            start = later(start, topics.resolve(AtTime(self._pushed.time_first_ms)))
        wanted = self._pushed.cut(ranges(start, later(end, start)))
        return plan(self._options, wanted, end) + lost

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(partition, self._options)


def later(one: Positions, other: Positions) -> Positions:
    """Return the later of both offsets for each partition of `one`."""
    from dataclasses import replace

    topics = {
        topic: replace(
            known,
            offsets={
                p: max(offset, other.offset(topic, p) or 0) for p, offset in known.offsets.items()
            },
        )
        for topic, known in one.topics.items()
    }
    return Positions(topics)


def lost_between(
    start: Positions, firsts: Positions, end: Positions, options: ReadOptions
) -> list[InputPartition]:
    """Return tasks that report the removed part of [start, end), if letters are enabled."""
    if not options.letters:
        return []
    known = start.of(firsts.topics)
    stop = capped(later(known, firsts), later(end, known))
    return [RangePartition(LostRange(gone)) for gone in ranges(known, stop)]


class VdlStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream from `start` on, one micro-batch at a time."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._topics: Topics | None = None
        self._target: Positions | None = None
        self._ends: Positions | None = None
        self._planned: Positions | None = None
        """End of the last requested batch."""
        self._row_bytes: dict[tuple[str, int], float] = {}
        self._batches_planned = 0
        self._seen: Seen = {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive a pickle of this object: connections stay here.
        return {**self.__dict__, "_topics": None, "_seen": {}}

    @in_short
    def initialOffset(self) -> dict[str, Any]:
        found = self._ask().resolve(self._options.start)
        check_same_topics(found, self._ask().begins())
        return found.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max)

    @in_short
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ask().ends()

    @in_short
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = Positions.from_json(start)
        topics = self._ask()
        ends = topics.ends()
        check_same_topics(begin, ends)
        # The starts of logs are checked when a batch is planned: this is called far more often.
        check_reachable(begin, Positions({}), ends)
        if any(begin.offset(t, p) is None for t, p, _ in ends.partitions()):
            # An added partition begins at its log's start, which may be trimmed already.
            begin = begin.over(topics.begins())
        self._ends = ends
        # A stream that begins at the end requests it after its target was set.
        target = ends if self._target is None else later(capped(ends, self._target), begin)
        if isinstance(limit, ReadAllAvailable):
            self._planned = target.over(begin)
            return self._planned.to_json()
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.rows_max
        waiting = ranges(begin, target.over(begin))
        if waiting and self._options.bytes_max and self._batches_planned % SAMPLES_EVERY == 0:
            starts = [(r.topic, r.partition, r.start) for r in waiting]
            self._row_bytes |= topics.row_bytes(starts)
        self._batches_planned += bool(waiting)
        self._planned = admit(
            begin,
            target.over(begin),
            rows_max=rows_max,
            bytes_max=self._options.bytes_max,
            row_bytes=self._row_bytes,
        )
        return self._planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the topics, and each partition's lag after this batch.

        Spark shows this as `latestOffset` in a query's progress and does not use it. A Python
        source has no other way to report a metric.
        """
        from vdl.pipeline.lag import lag_of

        if self._ends is None or self._planned is None:
            return None
        told = self._ends.to_json()
        behind = lag_of(self._planned, self._ends)
        for (topic, partition), count in behind.items():
            told[topic].setdefault("lag", {})[str(partition)] = count
        return told

    @in_short
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = Positions.from_json(start), Positions.from_json(end)
        topics = self._ask()
        firsts = topics.begins()
        check_same_topics(begin, firsts)
        if not self._options.allow_loss:
            check_reachable(begin, firsts, stop)
        # An added partition has not been read: it begins at its log's start.
        begin = begin.over(capped(firsts, stop))
        lost: list[InputPartition] = []
        if self._options.allow_loss:
            lost = lost_between(begin, firsts, stop, self._options)
            begin = later(begin, firsts)
            stop = later(stop, begin)
        return plan(self._options, ranges(begin, stop), firsts, self._seen) + lost

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(partition, self._options)

    def stop(self) -> None:
        if self._topics is not None:
            self._topics.close()
            self._topics = None

    def _ask(self) -> Topics:
        if self._topics is None:
            self._topics = Topics(self._options)
        return self._topics
