"""Checks of a job before Spark starts: in seconds, with errors of one line.

A job that cannot run should not take half a minute and a page of output to report it. So before a
session is created its folders are checked, the servers are queried for its topics, and its SQL
texts are parsed, which takes Spark's parser but no Spark session.

Does not depend on how a job is run.
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
    """Raise PipelineError unless the job can create files where it writes."""
    paths = {
        "sink.path": job.sink.path, "errors.path": job.errors.path,
        "run.checkpoint": job.checkpoint,
    }  # fmt: skip
    for setting, path in paths.items():
        problem = _unreachable(job, path) if is_url(path) else _unwritable(Path(path))
        if problem:
            raise PipelineError(f"{setting}: {path}: {problem}")


def _unwritable(path: Path) -> str:
    """Return the reason why nothing can be written there; "" if it seems possible."""
    above = path.absolute()
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        return f"{above} is not a folder"
    try:
        # Permissions are not sufficient: some file systems accept no files.
        Path(tempfile.mkdtemp(prefix=".vdl-", dir=above)).rmdir()
    except OSError as error:
        return f"{above} cannot be written to: {error.strerror}"
    return ""


def _unreachable(job: Job, path: str) -> str:
    """Return the reason why nothing can be written to an object store; "" if it is possible."""
    probe = f"{path}/_vdl/probe-{uuid.uuid4().hex}"
    try:
        storage = storage_of(path, storage_settings(job))
        storage.put(probe, b"")
        storage.remove(probe)
    except OSError as error:
        return f"cannot be written to: {error}"
    return ""


def check_cluster(job: Job) -> None:
    """Check that the servers answer and have the topics.

    Raises ClusterUnreachable, TopicMissing.
    """
    from vdl.pipeline.topics import Topics

    options = job.source.read_options()
    with closing(Topics(options, request_seconds=CLUSTER_SECONDS, attempts=1)) as topics:
        topics.ids()


def check_registry(job: Job) -> None:
    """Check that the registry answers, if the job has one. Raises RegistryFailed, SecretMissing."""
    if job.registry:
        from vdl.pipeline.registered.registry import Registry

        with closing(Registry(resolved(job.registry), is_patient=False)) as registry:
            registry.check()


def check_texts(job: Job, jvm: Any) -> None:
    """Check that the schema and the steps can be parsed. Raises JobInvalid.

    `jvm`: a JVM with Spark's classes.
    """
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
            # PySpark converts the first into the second once it has had a session.
            is_raw = isinstance(error, Py4JJavaError)
            told = str(error.java_exception.getMessage() if is_raw else error).strip().splitlines()
            problems.append(f"{setting}: {' '.join(told[:1]) or 'cannot be parsed'}")
    if job.is_upsert and not problems:
        known = list(texts[0][1](job.schema).fieldNames())
        missing = [name for name in job.sink.upsert_key if name not in known]
        problems += [f"sink.key: decode.schema has no column {name}" for name in missing]
        if OP in known:
            problems.append(f"decode.schema: {OP} is reserved for upserts")
    if problems:
        raise JobInvalid(job.name, problems)
