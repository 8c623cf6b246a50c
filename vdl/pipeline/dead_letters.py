"""Reading dead letters and producing them again, without Spark, since there should be few.

A replayed record has its origin in its headers (`vdl-topic`, `vdl-partition`, `vdl-offset`) and its
error (`vdl-error`). Producing is at least once, so a reader can recognize a duplicate by them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from vdl.pipeline.job import Job
from vdl.pipeline.open_table import dead_table, storage_settings
from vdl.pipeline.positions import OffsetRange
from vdl.pipeline.producing import Outgoing, Target, produce_all
from vdl.pipeline.storage import Folders, Storage, storage_of

BATCH_ROWS = 1000
PLACE = ["topic", "partition", "offset"]


def read_letters(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the dead letters of a job, by file, oldest first."""
    import pyarrow.parquet as pq

    table = dead_table(job)
    storage = storage_of(job.errors.path, storage_settings(job))
    for path in sorted(table.files()):
        for batch in pq.ParquetFile(storage.open(path)).iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()


def offsets_within(
    paths: Sequence[str], wanted: Sequence[OffsetRange], storage: Storage | None = None
) -> dict[str, frozenset[int]]:
    """Return the offsets, by "topic/partition", of the files' dead letters within the ranges."""
    import pyarrow.dataset as ds

    topic, partition, offset = (ds.field(name) for name in PLACE)
    insides = [
        (topic == r.topic) & (partition == r.partition) & (offset >= r.start) & (offset < r.end)
        for r in wanted
    ]
    found: dict[str, set[int]] = {}
    if paths and insides:
        places = [(storage or Folders()).arrow(path) for path in paths]
        files = [inside for _, inside in places]
        letters = ds.dataset(files, format="parquet", filesystem=places[0][0])
        inside = letters.to_table(PLACE, filter=functools.reduce(operator.or_, insides))
        for row in inside.to_pylist():
            found.setdefault(f"{row['topic']}/{row['partition']}", set()).add(row["offset"])
    return {place: frozenset(offsets) for place, offsets in found.items()}


def replay(job: Job, topic: str) -> int:
    """Produce all dead letters to a topic; return their number.

    Letters for offsets without a readable record are left out. Raises PipelineError if a record is
    not acknowledged.
    """
    client = {**job.source.read_options().client, "bootstrap.servers": job.source.bootstrap}
    records = (one for one in read_letters(job) if one.get("offset_end") is None)
    return produce_all(Target(topic, client), map(_again, records))


def _again(letter: dict[str, Any]) -> Outgoing:
    headers = [(h["key"], h["value"]) for h in letter["headers"] or ()]
    headers += [
        ("vdl-topic", letter["topic"].encode()),
        ("vdl-partition", str(letter["partition"]).encode()),
        ("vdl-offset", str(letter["offset"]).encode()),
        ("vdl-error", letter["error"].encode()),
    ]
    return Outgoing(letter["value"], letter["key"], headers)
