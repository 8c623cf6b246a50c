"""Upserts into a Delta table: one MERGE of delta-rs, which is one commit with the batch's offsets.

delta-rs rewrites the files that have one of the batch's keys. It does not open files whose minimum
and maximum values, or whose partitions, exclude all keys. It does not sync the files that it
writes. They are synced here after the commit; until then a power cut may destroy the table's last
commit: `undo_torn` reverts it if one of its files does not match the log. The commit was not yet
reported to any caller, and the files that it replaced still exist, as does the state that the
previous commit names.

Does not depend on Spark, on Kafka, or on how a job's offsets are stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.transaction import CommitProperties, PostCommitHookProperties

from vdl.pipeline.delta_rules import DeltaRefused
from vdl.pipeline.storage import Storage
from vdl.pipeline.table import DELETE, OP, ROW
from vdl.pipeline.upsert import Changes, required_nulls

MERGE_BYTES = 512 << 20
"""Memory limit of a merge, beyond which it spills to temporary files."""
CHECKPOINT_COMMITS = 100
"""Commits between checkpoints of the log.

delta-rs makes none by itself, because a torn commit in a checkpoint could not be reverted.
"""
MAGIC = b"PAR1"
"""Last bytes of a Parquet file."""


def check_upsert(path: str, table: DeltaTable) -> None:
    """Check that rows of the table may be replaced. Raises DeltaRefused."""
    properties = dict(table.metadata().configuration)
    reasons = []
    if str(properties.get("delta.appendOnly", "")).lower() == "true":
        reasons.append("its rows may only be added (delta.appendOnly)")
    if str(properties.get("delta.enableDeletionVectors", "")).lower() == "true":
        reasons.append("it has deletion vectors")
    if reasons:
        raise DeltaRefused(path, reasons)


def check_rows(path: str, table: DeltaTable, changes: Changes, partitions: Sequence[str]) -> None:
    """Check that the table can hold the rows to be written. Raises DeltaRefused."""
    rows = changes.kept()
    fields = json.loads(table.schema().to_json())["fields"]
    required = [field["name"] for field in fields if not field["nullable"]]
    reasons = [
        f"its column {name} is NOT NULL, but NULL in some rows"
        for name in required_nulls(rows, required)
    ]
    reasons += [
        f"its partition column {name} is an empty string in some rows, which Delta reads as NULL"
        for name in partitions
        if rows.num_rows and "" in rows[name].unique().to_pylist()
    ]
    if reasons:
        raise DeltaRefused(path, reasons)


def merge(
    table: DeltaTable, changes: Changes, key: Sequence[str], properties: CommitProperties
) -> None:
    """Merge in one commit, or in none if the table does not change. Raises CommitFailedError."""
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
    merger = table.merge(
        changes.rows,
        same,
        source_alias="s",
        target_alias="t",
        # The batch is in memory, and its minimum and maximum keys select the files to search.
        streamed_exec=False,
        max_spill_size=MERGE_BYTES,
        commit_properties=properties,
        post_commithook_properties=PostCommitHookProperties(
            create_checkpoint=False, cleanup_expired_logs=False
        ),
    )
    merger = (
        merger.when_matched_delete(f"s.{OP} = '{DELETE}'")
        .when_matched_update_all(except_cols=[OP])
        .when_not_matched_insert_all(f"s.{OP} = '{ROW}'", except_cols=[OP])
    )
    if changes.truncates:
        merger = merger.when_not_matched_by_source_delete()
    merger.execute()


def quoted(name: str) -> str:
    """Return a column's name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"


def sync_files(path: str, version: int, storage: Storage) -> None:
    """Make the files that a commit names, and their names, durable. For tables in a folder."""
    files = [file for file, _ in _added(path, version)]
    for file in files:
        storage.finish(file)
    storage.sync_names({str(Path(file).parent) for file in files})


def tidy_log(table: DeltaTable) -> None:
    """Do the maintenance of the log that delta-rs would do after a commit.

    The commit's files must be durable.
    """
    if table.version() % CHECKPOINT_COMMITS == 0:
        table.create_checkpoint()
        table.cleanup_metadata()


def undo_torn(path: str, table: DeltaTable, storage: Storage) -> bool:
    """Revert the last commit if a power cut came before its files were durable.

    Return True if it did. For tables in a folder.
    """
    version = table.version()
    if all(_is_whole(file, size, storage) for file, size in _added(path, version)):
        return False
    log = f"{path}/_delta_log"
    storage.remove(f"{log}/{version:020d}.json")
    storage.sync_names([log])
    return True


def _is_whole(file: str, size: int, storage: Storage) -> bool:
    if storage.size(file) != size:
        return False
    with storage.open(file) as opened:
        opened.seek(max(0, size - len(MAGIC)))
        return bool(opened.read() == MAGIC)


def _added(path: str, version: int) -> list[tuple[str, int]]:
    """Return (path, bytes) of the files that a commit adds."""
    found: list[tuple[str, int]] = []
    try:
        text = Path(f"{path}/_delta_log/{version:020d}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return found  # Older than a checkpoint, so durable.
    for line in text.splitlines():
        action: dict[str, Any] = json.loads(line)
        if "add" in action:
            name = unquote(action["add"]["path"])
            found.append(
                (name if name[:1] == "/" else f"{path}/{name}", int(action["add"]["size"]))
            )
    return found
