"""Copies of each group on the disks of stopped servers, compared entry by entry.

A copy consists of what the server itself would read: entries in log segments up to the durable end,
and behind it those in the journal, each with its CRC checked.

Does not depend on how the servers came to stop, nor on clients.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from segments.api import DirectoryInUse
from segments.directory.identity import LogIdentity
from segments.format.frame import read_frame
from segments.io.fs import RealFileSystem
from segments.journal.files import file_path
from segments.tool import DamagedRange, Directory

CLOSED_SECONDS_MAX = 10.0
Digest = tuple[int, int, int]
"""Term, base offset, CRC of the payload."""


@dataclass(slots=True)
class Copy:
    """One replica's log. `problem` is the reason why it cannot be read to its end."""

    directory: Path
    group_id: int
    replica_number: int
    commit: int
    lost: bool
    entries: dict[int, Digest] = field(default_factory=dict)
    problem: str = ""

    @property
    def name(self) -> str:
        return f"group {self.group_id} in {self.directory}"


def read_copies(stores: Iterable[Path]) -> list[Copy]:
    """Return every log of every data directory. No server may be using one."""
    return [copy for store in stores for copy in _read_store(store)]


def assert_equal(copies: list[Copy], *, replicas: int) -> int:
    """Check that all copies of each group are equal; return the number of entries compared.

    Each group has `replicas` complete copies, with the same entries up to the highest commit index
    among them. So all servers must have ended at once: where one stops before the others, they
    elect a leader, and it commits an entry that the first one never received.
    """
    groups: dict[int, list[Copy]] = defaultdict(list)
    for copy in copies:
        groups[copy.group_id].append(copy)
    compared = 0
    for group_id, found in sorted(groups.items()):
        whole = [copy for copy in found if not copy.lost]
        assert len(whole) == replicas, (
            f"group {group_id} has {len(whole)} whole copies, and {len(found)} in all"
        )
        compared += _compare(whole)
    assert compared, "nothing was compared"
    return compared


def _compare(copies: list[Copy]) -> int:
    commit = max(copy.commit for copy in copies)
    for copy in copies:
        assert not copy.problem, f"{copy.name}: {copy.problem}"
        last = max(copy.entries, default=0)
        assert last >= commit, f"{copy.name} ends at {last}, before commit {commit}"
    # Logs of commands are trimmed behind their checkpoints, at a time of each server's choice.
    first = max(min(copy.entries, default=commit + 1) for copy in copies)
    for index in range(first, commit + 1):
        digests = {copy.entries.get(index) for copy in copies}
        assert len(digests) == 1, (
            f"entry {index} of group {copies[0].group_id} differs: "
            f"{[(str(copy.directory), copy.entries.get(index)) for copy in copies]}"
        )
    return max(0, commit + 1 - first)


def _read_store(store: Path) -> list[Copy]:
    with open_directory(store) as directory:
        return [_read_log(directory, known) for _, known in sorted(directory.identity.logs.items())]


def open_directory(store: Path) -> Directory:
    """Open a directory.

    Files of a process that has just been killed are closed a moment after it is gone.
    """
    deadline = time.monotonic() + CLOSED_SECONDS_MAX
    while True:
        try:
            return Directory(RealFileSystem(), str(store))
        except DirectoryInUse:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _read_log(directory: Directory, known: LogIdentity) -> Copy:
    replayed = directory.replay.logs[known.log_id]
    copy = Copy(
        Path(directory.path), known.group_id, known.replica_number,
        max(replayed.commit, replayed.flushed_index), replayed.lost,
    )  # fmt: skip
    if copy.lost:
        return copy
    try:
        for found in directory.entries(known):
            if isinstance(found, DamagedRange):
                copy.problem = f"entries [{found.first}, {found.end}) cannot be read"
                return copy
            copy.entries[found.index] = (found.term, found.base_offset, crc32c(found.data))
        # Entries not known to be committed here may be committed by another copy.
        start = max(replayed.first_index, replayed.flushed_index + 1)
        for index, ref in sorted(replayed.frames.items()):
            if index < start:
                continue
            path, position = file_path(f"{directory.path}/journal", ref.sequence), ref.position
            if ref.placed is not None:
                path = directory.files(known).segment_path(ref.placed.segment)
                position = ref.placed.position
            file = directory.fs.open(path)
            try:
                view = memoryview(file.pread(ref.length, position))
            finally:
                file.close()
            entry = read_frame(view, 0, known.group_id, position)
            copy.entries[entry.index] = (entry.term, entry.base_offset, crc32c(entry.data))
            assert entry.index == index, (entry.index, index)
    except Exception as error:  # noqa: BLE001 - on any error this copy cannot be read
        copy.problem = f"{type(error).__name__}: {error}"
    return copy
