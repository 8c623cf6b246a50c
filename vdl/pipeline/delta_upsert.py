"""Upserts into a Delta table: one MERGE of delta-rs, which is one commit with the batch's offsets.

delta-rs rewrites the files that have one of the batch's keys, and does not even open those whose
least and largest values, or whose partitions, say that they have none. The files that it writes are
not synced when they are named. So they are synced behind the commit, and until then the table's
last commit may be lost to a power cut as a whole: `undo_torn` takes it back where one of its files
is not what the log says. Nobody was told of it yet, and the files that it replaced are there still,
as is the state that the commit before names.

Must not know: Spark, Kafka, how a job's offsets are kept.
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
"""Of a merge's memory, beyond which it writes to temporary files."""
CHECKPOINT_COMMITS = 100
"""From one checkpoint of the log to the next: those of a torn commit could not be taken back, so
delta-rs makes none by itself."""
MAGIC = b"PAR1"
"""What a Parquet file ends with."""


def check_upsert(path: str, table: DeltaTable) -> None:
    """That rows may be replaced. Raises DeltaRefused."""
    properties = dict(table.metadata().configuration)
    reasons = []
    if str(properties.get("delta.appendOnly", "")).lower() == "true":
        reasons.append("its rows may only be added (delta.appendOnly)")
    if str(properties.get("delta.enableDeletionVectors", "")).lower() == "true":
        reasons.append("it has deletion vectors")
    if reasons:
        raise DeltaRefused(path, reasons)


def check_rows(path: str, table: DeltaTable, changes: Changes, partitions: Sequence[str]) -> None:
    """That the table can hold what it is to hold. Raises DeltaRefused."""
    rows = changes.kept()
    fields = json.loads(table.schema().to_json())["fields"]
    required = [field["name"] for field in fields if not field["nullable"]]
    reasons = [
        f"its column {name} is NOT NULL, and NULL in rows"
        for name in required_nulls(rows, required)
    ]
    reasons += [
        f"its partition column {name} is an empty text in rows, which Delta reads as NULL"
        for name in partitions
        if rows.num_rows and "" in rows[name].unique().to_pylist()
    ]
    if reasons:
        raise DeltaRefused(path, reasons)


def merge(
    table: DeltaTable, changes: Changes, key: Sequence[str], properties: CommitProperties
) -> None:
    """One commit, or none where nothing of the table changes. Raises CommitFailedError."""
    same = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in key)
    merger = table.merge(
        changes.rows,
        same,
        source_alias="s",
        target_alias="t",
        # The batch is in memory, and its least and largest keys say which files are looked at.
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
    """A column's name in SQL."""
    return f"`{name.replace('`', '``')}`"


def sync_files(path: str, version: int, storage: Storage) -> None:
    """Make the files that a commit names durable, with their names. Of a folder."""
    files = [file for file, _ in _added(path, version)]
    for file in files:
        storage.finish(file)
    storage.sync_names({str(Path(file).parent) for file in files})


def tidy_log(table: DeltaTable) -> None:
    """What delta-rs does behind a commit: now that its files are durable."""
    if table.version() % CHECKPOINT_COMMITS == 0:
        table.create_checkpoint()
        table.cleanup_metadata()


def undo_torn(path: str, table: DeltaTable, storage: Storage) -> bool:
    """Take back the last commit where a power cut came before its files were durable; whether it
    was so. Of a folder."""
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
    """(path, bytes) of the files that a commit adds."""
    found: list[tuple[str, int]] = []
    try:
        text = Path(f"{path}/_delta_log/{version:020d}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return found  # Behind a checkpoint, so long durable.
    for line in text.splitlines():
        action: dict[str, Any] = json.loads(line)
        if "add" in action:
            name = unquote(action["add"]["path"])
            found.append(
                (name if name[:1] == "/" else f"{path}/{name}", int(action["add"]["size"]))
            )
    return found
