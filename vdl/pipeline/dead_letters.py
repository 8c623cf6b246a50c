"""Dead letters, read and produced again, without Spark: there should be few.

A replayed record has its first place in its headers (`vdl-topic`, `vdl-partition`, `vdl-offset`)
and its reason (`vdl-error`), so a reader can tell one that came twice: producing is at least once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import Job
from vdl.pipeline.table import open_table

FLUSH_SECONDS = 60.0
BATCH_ROWS = 1000


def read_letters(job: Job) -> Iterator[dict[str, Any]]:
    """The dead letters of a job, by file, oldest first."""
    import pyarrow.parquet as pq

    table = open_table(job.sink.dead_kind, job.errors.path, job.name)
    for path in sorted(table.files()):
        for batch in pq.ParquetFile(path).iter_batches(BATCH_ROWS):
            yield from batch.to_pylist()


def replay(job: Job, topic: str) -> int:
    """Produce all of them to a topic; how many. Raises PipelineError when one is not taken."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {
        **job.source.read_options().client,
        "bootstrap.servers": job.source.bootstrap,
        "enable.idempotence": True,
        "log_level": 3,
    }
    producer = Producer(settings)
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        del message
        if error is not None:
            failures.append(str(error))

    count = 0
    for letter in read_letters(job):
        headers = [(h["key"], h["value"]) for h in letter["headers"] or ()]
        headers += [
            ("vdl-topic", letter["topic"].encode()),
            ("vdl-partition", str(letter["partition"]).encode()),
            ("vdl-offset", str(letter["offset"]).encode()),
            ("vdl-error", letter["error"].encode()),
        ]
        while True:
            try:
                producer.produce(
                    topic, letter["value"], letter["key"], headers=headers, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        count += 1
    left = producer.flush(FLUSH_SECONDS)
    if left or failures:
        reason = failures[0] if failures else "no answer"
        raise PipelineError(f"{left + len(failures)} of {count} not acknowledged: {reason}")
    return count
