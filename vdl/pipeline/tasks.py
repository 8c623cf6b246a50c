"""Division of work on a table's files into tasks.

A sink plans and commits on the driver. Work that reads and writes a table's files is a function of
one item, so it can run anywhere: in this process, or on Spark's executors. Items and results are
small: they name files and count rows.

A task may run twice, because Spark repeats failed and slow tasks. Each run of a task therefore uses
its own file names, and only files that the task returned are committed.

Does not depend on table formats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from vdl.pipeline.errors import PipelineError, reason_of

Item = TypeVar("Item")
Result = TypeVar("Result")


class Tasks(Protocol):
    """Function that runs another function on each item, one task for each."""

    def __call__(
        self, function: Callable[[Item], Result], items: Sequence[Item], /
    ) -> list[Result]:
        """Return the results in the order of the items. Raises PipelineError."""


def here(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    """Run the tasks in this process, one after the other."""
    return [function(item) for item in items]


def on_spark(spark: Any) -> Tasks:
    """Return a `Tasks` that runs on the executors of a session."""

    def run(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        if not items:
            return []
        try:
            spread = spark.sparkContext.parallelize(list(items), len(items))
            found: list[Result] = spread.map(function).collect()
        except (Py4JError, PySparkException) as error:
            raise PipelineError(reason_of(error)) from error
        return found

    return run


def groups(files: Sequence[tuple[Item, int]], weight_max: int) -> list[list[Item]]:
    """Divide files, given with their bytes, into tasks.

    Neighbours of up to `weight_max` together share a task; a larger file has its own.
    """
    found: list[list[Item]] = []
    room = 0
    for file, weight in files:
        if not found or weight > room:
            found.append([])
            room = weight_max
        found[-1].append(file)
        room -= weight
    return found
