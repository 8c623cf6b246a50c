"""Audit of copies that have lost entries without a trace in the remaining files.

A directory is written by a store without threads, copied twice, and one copy is damaged. No Spark.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from segments.io.fs import RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.store import DiskStore
from segments.tool import INDEX_ENTRIES, Directory, verify
from tests.pipeline.test_audit import found_in
from tests.storage_contract.damage import flip_bit
from tests.unit.segments.conftest import OPTIONS, Bench
from vdl.pipeline.audit import GIVEN_UP, GOOD, LOST, MISSING, Finding, tail_of

SIZES = replace(OPTIONS, index_segment_entries=INDEX_ENTRIES, cache_bytes_max=1 << 20)
FLUSHED, LAST, OTHER_LAST = 100, 105, 10
GROUP, OTHER_GROUP = 9, 10


class Server(Bench):
    """Directory as servers write it, with smaller files."""

    def open(self) -> DiskStore:
        self.workers = InlineWorkers()
        self.store = DiskStore.open(
            RealFileSystem(), self.directory, self.workers, SIZES, random.Random(3)
        )
        return self.store


def fill(server: Server) -> None:
    """Write two logs: 100 entries in segments and 5 in the journal, and 10 in the journal."""
    first, second = server.create(2)
    server.append(first, FLUSHED, size=300)
    server.checkpoint()
    server.append(first, LAST - FLUSHED, size=300)
    server.append(second, OTHER_LAST, size=300)
    server.idle()
    server.store.abandon()


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    server = Server(tmp_path / "one")
    fill(server)
    paths = [server.path, tmp_path / "two", tmp_path / "three"]
    for path in paths[1:]:
        shutil.copytree(server.path, path)
    return paths


def audited(copies: list[Path]) -> list[Finding]:
    return found_in([str(path) for path in copies])[0]


def missing(replica: Path, first: int, end: int, *, group: int = GROUP) -> list[Finding]:
    """Return findings for missing entries: entry n has offset n - 1 in the other copies."""
    return [Finding(group, n, str(replica), "missing", n - 1) for n in range(first, end)]


def is_agreed(copy: Path) -> bool:
    """Return True if `vdl log verify` finds problems in the same logs of a copy."""
    with Directory(RealFileSystem(), str(copy), INDEX_ENTRIES) as directory:
        told = {report.group_id for report in verify([directory])[0] if report.problems}
    return told == {one.group for one in audited([copy])}


def log_folder(copy: Path) -> Path:
    return copy / "logs" / "00000001"


def test_audit_of_copies_in_one_piece_finds_nothing(copies: list[Path]) -> None:
    findings, entries = found_in([str(path) for path in copies])
    assert findings == []
    assert entries == 3 * (LAST + OTHER_LAST)


def remove_first_segment(copy: Path) -> None:
    (log_folder(copy) / "0000000001.log").unlink()


def remove_first_segment_and_index(copy: Path) -> None:
    remove_first_segment(copy)
    (log_folder(copy) / "0000000000.index").unlink()


def remove_logs(copy: Path) -> None:
    shutil.rmtree(copy / "logs")


def test_audit_names_every_entry_of_a_first_segment_that_is_gone(copies: list[Path]) -> None:
    """The entries are those up to the first one of the next segment, exclusive."""
    remove_first_segment(copies[1])
    with Directory(RealFileSystem(), str(copies[1]), INDEX_ENTRIES) as directory:
        begins = directory.segments(directory.identity.logs[1])[0].first_index
    assert 1 < begins < FLUSHED
    assert audited(copies) == missing(copies[1], 1, begins)
    assert is_agreed(copies[1])


def test_audit_names_every_entry_of_segments_that_are_gone(copies: list[Path]) -> None:
    """Entries in the journal are still there."""
    remove_logs(copies[2])
    assert audited(copies) == missing(copies[2], 1, FLUSHED + 1)
    assert is_agreed(copies[2])


def test_audit_of_one_copy_names_what_is_gone_without_the_others(copies: list[Path]) -> None:
    remove_logs(copies[0])
    found = audited(copies[:1])
    assert [(one.index, one.what, one.offset) for one in found] == [
        (n, "missing", -1) for n in range(1, FLUSHED + 1)
    ]


@pytest.mark.parametrize("is_there", [True, False])
def test_audit_of_an_emptied_journal_names_each_log(copies: list[Path], is_there: bool) -> None:
    """Nothing records any more what either log should hold, so no single entry is reported."""
    for file in (copies[1] / "journal").iterdir():
        file.unlink()
    if not is_there:
        (copies[1] / "journal").rmdir()
    assert audited(copies) == [
        Finding(group, 1, str(copies[1]), LOST, 0) for group in (GROUP, OTHER_GROUP)
    ]
    assert is_agreed(copies[1])


def flip_in_the_journal(copy: Path, index: int) -> None:
    """Flip a bit of an entry's frame that is only in the journal, and has long been durable."""
    with Directory(RealFileSystem(), str(copy), INDEX_ENTRIES) as directory:
        ref = directory.replay.logs[1].frames[index]
    flip_bit(copy / "journal" / f"{ref.sequence:016x}.journal", ref.position + 100)


def test_audit_names_entries_that_the_journal_lost(copies: list[Path]) -> None:
    """Entries from the first unreadable one on are unreachable: that log is lost, the other is not.

    Entries still readable in a lost log's journal do not count against a good copy.
    """
    flip_in_the_journal(copies[1], FLUSHED + 3)
    lost = Finding(GROUP, FLUSHED + 1, str(copies[1]), LOST, FLUSHED)
    assert audited(copies) == [lost, *missing(copies[1], FLUSHED + 3, LAST + 1)]
    assert is_agreed(copies[1])
    with Directory(RealFileSystem(), str(copies[1]), INDEX_ENTRIES) as directory:
        assert all(row[-1] != GOOD for row in tail_of(directory, 1))


def start_and_stop(copy: Path) -> None:
    server = Server(copy)
    server.idle()
    server.store.abandon()


@pytest.mark.parametrize("index", [FLUSHED, FLUSHED + 3])
def test_audit_names_a_log_that_its_server_has_given_up(copies: list[Path], index: int) -> None:
    """A start has found the log lost, and the identity records it.

    Covers a lost entry that is also in a segment, and one that is nowhere else.
    """
    flip_in_the_journal(copies[1], index)
    start_and_stop(copies[1])
    lost = Finding(GROUP, FLUSHED + 1, str(copies[1]), GIVEN_UP, FLUSHED)
    gone = missing(copies[1], FLUSHED + 3, LAST + 1) if index > FLUSHED else []
    assert audited(copies) == [lost, *gone]
    assert is_agreed(copies[1])


def test_audit_of_an_index_that_is_gone_finds_nothing(copies: list[Path]) -> None:
    """An index holds only data derived from the segments, and is rebuilt when needed."""
    (log_folder(copies[1]) / "0000000000.index").unlink()
    assert audited(copies) == []


# --- entries that are not missing ---


def trimmed(server: Server) -> None:
    """Trim the log within a segment, after the first."""
    log = server.open().logs[1]
    server.store.trim_log(log, first_index=70)
    server.store.submit()
    server.idle()


def trimmed_ahead(server: Server) -> None:
    """Trim the log beyond the entries in segments."""
    log = server.open().logs[1]
    server.store.trim_log(log, first_index=FLUSHED + 3)
    server.store.submit()
    server.workers.pump()


def reset(server: Server) -> None:
    """Replace all entries by a snapshot, and append one after it."""
    log = server.open().logs[1]
    server.store.reset_log(log, first_index=LAST + 5, prev_term=1, next_offset=LAST + 4)
    server.append(log, 1)
    server.idle()


def reset_and_flushed(server: Server) -> None:
    reset(server)
    server.append(server.store.logs[1], 100, size=300)
    server.checkpoint()


def behind(server: Server) -> None:
    """Append entries that are not known to be committed."""
    server.append(server.open().logs[1], 5, commit=False)
    server.idle()


def deleted(server: Server) -> None:
    """Delete the log but keep its files."""
    server.open().delete_log(1)
    server.workers.pump()


def empty(server: Server) -> None:
    server.open()
    server.create()


def refilled(server: Server) -> None:
    """Start a new replica of the log at the snapshot that it received."""
    server.open().delete_log(1)
    made: list[object] = []
    server.store.create_log(GROUP, 2, first_index=60, next_offset=59, on_created=made.append)
    server.workers.pump()
    server.append(server.store.logs[3], 90, size=300)
    server.checkpoint()


@pytest.mark.parametrize(
    "live",
    [
        trimmed, trimmed_ahead, reset, reset_and_flushed, behind, deleted, empty, refilled,
    ],
)  # fmt: skip
def test_audit_misses_nothing_that_a_copy_need_not_have(tmp_path: Path, live: Callable) -> None:
    """Holds also if the process died in the middle of it."""
    server = Server(tmp_path / "one")
    fill(server)
    live(server)
    server.store.abandon()
    findings, entries = found_in([str(server.path)])
    assert findings == []
    with Directory(RealFileSystem(), str(server.path), INDEX_ENTRIES) as directory:
        reports, _ = verify([directory])
    assert not any(report.problems for report in reports)
    assert entries == sum(report.entries_read for report in reports) > 0


def test_audit_misses_nothing_behind_a_copys_last_entry(copies: list[Path]) -> None:
    """A commit index may be on disk before the entries that it covers.

    A copy without these entries has not acknowledged them.
    """
    with Directory(RealFileSystem(), str(copies[0]), INDEX_ENTRIES) as directory:
        directory.replay.logs[1].commit = LAST + 5
        rows = tail_of(directory, 1)
    assert [(row[2], row[-1]) for row in rows] == [(n, GOOD) for n in range(FLUSHED + 1, LAST + 1)]


@pytest.mark.parametrize("live", [behind, trimmed_ahead])
def test_audit_of_a_lost_log_misses_only_what_it_need_have(tmp_path: Path, live: Callable) -> None:
    """The lost entry is not known to be committed, or all entries before it are trimmed."""
    server = Server(tmp_path / "one")
    fill(server)
    live(server)
    server.store.abandon()
    flushed, first = (FLUSHED, LAST + 1) if live is behind else (FLUSHED + 2, FLUSHED + 3)
    flip_in_the_journal(server.path, first)
    lost, *gone = audited([server.path])
    assert (lost.index, lost.what) == (flushed + 1, LOST)
    assert [(one.index, one.what) for one in gone] == [(n, MISSING) for n in range(first, LAST + 1)]


def test_audit_misses_nothing_between_copies_that_are_not_equally_long(tmp_path: Path) -> None:
    """One was trimmed, one lags, one has everything; entries in two of them are compared."""
    servers = [Server(tmp_path / name) for name in ("all", "short", "behind")]
    for server, count in zip(servers, (LAST, LAST, 40), strict=True):
        (log,) = server.create()
        server.append(log, count, size=300)
        server.checkpoint()
    servers[1].store.trim_log(servers[1].store.logs[1], first_index=70)
    servers[1].store.submit()
    for server in servers:
        server.idle()
        server.store.abandon()
    findings, entries = found_in([server.directory for server in servers])
    assert findings == []
    assert entries == LAST + (LAST - 69) + 40
