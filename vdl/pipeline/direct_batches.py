"""Batches that the driver plans and tasks write, without Spark's stream.

Where rows are written as they are decoded, Spark's own part of a batch is all cost: a Python
process for the stream's offsets, a query with a plan for each batch, and rows that pass through the
JVM. Here the driver plans a batch by the same reader as the stream's, and each task returns the
reports of its files, and the few records that only Spark may decode (`direct.write_task`).

Does not depend on tables or on jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from vdl.pipeline.direct import Direct, Outcome, write_task
from vdl.pipeline.options import ReadOptions
from vdl.pipeline.positions import Positions
from vdl.pipeline.registered.values import Texts
from vdl.pipeline.segment_read import SegmentTask
from vdl.pipeline.source import BrokerTask, LostRange, VdlStreamReader, read_task
from vdl.pipeline.tasks import on_spark
from vdl.pipeline.worker import exempt_modules_from_collection

WAIT_SECONDS = 0.5
LEFT_BYTES_OF_BATCH_MAX = 64 << 20
"""Limit on the records that all tasks of a batch return: the driver holds them in memory."""
Result = TypeVar("Result")
Part = BrokerTask | SegmentTask | LostRange


class Stopped(Exception):
    """The end of the run was requested while a batch was being written."""


@dataclass(frozen=True, slots=True)
class Item:
    """Input of one task: what it reads, and `WriteSpec.dead_there` of the partitions in it."""

    part: Part
    dead_there: Mapping[str, bytes]


def divided(
    options: ReadOptions, direct: Direct, parts: Sequence[Part]
) -> tuple[Callable[[Item], Outcome], list[Item]]:
    """Return what each task does, and its input.

    The function has secrets, and must stay small: Spark sends one of up to 1 MiB in memory, and a
    larger one through files. Items go through a file, and grow with a batch.
    """
    spec = direct.spec
    items = [
        Item(
            part, {place: spec.dead_there[place] for place in _places(part) & set(spec.dead_there)}
        )
        for part in parts
    ]
    bare = replace(direct, spec=replace(spec, dead_there={}))
    return partial(write, options, bare), items


def _places(part: Part) -> set[str]:
    """Return the partitions that a task reads, as "topic/partition"."""
    if isinstance(part, SegmentTask):
        pieces = [piece.wanted for piece in part.pieces]
    else:
        pieces = [part.wanted] if isinstance(part, LostRange) else list(part.pieces)
    return {f"{piece.topic}/{piece.partition}" for piece in pieces}


def write(options: ReadOptions, direct: Direct, item: Item) -> Outcome:
    """Read one task's part and write it, on an executor."""
    direct = replace(direct, spec=replace(direct.spec, dead_there=item.dead_there))
    texts = Texts.from_text(options.texts) if options.texts else None
    found = write_task(read_task(item.part, options), direct, texts)
    exempt_modules_from_collection()
    return found


class DirectBatches:
    """Plans and writes batches in a session. Use: `close` when done."""

    def __init__(self, spark: Any, options: ReadOptions, stopping: threading.Event) -> None:
        self._spark = spark
        self._options = options
        self._stopping = stopping
        self._reader = VdlStreamReader(options)
        # A thread of its own: signals are handled in the main thread, which must not be within a
        # call of the JVM's then.
        self._thread = ThreadPoolExecutor(1, "direct-batches")

    def end_here(self) -> None:
        """Let the last batch end where the topics end now."""
        self._reader.prepareForTriggerAvailableNow()

    def end_after(self, begin: Positions) -> Positions:
        """Return the end of the batch that begins there, equal if there is nothing new.

        Raises PipelineError.
        """
        limit = self._reader.getDefaultReadLimit()
        return Positions.from_json(self._reader.latestOffset(begin.to_json(), limit))

    def write(self, begin: Positions, end: Positions, direct: Direct) -> list[Outcome]:
        """Read and write [begin, end) on the executors. Raises PipelineError, Stopped."""
        planned = self._reader.partitions(begin.to_json(), end.to_json())
        parts = [one.value for one in planned if one.value is not None]
        room = LEFT_BYTES_OF_BATCH_MAX // max(1, len(parts))
        direct = replace(direct, left_bytes_max=min(direct.left_bytes_max, room))
        function, items = divided(self._options, direct, parts)
        return self.run(direct.spec.prefix, lambda: on_spark(self._spark)(function, items))

    def run(self, group: str, act: Callable[[], Result]) -> Result:
        """Return what `act` returns. Its Spark jobs have this group, and end at a stop.

        Raises the errors of `act`, Stopped.
        """
        pending = self._thread.submit(self._in_group, group, act)
        try:
            while not wait([pending], WAIT_SECONDS).done:
                if self._stopping.is_set():
                    raise Stopped
            return pending.result()
        finally:
            # More than once: between two jobs there is none to cancel.
            while not pending.done():
                self._spark.sparkContext.cancelJobGroup(group)
                wait([pending], WAIT_SECONDS)

    def _in_group(self, group: str, act: Callable[[], Result]) -> Result:
        self._spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
        return act()

    def close(self) -> None:
        self._thread.shutdown()
        self._reader.stop()
