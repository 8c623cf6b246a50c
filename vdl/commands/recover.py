"""`vdl recover`: the last step when a majority of the servers' disks is gone for good.

The plan opens the directory with changes kept in memory. The recovery opens it as a start does.
`vdl.logstream.majority_loss` knows what a directory holds, and what has to be written.
"""

from __future__ import annotations

import dataclasses
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from segments.api import DirectoryInUse, StorageError, StoreOptions
from segments.io.fs import FileSystem, RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.io.scratch_fs import ScratchFileSystem
from segments.store import DiskStore
from segments.tool import INDEX_ENTRIES
from vdl.commands.output import emit, fail, json_option, say, table
from vdl.logstream.majority_loss.survivor import Fate, GroupPlan, NotRecoverable, Plan, Survivor
from vdl.logstream.majority_loss.take_over import CLUSTER_ID_BYTES, take_over

MIB = 1 << 20
KEPT = """\
Kept: all that this server has of these groups, also what was perhaps never committed. What the lost
servers had beyond it may be lost, and nothing here knows how much: in partitions records after "to
offset", in the catalog topics, settings and users, in coordinators committed offsets and ends of
transactions."""
LINES_MAX = 20
"""Number of committed offsets that the text shows."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--accept-data-loss", is_flag=True, help="Do it, after the cluster id has been typed."
)
@click.option("--yes", "name", metavar="CLUSTER", help="The cluster id, instead of typing it.")
@click.option(
    "--index-entries", default=INDEX_ENTRIES, show_default=True, metavar="N",
    help="Value of storage.index_segment_entries of the server.",
)  # fmt: skip
@json_option
def recover(
    *, directory: Path, accept_data_loss: bool, name: str | None, index_entries: int, as_json: bool
) -> None:
    """Let one server go on alone when a majority of the disks is gone for good.

    THE LAST STEP, after all else: records that only the lost servers had are lost. Use it only if
    their disks will never come back. If one more of them can be saved, start that server instead.

    DIR is the data directory of the server that is left, with the longest log if there are several.
    Stop that server first. Without --accept-data-loss the command changes nothing: it shows what
    the directory holds, and what may be lost.

    Afterwards start this server, then the others with empty directories and their old ids. They are
    taken in like replaced servers. Servers with an old disk are refused.
    """
    if name is not None and not accept_data_loss:
        raise click.UsageError("--yes is for --accept-data-loss")
    if not (directory / "identity").exists():
        fail(f"{directory} is not a data directory")
    scratch = StoreOptions(
        accept_empty=False, index_segment_entries=index_entries, journal_file_bytes=MIB,
        journal_first_file_bytes=MIB,
    )  # fmt: skip
    with _opened(directory, ScratchFileSystem(), scratch) as (store, workers):
        plan = Survivor(store, workers).plan()
    if not accept_data_loss:
        emit(as_json, _document(plan), lambda: _show(plan, directory))
        return
    if not as_json:
        _show(plan, directory)
    if not plan.is_needed:
        fail("there is nothing to recover: every group here has this server as its only voter")
    _consent(plan.record.cluster_id, name)
    options = StoreOptions(accept_empty=False, index_segment_entries=index_entries)
    with _opened(directory, RealFileSystem(), options) as (store, workers):
        plan = Survivor(store, workers).plan()
        cluster_id = take_over(
            store, workers, plan, random=os.urandom(CLUSTER_ID_BYTES),
            now_ms=time.time_ns() // 1_000_000,
        )  # fmt: skip
        store.close(_nothing)
        workers.pump()
    emit(as_json, {**_document(plan), "new_cluster_id": cluster_id}, lambda: _done(cluster_id))


@contextmanager
def _opened(
    directory: Path, fs: FileSystem, options: StoreOptions
) -> Iterator[tuple[DiskStore, InlineWorkers]]:
    """Open a directory, and release it at the end. Raise click.ClickException."""
    workers = InlineWorkers()
    try:
        store = DiskStore.open(fs, str(directory), workers, options, random.Random(os.urandom(16)))
        try:
            yield store, workers
        finally:
            store.abandon()
    except DirectoryInUse:
        fail(f"{directory} is in use by a running server; stop the server first")
    except (StorageError, OSError, NotRecoverable) as error:
        fail(f"{directory}: {error}")


def _consent(cluster_id: str, name: str | None) -> None:
    """Require the cluster id. Raise click.ClickException, click.UsageError or click.Abort."""
    if name is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"nothing is done without --yes={cluster_id}")
        name = click.prompt("Type the cluster id to accept the loss", err=True, default="")
    if name != cluster_id:
        fail(f"nothing was done: {name!r} is not the cluster id, {cluster_id}")


def _nothing() -> None:
    """Do nothing."""


# --- output ---------------------------------------------------------------------------------------
def _document(plan: Plan) -> dict[str, Any]:
    return {
        "cluster_id": plan.record.cluster_id,
        "former_cluster_ids": list(plan.record.former_ids),
        "server_id": plan.server_id,
        "is_needed": plan.is_needed,
        "group_ids_left_out": plan.ids_left_out,
        "groups": [
            {**dataclasses.asdict(row), "fate": row.fate.value} for row in plan.groups
        ],
        "offsets_beyond_end": [dataclasses.asdict(one) for one in plan.offsets_beyond],
        "offsets_beyond_end_count": plan.offsets_beyond_count,
    }  # fmt: skip


def _show(plan: Plan, directory: Path) -> None:
    say(f"cluster {plan.record.cluster_id}, server {plan.server_id}, {directory}")
    if plan.record.former_ids:
        say(f"  recovered before; its first id was {plan.record.former_ids[0]}")
    say()
    columns = (
        "group", "fate", ">last entry", ">known committed", ">from offset", ">to offset",
        ">to known committed", "last record or command", ">open transactions",
    )  # fmt: skip
    table(columns, map(_row, plan.groups))
    say()
    kept, lost = plan.of(Fate.KEPT), plan.of(Fate.LOST)
    if kept:
        say(KEPT)
    for row in lost:
        say(f"Lost altogether: {row.name}: {row.why}")
    for row in plan.of(Fate.UNKNOWN):
        say(f"Removed: {row.name}, a partition of a topic that the catalog here does not know")
    if plan.ids_left_out:
        say(f"Left out: the ids of {plan.ids_left_out} partitions, which the catalog here lacks")
    for row in plan.groups:
        if not row.is_voter:
            having = ", ".join(map(str, row.voters))
            say(
                f"Not a voter: the copy of {row.name} here may lack more than those of servers "
                f"{having}"
            )
        if row.aborted_transactions:
            say(f"Aborted: {row.aborted_transactions} open transactions in {row.name}")
        if row.committed_transactions:
            say(
                f"Committed: {row.committed_transactions} open transactions in {row.name}, as their"
                " coordinator here says"
            )
    for one in plan.offsets_beyond[:LINES_MAX]:
        say(
            f"Committed beyond the end: group {one.group} at {one.offset} of {one.topic}-"
            f"{one.partition}, which ends at {one.end_offset}"
        )
    if plan.offsets_beyond_count > LINES_MAX:
        say(f"  and {plan.offsets_beyond_count - LINES_MAX} other committed offsets (--json)")
    if not plan.is_needed:
        say("Nothing to recover: every group here has this server as its only voter.")


def _row(row: GroupPlan) -> tuple[object, ...]:
    numbers = (
        row.last_index, row.commit_index, row.log_start_offset, row.end_offset, row.committed_offset
    )  # fmt: skip
    return (
        row.name,
        row.fate.value,
        *(None if number < 0 else number for number in numbers),
        _time(row.last_ms),
        row.open_transactions or None,
    )


def _time(ms: int) -> str | None:
    if ms < 0:
        return None
    try:
        return f"{datetime.fromtimestamp(ms / 1_000, UTC):%F %T}Z"
    except (OverflowError, ValueError, OSError):
        return str(ms)


def _done(cluster_id: str) -> None:
    say(f"Done. The cluster's id is {cluster_id} now.")
    say("Next: start this server. Then start the others with empty data directories and their old")
    say("ids, one after the other. Those that `vdl member list` shows as waiting are added again")
    say("with `vdl member add`. `vdl status` shows when all copies are there. Never start a server")
    say("with an old disk of this cluster again.")
