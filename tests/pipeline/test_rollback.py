"""A table restored to an older version, and a job with a new name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

from deltalake import DeltaTable

from tests.pipeline.test_forgotten import written
from tests.pipeline.test_job_file import GOOD
from tests.pipeline.test_tables import COLUMNS, TOPICS, at, batch, rows_of, stage
from vdl.commands.app import run_app
from vdl.pipeline.account import Account, account_of
from vdl.pipeline.errors import CommitConflict, PipelineError, SinkInconsistent
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import dead_table, open_table, rows_table
from vdl.pipeline.rollback import (
    GONE,
    RolledBack,
    Shown,
    Version,
    is_put_back,
    shown,
)
from vdl.pipeline.table import Commit
from vdl.pipeline.table_columns import schema_lines

KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
RUN = {"run": "f" * 12, "host": "here", "since_ms": 1}


def restore(sink: Any, number: int) -> None:
    """Restore the version that commit `number` (from 0) has made, as an operator does."""
    table = sink._load()
    if isinstance(table, DeltaTable):
        table.restore(number)
        return
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number)
    table.manage_snapshots().rollback_to_snapshot(snapshots[number].snapshot_id).commit()


def put_back(folder: Path, kind: str, number: int) -> None:
    """Restore a table in a folder."""
    restore(open_table(kind, str(folder), "job"), number)


@KINDS
@pytest.mark.parametrize("number", [0, 1])
def test_table_that_was_put_back_stops_the_job_until_it_is_rewound(
    tmp_path: Path, kind: str, number: int
) -> None:
    """It then writes again what the older version lacks, once."""
    folder = tmp_path / "t"
    written(folder, kind, 4)
    put_back(folder, kind, number)
    table: Any = open_table(kind, str(folder), "job")
    last = number + 1
    with pytest.raises(RolledBack, match=f"committed 4 .* up to batch {last}; .*pipeline rewind"):
        table.open(TOPICS)
    assert table.rewind(TOPICS, RUN) == at(last, 0)
    again = open_table(kind, str(folder), "job")
    assert again.open(TOPICS) == at(last, 0)
    assert account_of(again) == Account(at(0, 0), last)
    again.commit(batch(again, "a", at(last, 0), at(6, 0)), COLUMNS)
    assert rows_of(again) == list(range(6))
    assert open_table(kind, str(folder), "job").open(TOPICS) == at(6, 0)


@KINDS
def test_command_rewinds_the_table_of_dead_letters_too(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run opens both tables, so a restored one stops it. A new name goes on in both."""

    class Cluster:
        """Cluster with the methods that `rewind` needs."""

        def __init__(self, options: object, **limits: float) -> None:
            del options, limits

        def ids(self) -> dict[str, tuple[str, int]]:
            return TOPICS

        def close(self) -> None:
            pass

    monkeypatch.setattr("vdl.pipeline.topics.Topics", Cluster)
    file = tmp_path / "job.toml"
    text = GOOD.replace('"flights"\n[source]', '"job"\n[source]').replace('["flights"]', '["t"]')
    text = text.replace('path = "out"', f'kind = "{kind}"\npath = "t"')
    file.write_text(text, encoding="utf-8")
    job = load_job(file)
    for table in (rows_table(job), dead_table(job)):
        table.open(TOPICS)
        for n in range(2):
            table.commit(batch(table, f"job-{'0' * 12}", at(n, 0), at(n + 1, 0), n), COLUMNS)
        restore(table, 0)
    assert run_app(["pipeline", "rewind", str(file)]) == 0
    assert capsys.readouterr().out == "t/0: 1\nt/1: 0\n"
    for opened in (rows_table, dead_table):
        assert opened(job).open(TOPICS) == at(1, 0)
    file.write_text(text.replace('name = "job"', 'name = "new"'), encoding="utf-8")
    for _ in range(2):
        run_app(["pipeline", "rewind", "--of", "job", str(file)])
    for opened in (rows_table, dead_table):
        assert opened(load_job(file)).open(TOPICS) == at(1, 0)
        with pytest.raises(SinkInconsistent, match="the job new has taken the place"):
            opened(job).open(TOPICS)


@KINDS
def test_table_that_was_put_back_and_forth_is_as_it_was(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "t"
    written(folder, kind, 3)
    put_back(folder, kind, 0)
    if kind == "delta":
        put_back(folder, kind, 2)
    else:
        table: Any = open_table(kind, str(folder), "job")._load()  # type: ignore[attr-defined]
        newest = max(table.metadata.snapshots, key=lambda one: one.sequence_number)
        table.manage_snapshots().set_current_snapshot(newest.snapshot_id).commit()
    again: Any = open_table(kind, str(folder), "job")
    assert again.open(TOPICS) == at(3, 0)
    assert again.rewind(TOPICS, RUN) == at(3, 0)
    assert again.sequence == 3


@KINDS
@pytest.mark.parametrize("is_late", [False, True])
def test_table_that_is_put_back_while_a_run_is_at_work_stops_the_run(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """Its next commit would hide that rows are missing. Also between its check and its commit."""
    folder = tmp_path / "t"
    run = written(folder, kind, 3)
    late = batch(run, "r", at(3, 0), at(4, 0))
    if is_late:
        write = type(run)._write

        def after(sink: Any, *arguments: Any) -> None:
            put_back(folder, kind, 0)
            write(sink, *arguments)

        monkeypatch.setattr(type(run), "_write", after)
    else:
        put_back(folder, kind, 0)
    with pytest.raises(RolledBack, match="up to batch 1"):
        run.commit(late, COLUMNS)
    monkeypatch.undo()
    again: Any = open_table(kind, str(folder), "job")
    assert again.rewind(TOPICS, RUN) == at(1, 0)
    again.commit(batch(again, "a", at(1, 0), at(4, 0)), COLUMNS)
    assert rows_of(again) == list(range(4))


@KINDS
def test_run_of_a_table_that_was_rewound_is_refused(tmp_path: Path, kind: str) -> None:
    """It has the offsets from before."""
    folder = tmp_path / "t"
    zombie = written(folder, kind, 3)
    late = batch(zombie, "z", at(3, 0), at(4, 0))
    put_back(folder, kind, 0)
    heir: Any = open_table(kind, str(folder), "job")
    heir.rewind(TOPICS, RUN)
    with pytest.raises(CommitConflict, match=f"run {'f' * 12} on here since 1970"):
        zombie.commit(late, COLUMNS)


def test_delta_table_that_was_put_back_before_the_jobs_first_commit_begins_there(
    tmp_path: Path,
) -> None:
    """Another writer has created it."""
    import deltalake

    folder = tmp_path / "t"
    deltalake.DeltaTable.create(str(folder), deltalake.Schema.from_arrow(COLUMNS))
    written(folder, "delta", 2)
    put_back(folder, "delta", 0)
    table: Any = open_table("delta", str(folder), "job")
    with pytest.raises(RolledBack, match="up to batch 0"):
        table.open(TOPICS)
    assert table.rewind(TOPICS, RUN) == at(0, 0)
    assert account_of(table) == Account(at(0, 0))


@KINDS
def test_job_under_another_name_is_refused_and_can_go_on(tmp_path: Path, kind: str) -> None:
    """Its rows would be duplicated. A job of other topics may write to the table."""
    folder = tmp_path / "t"
    written(folder, kind, 2)
    renamed: Any = open_table(kind, str(folder), "renamed")
    assert not renamed.open(TOPICS)
    renamed.check_alone({"t": ("another", 2)})
    with pytest.raises(SinkInconsistent, match=r"the job job has written t .* rewind --of job"):
        renamed.check_alone(TOPICS)
    with pytest.raises(PipelineError, match="nobody is not a job of the table"):
        renamed.take_over("nobody", RUN)
    assert renamed.take_over("job", RUN) == at(2, 0)
    again = open_table(kind, str(folder), "renamed")
    assert again.open(TOPICS) == at(2, 0)
    assert account_of(again) == Account(at(2, 0))


@KINDS
def test_job_whose_place_another_has_taken_is_refused_until_it_takes_it_back(
    tmp_path: Path, kind: str
) -> None:
    """A supervisor, or a second host, still has the old job file: rows would be doubled."""
    folder = tmp_path / "t"
    old = written(folder, kind, 2)
    late = batch(old, "a", at(2, 0), at(3, 0))
    new: Any = open_table(kind, str(folder), "new")
    new.open(TOPICS)
    new.take_over("job", RUN)
    told = "the job new has taken the place of job"
    with pytest.raises(SinkInconsistent, match=told):
        old.commit(late, COLUMNS)
    with pytest.raises(SinkInconsistent, match=told):
        open_table(kind, str(folder), "job").open(TOPICS)
    file = stage(new, f"new-{'1' * 12}", "0-0", 2, 4)
    lines = schema_lines(COLUMNS)
    new.commit(Commit("new", "r", 0, at(2, 0), at(4, 0), 2, 0, (file,), lines), COLUMNS)
    third: Any = open_table(kind, str(folder), "third")
    third.open(TOPICS)
    with pytest.raises(SinkInconsistent, match="rewind --of new`"):
        third.check_alone(TOPICS)
    back: Any = open_table(kind, str(folder), "job")
    assert back.rewind(TOPICS, RUN) == at(2, 0)
    assert back.take_over("new", RUN) == at(4, 0)
    again = open_table(kind, str(folder), "job")
    assert again.open(TOPICS) == at(4, 0)
    again.commit(batch(again, "b", at(4, 0), at(5, 0)), COLUMNS)
    with pytest.raises(SinkInconsistent, match="the job job has taken the place of new"):
        open_table(kind, str(folder), "new").open(TOPICS)


@KINDS
@pytest.mark.parametrize("is_late", [False, True])
def test_of_two_jobs_that_begin_at_once_in_a_new_table_one_writes(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    """When they looked there was no other. Also between the check and the commit of one."""
    folder = tmp_path / "t"
    other: Any = open_table(kind, str(folder), "other")
    other.open(TOPICS)
    other.check_alone(TOPICS)
    file = stage(other, f"other-{'1' * 12}", "0-0", 0, 3)
    first = Commit("other", "r", 0, at(0, 0), at(3, 0), 3, 0, (file,), schema_lines(COLUMNS))
    if is_late:
        write = type(other)._write

        def after(sink: Any, *arguments: Any) -> None:
            monkeypatch.undo()
            written(folder, kind, 1)
            write(sink, *arguments)

        monkeypatch.setattr(type(other), "_write", after)
    else:
        written(folder, kind, 1)
    with pytest.raises(SinkInconsistent, match=r"the job job has written t .* other is new"):
        other.commit(first, COLUMNS)
    assert rows_of(open_table(kind, str(folder), "job")) == [0]


@KINDS
def test_job_may_begin_beside_another_where_it_is_told_to(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "t"
    written(folder, kind, 2)
    beside: Any = open_table(kind, str(folder), "beside")
    assert not beside.open(TOPICS)
    beside.begin_beside(at(0, 0), RUN)
    again: Any = open_table(kind, str(folder), "beside")
    assert again.open(TOPICS) == at(0, 0)
    assert again.sequence == 1
    again.check_alone(TOPICS)
    file = stage(again, f"beside-{'1' * 12}", "0-0", 0, 2)
    lines = schema_lines(COLUMNS)
    again.commit(Commit("beside", "r", 0, at(0, 0), at(2, 0), 2, 0, (file,), lines), COLUMNS)
    assert rows_of(again) == [0, 1]


def commit(sequence: int) -> dict[str, int]:
    return {"sequence": sequence}


def test_versions_say_what_is_shown() -> None:
    """Commits 1 and 2 as versions 1 and 2; version 3 restores 1; another writer's is 4."""
    versions = {
        0: Version(None, None, 0),
        1: Version(0, commit(1), 1),
        2: Version(1, commit(2), 2),
        3: Version(1, None, 1),
        4: Version(3, None, 4),
    }
    assert shown(versions, 4) == Shown(commit(1), age=1)
    assert is_put_back(versions, 4, 2)[0]
    assert not is_put_back(versions, 2, 2)[0]
    assert is_put_back({0: Version(None, None)}, 0, 1) == (True, Shown(None))
    assert is_put_back({}, None, 1) == (True, Shown(None))


def test_versions_that_are_gone_prove_nothing() -> None:
    """Only a commit later than the versions looked at, and not found there, is a proof."""
    put_back = {2: Version(1, commit(2), 2), 3: Version(1, None, 1), 4: Version(3, None, 4)}
    assert is_put_back(put_back, 4, 2) == (True, Shown(None, is_known=False, age=1))
    strangers = {4: Version(GONE, None, 4)}
    assert not is_put_back(strangers, 4, 2)[0]
    with_a_tag = {2: Version(GONE, commit(2), 2), **strangers}
    assert not is_put_back(with_a_tag, 4, 3)[0]
