"""Job files: errors are found before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from vdl.pipeline.errors import JobInvalid
from vdl.pipeline.job import load_job

GOOD = """
[job]
name = "flights"
[source]
bootstrap = "127.0.0.1:9092"
topics = ["flights"]
[decode]
schema = "year int"
[sink]
path = "out"
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "job.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_job_file_with_the_least_has_defaults(tmp_path: Path) -> None:
    """Paths are relative to the file's folder.

    Dead letters and checkpoints are beside the table.
    """
    job = load_job(write(tmp_path, GOOD))
    assert job.sink.path == str(tmp_path / "out")
    assert job.errors.path == str(tmp_path / "out-dead")
    assert job.checkpoint == str(tmp_path / "out-checkpoint")
    assert (job.sink.kind, job.format, job.group) == ("parquet", "json", "vdl-pipeline-flights")


def test_job_file_with_steps_keeps_their_order(tmp_path: Path) -> None:
    text = GOOD + (
        '[transform]\nsteps = [{name = "a", sql = "select 1"}, {name = "b", sql = "select 2"}]\n'
        'tables = {lines = {format = "csv", path = "l.csv", options = {header = true}}}\n'
    )
    job = load_job(write(tmp_path, text))
    assert [step.name for step in job.steps] == ["a", "b"]
    assert job.tables["lines"].path == str(tmp_path / "l.csv")


def test_job_file_paths_may_be_urls_where_only_spark_reads(tmp_path: Path) -> None:
    text = GOOD.replace('"out"', f'"file://{tmp_path}/elsewhere"') + (
        "[transform]\ntables = {"
        'a = {path = "s3a://b/t"}, b = {path = "file:///t"}, c = {path = "t"}}\n'
    )
    job = load_job(write(tmp_path, text))
    assert job.sink.path == f"{tmp_path}/elsewhere"
    paths = [table.path for table in job.tables.values()]
    assert paths == ["s3a://b/t", "file:///t", str(tmp_path / "t")]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('name = "flights"', "", "job.name: is required"),
        ('name = "flights"', 'name = "a/b"', "job.name"),
        ('name = "flights"', "name = 5", "job.name: must be text"),
        ('path = "out"', 'path = "out"\nmodus = "fast"', "sink.modus: unknown setting"),
        ('path = "out"', 'path = "out"\nmode = "fast"', "sink.mode: 'fast' is not one of"),
        ('path = "out"', 'path = "out"\nkind = "csv"', "sink.kind"),
        ('path = "out"', 'path = "out"\n[sunk]\na = 1', "sunk: unknown section"),
        ('topics = ["flights"]', "topics = []", "source.topics"),
        ('topics = ["flights"]', 'topics = ["f"]\nstart = "soon"', "start"),
        ('topics = ["flights"]', 'topics = ["f"]\noptions = {maxRow = 5}', "maxrow"),
        ('topics = ["flights"]', 'topics = ["f"]\nkind = "kafka"\nsegments = ["d"]', "segments"),
        ('schema = "year int"', "", "decode.schema"),
        (
            "[decode]",
            '[[expect.rules]]\nsql = "year > 0"\naction = "warn"\n[decode]',
            "expect.rules: 'warn' is not one of",
        ),
        (
            "[decode]",
            '[[expect.rules]]\naction = "drop"\n[decode]',
            "expect.rules[1].sql: is required",
        ),
        ("[decode]", '[decode]\nformat = "avro"', "registry.url: is required for 'avro'"),
        ("[decode]", '[registry]\nurl = "http://r"\n[decode]', "is not used by format 'json'"),
        (
            "[decode]",
            '[registry]\nurl = "http://r"\npassword = "x"\n[decode]\nformat = "avro"',
            "registry: password: a job file must not contain secrets",
        ),
        (
            "[decode]",
            '[decode]\nformat = "raw"\nrescued = "rest"',
            "decode.rescued: not for raw values",
        ),
        ("[decode]", '[decode]\nenvelope = "canal"', "decode.envelope: 'canal' is not one of"),
        ("[decode]", '[decode]\ntombstones = "delete"', "is only for sink.mode 'upsert'"),
        ("[decode]", '[decode]\ntombstones = "keep"', "decode.tombstones: 'keep' is not one of"),
        ('path = "out"', 'path = "out"\n[errors]\nshare_max = 2', "share_max"),
        ('path = "out"', 'path = "out"\n[errors]\npath = "out"', "errors.path"),
        ('path = "out"', 'path = "out"\n[errors]\npath = "./a/../out"', "errors.path"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "a/../out"', "be inside sink"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "."', "be inside sink.path"),
        ('path = "out"', 'path = "out"\n[run]\ncompact_every = -1', "run.compact_every"),
        ('path = "out"', 'path = "s3://b/t"', "sink.path: 's3://b/t' is not on a file system"),
        ('path = "out"', 'path = "o"\n[errors]\npath = "s3a://b/d"', "errors.path: 's3a://b/d'"),
        ('path = "out"', 'path = "o"\n[run]\ncheckpoint = "hdfs://n/c"', "run.checkpoint: 'hdfs:"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "out/c"', "be inside sink.path"),
        (
            'path = "out"',
            'path = "out"\n[run]\ncheckpoint = "out-dead"',
            "be inside errors.path",
        ),
        ('path = "out"', 'path = "out"\n[transform]\nsteps = [{name = "input"}]', "input"),
        ("[job]", "[job", "Expected"),
        ("[job]", "spark = 'local'\n[job]", "spark: must be a table"),
        ("[decode]", "[spark]\nsql.ansi.enabled = true\n[decode]", "spark.sql: must be one value"),
        (
            "[decode]",
            "[source.options]\nclient.debug = 'all'\n[decode]",
            "client: must be one value",
        ),
        ('topics = ["flights"]', "topics = [5]", "source.topics: must be a list of strings"),
        ('topics = ["flights"]', 'topics = ["a,b"]', "'a,b' is not a valid topic name"),
        ('topics = ["flights"]', 'topics = ["f"]\nmax_rows = nan', "max_rows: must be finite"),
        ('topics = ["flights"]', 'topics = ["f"]\nmax_bytes = inf', "max_bytes: must be finite"),
        ('topics = ["flights"]', 'topics = ["f"]\nmax_rows = 0.5', "max_rows: must be an integer"),
        (
            'path = "out"',
            'path = "out"\n[run]\ninterval_seconds = inf',
            "interval_seconds: must be",
        ),
        ('path = "out"', 'path = "out"\n[errors]\nrows_min = nan', "rows_min: must be finite"),
        ('path = "out"', 'path = "out"\n[errors]\nshare_max = nan', "share_max: must be finite"),
        ('path = "out"', 'path = "out"\n[metrics]\nlisten = "host"', "'host' has no port"),
        (
            'path = "out"',
            'path = "out"\n[metrics]\nlisten = "host:65536"',
            "'host:65536' has no port",
        ),
    ],
)
def test_job_file_with_a_mistake_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, GOOD.replace(old, new)))
    assert any(problem in one for one in refused.value.problems), refused.value.problems


def test_job_file_with_a_checkpoint_that_is_a_link_to_the_table_is_refused(tmp_path: Path) -> None:
    """The table's contents would be removed under another name."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(JobInvalid, match="be inside"):
        load_job(write(tmp_path, GOOD + '[run]\ncheckpoint = "link/c"\n'))
    beside = load_job(write(tmp_path, GOOD + '[run]\ncheckpoint = "out-c"\n'))
    assert beside.checkpoint == str(tmp_path / "out-c")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("steps", '["select 1"]', "steps[1]: must be a table"),
        ("steps", '[{sql = "select 1"}, 5]', "steps[2]: must be a table"),
        ("steps", '[{sql = "select 1", nmae = "a"}]', "steps[1].nmae: unknown setting"),
        ("steps", "[{sql = 1}]", "steps[1].sql: must be text"),
        ("steps", '[{name = 1, sql = "select 1"}]', "steps[1].name: must be text"),
        ("tables", '{a = "x.csv"}', "tables.a: must be a table"),
        ("tables", '{a = {fromat = "csv", path = "x"}}', "tables.a.fromat: unknown setting"),
        ("tables", '{a = {option = {}, path = "x"}}', "tables.a.option: unknown setting"),
        ("tables", '{a = {options = "header", path = "x"}}', "tables.a.options: must be a table"),
        ("tables", '{a = {options = {b = [1]}, path = "x"}}', "tables.a.options.b: must be one"),
        ("tables", "{a = {path = 5}}", "tables.a.path: must be text"),
        ("tables", '{a = {format = "csv"}}', "tables.a: has no path"),
    ],
)
def test_job_file_with_a_mistake_in_its_transformation_is_refused(
    tmp_path: Path, key: str, value: str, problem: str
) -> None:
    """Rows that bypass an unread step are wrong without any error."""
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, f"{GOOD}[transform]\n{key} = {value}\n"))
    assert any(f"transform.{problem}" in one for one in refused.value.problems)


def test_job_file_with_a_value_for_a_section_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, 'source = 5\nspark = "local"\n[job]\nname = "flights"\n'))
    assert {"source: must be a table", "spark: must be a table"} <= set(refused.value.problems)


def test_job_file_with_an_address_of_metrics_is_taken(tmp_path: Path) -> None:
    """A port alone means this machine."""
    for listen in ("", "9400", ":9400", "127.0.0.1:9400", "[::1]:65535"):
        job = load_job(write(tmp_path, f'{GOOD}[metrics]\nlisten = "{listen}"\n'))
        assert job.metrics_listen == listen


def test_job_file_with_settings_that_librdkafka_does_not_take_is_refused(tmp_path: Path) -> None:
    """All are reported before Spark starts; files on which they depend may be elsewhere."""
    pytest.importorskip("confluent_kafka", reason="needs the `dev` or `spark` extra")
    topic = GOOD.replace('path = "out"', 'path = "out"\nkind = "topic"\ntopic = "to"')
    options = """
[source.options]
"client.fetch.min.bytes" = 5
"client.nonsense" = 1
"client.ssl.ca.location" = "/nowhere/ca.pem"
[sink.options]
"linger.ms" = "soon"
"acks" = "all"
"error_cb" = "print"
"""
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, topic + options))
    source, linger, callback = refused.value.problems
    assert "source.options: client.nonsense: No such configuration property" in source
    assert "sink.options: linger.ms: Invalid value" in linger
    assert "sink.options: error_cb: cannot be set in a job file" in callback


def test_job_file_with_several_mistakes_tells_all(tmp_path: Path) -> None:
    text = GOOD.replace('name = "flights"', "").replace('bootstrap = "127.0.0.1:9092"', "")
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, text))
    assert len(refused.value.problems) == 2


def test_job_file_of_an_iceberg_table_has_a_catalog(tmp_path: Path) -> None:
    """The default is a catalog of its own; a secret is given by its place."""
    iceberg = GOOD.replace('path = "out"', 'path = "out"\nkind = "iceberg"')
    job = load_job(write(tmp_path, iceberg))
    assert job.sink.table == "default.out"
    assert job.sink.catalog["uri"] == f"sqlite:///{tmp_path}/catalog.db"
    more = 'table = "lake.air.out"\n[sink.catalog]\nuri = "http://c"\ntoken = "env:T"\n'
    assert load_job(write(tmp_path, iceberg + more)).sink.catalog["token"] == "env:T"
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, iceberg + more.replace("env:T", "T").replace("lake.air.out", "o")))
    name, secret = refused.value.problems
    assert "sink.table: 'o' is not namespace.name" in name
    assert "sink.catalog: token: a job file must not contain secrets" in secret
    with pytest.raises(JobInvalid, match="catalog: only for kind 'iceberg'"):
        load_job(write(tmp_path, GOOD + 'table = "a.b"\n'))


UPSERT = GOOD.replace(
    'path = "out"', 'path = "out"\nkind = "delta"\nmode = "upsert"\nkey = ["year"]'
)


def test_job_file_of_upserts_deletes_by_tombstones(tmp_path: Path) -> None:
    job = load_job(write(tmp_path, UPSERT))
    assert (job.sink.upsert_key, job.tombstones, job.is_upsert) == (("year",), "delete", True)
    assert not load_job(write(tmp_path, GOOD)).is_upsert


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            'kind = "delta"',
            'kind = "parquet"',
            "sink.mode: upsert is only for ('delta', 'iceberg')",
        ),
        ('key = ["year"]', "", "sink.key: is required"),
        ('key = ["year"]', "key = []", "sink.key: upsert requires at least one column"),
        ('key = ["year"]', 'key = "year"', "sink.key: must be a list of strings"),
        ('key = ["year"]', 'key = ["a", "a"]', "sink.key: lists a column twice"),
        (
            'key = ["year"]',
            'key = ["year"]\npartition_by = ["year", "land"]',
            "sink.partition_by: land is not in sink.key",
        ),
        ("[decode]", '[decode]\nformat = "raw"', "decode.format: upsert requires columns"),
        ("[decode]", '[decode]\ntombstones = "null"', "decode.tombstones: 'null' writes rows"),
        (
            'topics = ["flights"]',
            'topics = ["a", "b"]',
            "source.topics: upsert requires exactly one topic",
        ),
        (
            "[decode]",
            '[transform]\nsteps = [{sql = "select 1"}]\n[decode]',
            "transform.steps: not for upsert",
        ),
        (
            "[decode]",
            '[window]\ntime = "t"\nsize = "1 hour"\nlate = "1 hour"\n'
            'values = {n = "count(*)"}\n[decode]',
            "window: not for upsert",
        ),
    ],
)
def test_job_file_of_upserts_that_cannot_be_says_why(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    """Each reason is a line of its own."""
    assert old in UPSERT
    with pytest.raises(JobInvalid) as failed:
        load_job(write(tmp_path, UPSERT.replace(old, new)))
    assert [one for one in failed.value.problems if problem in one], failed.value.problems
    assert len(failed.value.problems) == 1
