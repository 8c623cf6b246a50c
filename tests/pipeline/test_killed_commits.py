"""Concurrent committing processes that are killed: every row is there exactly once.

KILLS=20 in the environment makes it longer.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="needs the `spark` extra")
pytest.importorskip("pyiceberg", reason="needs the `spark` extra")

from tests.pipeline.committer import KEYS, ROWS, TOPICS, UPSERT, at, commit_next, table_of
from tests.pipeline.live_rows import live_rows
from tests.pipeline.objects import make_bucket, object_server
from vdl.pipeline import delta_table
from vdl.pipeline.errors import CommitConflict
from vdl.pipeline.storage import resolved_settings, storage_of

pytestmark = pytest.mark.takes_turns(parts=2)

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("KILLS", "1"))
COMMITS_A_KILL = 4
LAST_COMMITS = 6


@pytest.mark.parametrize(
    ("kind", "is_stored"), [("iceberg", False), ("delta", True), ("iceberg-upsert", False)]
)
def test_rows_are_there_once_after_kills_with_two_who_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, *, is_stored: bool
) -> None:
    """Both are runs of one job, one of them wrongly assumed dead; either may be killed."""
    rng = random.Random(1)
    path, catalog = str(tmp_path / "t"), str(tmp_path / "catalog.db")
    commits = KILLS * COMMITS_A_KILL + LAST_COMMITS
    command = [sys.executable, "-m", "tests.pipeline.committer", kind]
    with ExitStack() as stack:
        if is_stored:
            address = stack.enter_context(object_server())
            make_bucket(address, "lake")
            path = "s3://lake/t"
            for name, value in {
                "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me",
                "AWS_SECRET_ACCESS_KEY": "word",
            }.items():  # fmt: skip
                monkeypatch.setenv(name, value)
        command += [path, catalog, str(commits)]

        def start() -> subprocess.Popen[str]:
            return stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            )

        running = [start(), start()]
        for _ in range(KILLS):
            victim = running.pop(rng.randrange(2))
            assert victim.stdout is not None
            for _ in range(rng.randrange(1, COMMITS_A_KILL)):
                victim.stdout.readline()
            victim.kill()
            running.append(start())
        outputs = [process.communicate()[0] for process in running]
        assert [process.returncode for process in running] == [0, 0], outputs
        table = table_of(kind, path, catalog)
        assert table.open(TOPICS) == at(commits * ROWS)
        assert table.sequence == commits
        wanted = list(range(commits * ROWS))
        if kind.endswith(UPSERT):
            wanted = sorted({n * n % KEYS: n for n in wanted}.values())
        assert sorted(row["n"] for row in live_rows(table)) == wanted


def test_run_that_is_not_the_one_to_make_the_table_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen no table.

    The slower one gets a CommitConflict, not an error of the library.
    """
    path, catalog = str(tmp_path / "t"), str(tmp_path / "catalog.db")
    storage = storage_of(path, resolved_settings(path, {}))
    quicker, slower = [table_of("delta", path, catalog) for _ in range(2)]
    for table in (quicker, slower):
        assert not table.open(TOPICS).offset("t", 0)
    make = delta_table.create_table_with_add_actions

    def make_late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(delta_table, "create_table_with_add_actions", make)
        assert commit_next(quicker, storage, "a" * 12, 0) == ROWS
        make(*arguments, **named)

    monkeypatch.setattr(delta_table, "create_table_with_add_actions", make_late)
    with pytest.raises(CommitConflict):
        commit_next(slower, storage, "b" * 12, 0)
    assert table_of("delta", path, catalog).open(TOPICS).offset("t", 0) == ROWS
