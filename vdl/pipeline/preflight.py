"""What can be said of a job before Spark is there: in seconds, and in one line.

A job that cannot run should not take half a minute to say so, nor a page. So before a session is
made its folders are looked at, the servers are asked for its topics, and its texts in SQL are
parsed, which takes Spark's parser but no Spark.

Must not know: how a job is run.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from vdl.pipeline.client_secrets import resolved
from vdl.pipeline.errors import JobInvalid, PipelineError
from vdl.pipeline.job import Job
from vdl.pipeline.open_table import storage_settings
from vdl.pipeline.storage import is_url, storage_of
from vdl.pipeline.table import OP

CLUSTER_SECONDS = 3.0


def check_folders(job: Job) -> None:
    """That there can be files where the job is to write. Raises PipelineError."""
    paths = {
        "sink.path": job.sink.path, "errors.path": job.errors.path,
        "run.checkpoint": job.checkpoint,
    }  # fmt: skip
    for setting, path in paths.items():
        problem = _unreachable(job, path) if is_url(path) else _unwritable(Path(path))
        if problem:
            raise PipelineError(f"{setting}: {path}: {problem}")


def _unwritable(path: Path) -> str:
    """Why nothing can be written there; "" where it seems that it can."""
    above = path.absolute()
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        return f"{above} is no folder"
    try:
        # What permissions say is not all: there are file systems that take no files.
        Path(tempfile.mkdtemp(prefix=".vdl-", dir=above)).rmdir()
    except OSError as error:
        return f"{above} cannot be written to: {error.strerror}"
    return ""


def _unreachable(job: Job, path: str) -> str:
    """Why nothing can be written to an object store; "" where it can."""
    probe = f"{path}/_vdl/probe-{uuid.uuid4().hex}"
    try:
        storage = storage_of(path, storage_settings(job))
        storage.put(probe, b"")
        storage.remove(probe)
    except OSError as error:
        return f"cannot be written to: {error}"
    return ""


def check_cluster(job: Job) -> None:
    """That the servers answer and have the topics. Raises ClusterUnreachable, TopicMissing."""
    from vdl.pipeline.topics import Topics

    options = job.source.read_options()
    with closing(Topics(options, request_seconds=CLUSTER_SECONDS, attempts=1)) as topics:
        topics.ids()


def check_registry(job: Job) -> None:
    """That the registry answers, if the job has one. Raises RegistryFailed, SecretMissing."""
    if job.registry:
        from vdl.pipeline.registered.registry import Registry

        with closing(Registry(resolved(job.registry), is_patient=False)) as registry:
            registry.check()


def check_texts(job: Job, jvm: Any) -> None:
    """That the schema and the steps can be parsed. `jvm`: with Spark's classes. Raises
    JobInvalid."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    texts = [("decode.schema", jvm.org.apache.spark.sql.types.StructType.fromDDL, job.schema)]
    parse = jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser().parsePlan
    texts += [(f"transform.steps.{step.name}", parse, step.sql) for step in job.steps]
    condition = jvm.org.apache.spark.sql.catalyst.parser.CatalystSqlParser().parseExpression
    texts += [(f"expect.rules: {rule.name}", condition, rule.sql) for rule in job.rules]
    problems = []
    for setting, understand, text in texts:
        try:
            understand(text) if text else None
        except (Py4JJavaError, CapturedException) as error:
            # The second is what PySpark makes of the first once it has had a session.
            is_raw = isinstance(error, Py4JJavaError)
            told = str(error.java_exception.getMessage() if is_raw else error).strip().splitlines()
            problems.append(f"{setting}: {' '.join(told[:1]) or 'cannot be parsed'}")
    if job.is_upsert and not problems:
        known = list(texts[0][1](job.schema).fieldNames())
        missing = [name for name in job.sink.upsert_key if name not in known]
        problems += [f"sink.key: decode.schema has no column {name}" for name in missing]
        if OP in known:
            problems.append(f"decode.schema: {OP} is the name of a column of upserts")
    if problems:
        raise JobInvalid(job.name, problems)
