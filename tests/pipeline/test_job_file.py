"""Job files: what is wrong in them is found before anything is begun."""

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
    """Paths are of the file's folder, tables of dead letters and checkpoints beside the table."""
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


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('name = "flights"', "", "job.name: is needed"),
        ('name = "flights"', 'name = "a/b"', "job.name"),
        ('name = "flights"', "name = 5", "job.name: must be text"),
        ('path = "out"', 'path = "out"\nmode = "fast"', "sink.mode: there is no such setting"),
        ('path = "out"', 'path = "out"\nkind = "csv"', "sink.kind"),
        ('path = "out"', 'path = "out"\n[sunk]\na = 1', "sunk: there is no such section"),
        ('topics = ["flights"]', "topics = []", "source.topics"),
        ('topics = ["flights"]', 'topics = ["f"]\nstart = "soon"', "start"),
        ('topics = ["flights"]', 'topics = ["f"]\noptions = {maxRow = 5}', "maxrow"),
        ('topics = ["flights"]', 'topics = ["f"]\nkind = "kafka"\nsegments = ["d"]', "segments"),
        ('schema = "year int"', "", "decode.schema"),
        ('path = "out"', 'path = "out"\n[errors]\nshare_max = 2', "share_max"),
        ('path = "out"', 'path = "out"\n[errors]\npath = "out"', "errors.path"),
        ('path = "out"', 'path = "out"\n[errors]\npath = "./a/../out"', "errors.path"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "a/../out"', "hold nor lie in sink"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "."', "hold nor lie in sink.path"),
        ('path = "out"', 'path = "out"\n[run]\ncheckpoint = "out/c"', "hold nor lie in sink.path"),
        (
            'path = "out"',
            'path = "out"\n[run]\ncheckpoint = "out-dead"',
            "hold nor lie in errors.path",
        ),
        ('path = "out"', 'path = "out"\n[transform]\nsteps = [{name = "input"}]', "input"),
        ("[job]", "[job", "Expected"),
    ],
)
def test_job_file_with_a_mistake_is_refused(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, GOOD.replace(old, new)))
    assert any(problem in one for one in refused.value.problems), refused.value.problems


def test_job_file_with_a_checkpoint_that_is_a_link_to_the_table_is_refused(tmp_path: Path) -> None:
    """What lies in it would be removed by another name."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to("out")
    with pytest.raises(JobInvalid, match="hold nor lie in"):
        load_job(write(tmp_path, GOOD + '[run]\ncheckpoint = "link/c"\n'))
    beside = load_job(write(tmp_path, GOOD + '[run]\ncheckpoint = "out-c"\n'))
    assert beside.checkpoint == str(tmp_path / "out-c")


def test_job_file_with_several_mistakes_tells_all(tmp_path: Path) -> None:
    text = GOOD.replace('name = "flights"', "").replace('bootstrap = "127.0.0.1:9092"', "")
    with pytest.raises(JobInvalid) as refused:
        load_job(write(tmp_path, text))
    assert len(refused.value.problems) == 2
