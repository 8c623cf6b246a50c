"""OpenLineage events: contents and destinations; no job waits for them or fails by them."""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.lineage_server import Collected, lineage_server
from tests.pipeline.test_job_file import GOOD, write
from vdl.commands.app import run_app
from vdl.pipeline import lineage as lineage_module
from vdl.pipeline.errors import JobInvalid, PipelineError
from vdl.pipeline.event_sender import FAILED, SENT
from vdl.pipeline.job import Job, load_job
from vdl.pipeline.lineage import DatasetName, RunLineage, lineage_of, path_name, topic_name

pytest.importorskip("openlineage", reason="needs the `lineage` extra")
SOURCE = [("year", "int")]
COLUMNS = [*SOURCE, ("_offset", "bigint")]


@pytest.fixture
def server() -> Iterator[Collected]:
    with lineage_server() as found:
        yield found


def job_of(folder: Path, settings: str, old: str = "", new: str = "") -> Job:
    return load_job(write(folder, f"{GOOD.replace(old, new)}[lineage]\n{settings}\n"))


def lineage_for(job: Job, told: list[str], outcomes: list[str] | None = None) -> RunLineage:
    counted = [] if outcomes is None else outcomes
    found = lineage_of(job, is_batch=True, tell=told.append, on_outcome=counted.append)
    assert found is not None
    return found


def run(job: Job, *, fail: str = "") -> tuple[list[str], list[str]]:
    """Run a job with two batches; return (lines reported, outcomes)."""
    told: list[str] = []
    outcomes: list[str] = []
    lineage = lineage_for(job, told, outcomes)
    try:
        with lineage:
            lineage.on_open(SOURCE, COLUMNS)
            lineage.on_batch(rows=3, dead=1)
            lineage.on_batch(rows=4, dead=0)
            if fail:
                raise PipelineError(fail)
    except PipelineError:
        assert fail
    return told, outcomes


def test_job_without_a_section_has_no_events(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, GOOD))
    assert lineage_of(job, is_batch=True, tell=print) is None


def test_run_tells_its_start_its_columns_and_its_end(tmp_path: Path, server: Collected) -> None:
    job = job_of(tmp_path, f'url = "{server.url}"')
    assert run(job) == ([], [SENT] * 3)
    assert [event["eventType"] for event in server.events] == ["START", "RUNNING", "COMPLETE"]
    assert {path for path, _ in server.requests} == {"/api/v1/lineage"}
    assert len({event["run"]["runId"] for event in server.events}) == 1
    last = server.events[-1]
    uuid.UUID(last["run"]["runId"])
    assert (last["job"]["namespace"], last["job"]["name"]) == ("vdl", "flights")
    assert last["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    (topic,) = last["inputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://127.0.0.1:9092", "flights")
    rows, dead = last["outputs"]
    assert (rows["namespace"], rows["name"]) == ("file", str(tmp_path / "out"))
    assert dead["name"] == str(tmp_path / "out-dead")
    fields = [(f["name"], f["type"]) for f in rows["facets"]["schema"]["fields"]]
    assert fields == COLUMNS
    assert [f["name"] for f in topic["facets"]["schema"]["fields"]] == ["year"]
    counts = [one["outputFacets"]["outputStatistics"]["rowCount"] for one in (rows, dead)]
    assert counts == [7, 1]


def test_dead_letters_have_the_columns_of_their_table() -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the `spark` extra")
    types = pytest.importorskip("pyspark.sql.pandas.types", reason="needs the `spark` extra")
    from vdl.pipeline.files import DEAD_SCHEMA

    assert isinstance(DEAD_SCHEMA, pa.Schema)
    told = [(field.name, types.from_arrow_type(field.type).simpleString()) for field in DEAD_SCHEMA]
    assert told == list(lineage_module.DEAD_COLUMNS)


def test_events_are_as_the_published_schema_says(tmp_path: Path, server: Collected) -> None:
    """Covers members that must exist, and the type of each facet, on which consumers rely."""
    run(job_of(tmp_path, f'url = "{server.url}"'), fail="no more rows")
    for event in server.events:
        assert {"eventTime", "producer", "schemaURL", "run", "job"} <= set(event)
        for facet in _facets(event):
            assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")
            assert facet["_producer"] == event["producer"]
    assert server.events[-1]["eventType"] == "FAIL"
    error = server.events[-1]["run"]["facets"]["errorMessage"]
    assert error["message"] == "no more rows"


def _facets(one: Any) -> Iterator[dict[str, Any]]:
    """Yield all facets anywhere in an event."""
    if isinstance(one, list):
        for inner in one:
            yield from _facets(inner)
    elif isinstance(one, dict):
        for name, inner in one.items():
            if name in {"facets", "inputFacets", "outputFacets"}:
                yield from inner.values()
            else:
                yield from _facets(inner)


def test_run_that_is_interrupted_before_its_beginning_is_aborted(
    tmp_path: Path, server: Collected
) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        lineage_for(job_of(tmp_path, f'url = "{server.url}"'), []),
    ):
        raise KeyboardInterrupt
    assert [event["eventType"] for event in server.events] == ["START", "ABORT"]


def test_token_goes_along_and_is_not_in_the_file(
    tmp_path: Path, server: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINEAGE_KEY", "secret-word")
    job = job_of(
        tmp_path, f'url = "{server.url}"\nendpoint = "/v2/events"\napi_key = "env:LINEAGE_KEY"'
    )
    run(job)
    assert set(server.requests) == {("/v2/events", "Bearer secret-word")}


def test_environment_of_the_library_changes_nothing(
    tmp_path: Path, server: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can name other destinations, and switch events off."""
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    run(job_of(tmp_path, f'url = "{server.url}"'))
    assert len(server.events) == 3


def test_events_in_a_file_are_lines(tmp_path: Path) -> None:
    job = job_of(tmp_path, 'file = "events.jsonl"')
    run(job)
    run(job)
    lines = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    kinds = [json.loads(line)["eventType"] for line in lines]
    assert kinds == ["START", "RUNNING", "COMPLETE"] * 2


@pytest.mark.parametrize(
    ("path", "reason"), [("/proc/nowhere/x", "No such file"), ("/dev/full", "No space")]
)
def test_file_that_cannot_be_written_is_told_and_no_more(
    tmp_path: Path, path: str, reason: str
) -> None:
    told, outcomes = run(job_of(tmp_path, f'file = "{path}"'))
    assert outcomes == [FAILED] * 3
    assert told[0].startswith("lineage: 3 of 3 events not sent: ")
    assert reason in told[0]


def test_server_that_refuses_or_is_not_there_is_told_and_no_more(
    tmp_path: Path, server: Collected
) -> None:
    server.status = 403
    told, outcomes = run(job_of(tmp_path, f'url = "{server.url}"'))
    assert outcomes == [FAILED] * 3
    assert "403" in told[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = free.getsockname()[1]
    told, outcomes = run(job_of(tmp_path, f'url = "http://127.0.0.1:{nobody}"'))
    assert outcomes[:1] in ([FAILED], [])
    assert "of 3 events not sent" in told[0]


def test_server_that_never_answers_lets_a_job_end(
    tmp_path: Path, server: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand batches: the queue is bounded, and so is the time at the end."""
    monkeypatch.setattr(lineage_module, "END_SECONDS", 0.1)
    server.answers.clear()
    job = job_of(tmp_path, f'url = "{server.url}"\ntimeout_seconds = 60')
    told: list[str] = []
    lineage = lineage_for(job, told)
    lineage._interval = 0.0
    with lineage:
        lineage.on_open(SOURCE, COLUMNS)
        for _ in range(10_000):
            lineage.on_batch(rows=1, dead=0)
        assert lineage._sender._waiting.qsize() <= 100
    assert told == ["lineage: 10003 of 10003 events not sent: no response yet"]


def test_batches_within_the_interval_are_one_event(tmp_path: Path, server: Collected) -> None:
    job = job_of(tmp_path, f'url = "{server.url}"\ninterval_seconds = 60')
    now = 1000.0
    lineage = lineage_for(job, [])
    lineage._clock = lambda: now
    with lineage:
        for second in range(100):
            now = 1000.0 + second * 1.2
            lineage.on_batch(rows=1, dead=0)
    kinds = [event["eventType"] for event in server.events]
    assert kinds == ["START", *["RUNNING"] * (kinds.count("RUNNING")), "COMPLETE"]
    assert kinds.count("RUNNING") <= 2
    counts = [
        event["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"]
        for event in server.events[1:]
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 100


def test_names_are_those_that_others_use() -> None:
    """Names do not contain credentials."""
    assert topic_name("a:1, b:2", "t") == DatasetName("kafka://a:1", "t")
    assert path_name("/lake/t") == DatasetName("file", "/lake/t")
    assert path_name("s3a://key:word@lake/x/t/") == DatasetName("s3://lake", "x/t")
    assert path_name("file:///lake/t") == DatasetName("file", "/lake/t")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("", "one of them is required"),
        ('url = "http://a"\nfile = "b"', "exactly one"),
        ('url = "ftp://a"', "is not http://"),
        ('url = "http://"', "is not http://"),
        ('url = "http://[::1"', "lineage.url"),
        ('url = "http://a:99999"', "lineage.url"),
        ('url = "http://me:word@a"', "must not contain a secret"),
        ('url = "http://a"\napi_key = "word"', "a job file must not contain secrets"),
        ('file = "a"\napi_key = "env:A"', "only with a url"),
        ('file = "s3://a/b"', "is not on a file system"),
        ('file = "a"\ntimeout_seconds = 0', "timeout_seconds"),
        ('file = "a"\ninterval_seconds = 0.5', "interval_seconds"),
        ('file = "a"\nnamespace = ""', "namespace: is required"),
        ('files = "a"', "unknown setting"),
    ],
)
def test_settings_that_cannot_be_are_named(tmp_path: Path, settings: str, problem: str) -> None:
    with pytest.raises(JobInvalid, match=problem):
        job_of(tmp_path, settings)


def test_run_that_finds_no_servers_has_failed(
    tmp_path: Path, server: Collected, capsys: pytest.CaptureFixture[str]
) -> None:
    """The failure comes before Spark starts."""
    pytest.importorskip("pyspark", reason="needs the `spark` extra")
    job_of(tmp_path, f'url = "{server.url}"', "127.0.0.1:9092", "127.0.0.1:9")
    assert run_app(["pipeline", "run", "--once", str(tmp_path / "job.toml")]) == 1
    assert [event["eventType"] for event in server.events] == ["START", "FAIL"]
    message = server.events[-1]["run"]["facets"]["errorMessage"]["message"]
    assert "127.0.0.1:9" in message
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.spark
def test_job_on_spark_tells_its_tables_columns(
    spark: Any, bootstrap: str, tmp_path: Path, server: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs the command as a user does."""
    from tests.pipeline.test_reading import create
    from tests.pipeline.test_spark import BROKEN, COUNT, fill
    from tests.pipeline.test_spark import job_of as spark_job
    from vdl.commands import pipeline as commands

    monkeypatch.setattr(commands, "_session", lambda job: spark)
    monkeypatch.setattr(spark, "stop", lambda: None, raising=False)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    create(bootstrap, "lineage")
    fill(bootstrap, "lineage", 0, COUNT)
    more = (
        '[transform]\nsteps = [{ name = "one", sql = "select n + 1.5 as more, * from input" }]\n'
        f'[lineage]\nurl = "{server.url}"\nnamespace = "tests"\ninterval_seconds = 3600\n'
    )
    spark_job(tmp_path, bootstrap, "lineage", more=more)
    assert run_app(["pipeline", "run", "--once", "--quiet", str(tmp_path / "job.toml")]) == 0
    assert [event["eventType"] for event in server.events] == ["START", "RUNNING", "COMPLETE"]
    last = server.events[-1]
    rows, dead = last["outputs"]
    columns = {f["name"]: f["type"] for f in rows["facets"]["schema"]["fields"]}
    assert columns["more"] == "decimal(22,1)"
    assert columns["_offset"] == "bigint"
    (topic,) = last["inputs"]
    assert [f["name"] for f in topic["facets"]["schema"]["fields"]] == ["n", "text"]
    counts = [one["outputFacets"]["outputStatistics"]["rowCount"] for one in (rows, dead)]
    assert counts == [COUNT, len(BROKEN)]
