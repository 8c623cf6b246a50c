"""Archives of data directories that earlier versions wrote.

`python -m ...golden_files NAME` adds one.

Each is an archive of a directory that uses every format there is, with a file beside it that lists
what a store must show after opening it. Archives are only ever added: a store must keep reading
what earlier versions wrote.
"""

import hashlib
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path

from segments.api import Compaction, HardState, MetaBatch, StoredEntry, StoreOptions
from tests.storage_contract.conftest import DiskHarness

FOLDER = Path(__file__).with_name("golden")
OPTIONS = StoreOptions(
    journal_file_bytes=48 << 10,
    journal_first_file_bytes=16 << 10,
    segment_bytes=4 << 10,
    index_segment_entries=32,
    cache_bytes_max=32 << 10,
    checkpoint_bytes=32 << 10,
    checkpoint_entries=50,
    place_bytes_min=2_000,
    meta_map_bytes=1 << 20,
)
EMPTY = ("reserve", "lock", "lock.mdb")
"""Files whose contents carry no state."""


def append(harness, log, count, size, *, term, commit):
    for _ in range(count):
        index = log.last_index + 1
        data = bytes((index * 7 + n) & 0xFF for n in range(size))
        kind, records = (3, 0) if index % 11 == 0 else (0, 1 + index % 4)
        entry = StoredEntry(term, index, kind, data, log.next_offset, records, index * 1000 % 777)
        harness.store.append(log, [entry])
        if commit:
            harness.store.set_hard_state(log, HardState(term, 2, index))
        harness.submit()


def append_at_once(harness, log, count, size, *, term):
    """Append entries as one batch, which is placed in its segment if there is space."""
    first, offset = log.last_index + 1, log.next_offset
    entries = [
        StoredEntry(term, first + n, 0, bytes([n]) * size, offset + n, 1, n) for n in range(count)
    ]
    harness.store.append(log, entries)
    harness.store.set_hard_state(log, HardState(term, 2, log.last_index))
    harness.submit()


class Cleaner:
    """Cleaner that keeps something of every third entry."""

    def scan(self, entries, *, keys_from):
        return entries[-1].index + 1

    def clean(self, entry, *, markers_upto):
        return b"" if entry.index % 3 else None

    def next_pass(self):
        """Do nothing: memory holds all keys in one pass."""


def fill_with_later_kinds(harness):
    """Add logs that need the later kinds of records.

    They are a log with placed entries, a log without files, and a compacted log in which one
    segment still has its old file beside the new one.
    """
    placed, cleared, compacted = (harness.new_log(group, 1) for group in (14, 15, 16))
    for log in (placed, cleared, compacted):
        append_at_once(harness, log, 40, 200, term=1)
    checkpoint(harness, MetaBatch(compacted.log_id, 40, [(b"a", b"b")]))
    for _ in range(3):
        append_at_once(harness, placed, 4, 900, term=1)
        checkpoint(harness)
    append_at_once(harness, placed, 4, 900, term=1)
    harness.store.trim_log(cleared, first_index=cleared.commit_index + 1)
    append(harness, cleared, 3, 50, term=1, commit=True)
    done = []
    harness.store.compact(
        compacted, Compaction(30, 10), Cleaner, pace=lambda count: 0, done=done.append
    )
    harness.workers.advance(1_000)
    assert done == [True]


def checkpoint(harness, *batches):
    harness.collect(*batches)
    harness.checkpoint()


def fill(harness, *, clean):
    """Write every kind of record, and several files of each kind.

    An installed state still awaits its checkpoint.
    """
    harness.store.adopt_cluster(b"the birth record", lambda: None)
    first = harness.new_log(9, 1)
    second = harness.new_log(10, 3, first_index=7, prev_term=2, next_offset=70)
    gone = harness.new_log(11, 1)
    append(harness, gone, 20, 200, term=1, commit=True)
    harness.store.delete_log(gone.log_id)
    coordinator = harness.new_log(1, 1)
    append(harness, coordinator, 3, 20, term=1, commit=True)
    assert harness.store.note_moved_votes()
    harness.store.delete_log(coordinator.log_id)
    append(harness, first, 90, 150, term=1, commit=True)
    checkpoint(harness, MetaBatch(first.log_id, 80, [(b"key", b"value"), (b"\x00", b"")]))
    harness.store.trim_log(first, first_index=40)
    append(harness, first, 60, 250, term=3, commit=True)
    append(harness, first, 5, 90, term=3, commit=False)
    overwrite = StoredEntry(4, 152, 0, b"another term", first.offset_after(151), 1, -1)
    harness.store.append(first, [overwrite])
    checkpoint(harness, MetaBatch(first.log_id, 150, [(b"key", None), (b"other", b"x" * 99)]))
    harness.store.reset_log(
        second, first_index=100, prev_term=5, next_offset=900, state=b"covered " * 9
    )
    harness.submit()
    checkpoint(harness, MetaBatch(second.log_id, 99, [(b"all", b"of it")], clear=True))
    append(harness, second, 30, 300, term=6, commit=True)
    third = harness.new_log(10, 4)
    state = b"waits for its checkpoint " * 30
    harness.store.reset_log(third, first_index=50, prev_term=6, next_offset=500, state=state)
    append(harness, third, 12, 100, term=6, commit=True)
    harness.store.set_hard_state(third, HardState(8, 1, 61))
    harness.submit()
    for _ in range(6):  # journal files are recycled: the state is written again
        append(harness, first, 20, 900, term=8, commit=True)
        checkpoint(harness)
    # One of each record that the last checkpoint has left behind.
    fill_with_later_kinds(harness)
    append(harness, first, 3, 40, term=8, commit=False)
    end = first.last_index
    entry = StoredEntry(9, end, 0, b"truncated before", first.offset_after(end - 1), 1, 4)
    harness.store.append(first, [entry])
    harness.store.trim_log(first, first_index=first.commit_index - 60)
    fourth, fifth = harness.new_log(12, 1), harness.new_log(13, 1)
    harness.store.reset_log(fourth, first_index=20, prev_term=3, next_offset=33)
    harness.store.reset_log(fifth, first_index=21, prev_term=3, next_offset=34, state=b"fresh")
    harness.submit()
    if clean:
        harness.close()
    else:
        harness.store.append(first, [StoredEntry(9, first.last_index + 1, 0, b"", 0, 0, 0)])
        harness.submit()  # nothing proves its block
        harness.store.abandon()


def shown(harness):
    """Return what a store shows of its logs, as JSON; contents by their digest."""
    logs = {}
    for log_id, log in harness.store.logs.items():
        contents = hashlib.sha256(repr(harness.all_entries(log)).encode()).hexdigest()
        applied, items = harness.store.load_meta(log)
        hard = log.hard_state
        logs[str(log_id)] = {
            "group": log.group_id,
            "replica": log.replica_number,
            "entries": [log.first_index, log.last_index],
            "offsets": [log.log_start_offset, log.next_offset],
            "hard": [hard.term, hard.vote, hard.commit],
            "terms": [log.term(n) for n in range(log.first_index - 1, log.last_index + 1)],
            "installed": hashlib.sha256(log.installed_state).hexdigest(),
            "applied": applied,
            "items": [[key.hex(), value.hex()] for key, value in items],
            "contents": contents,
            "lost": log.lost,
        }
    return {
        "directory": harness.store.directory_id.hex(),
        "cluster": harness.store.cluster_record().hex(),
        "logs": logs,
    }


def open_copy(name, where):
    """Return a harness, not started, on a copy of the archived directory."""
    with tarfile.open(FOLDER / f"{name}.tar.xz") as archive:
        archive.extractall(where, filter="data")
    return DiskHarness(OPTIONS, directory=str(where / "data"))


def main(name):
    for kind in ("clean", "killed"):
        target = FOLDER / f"{name}-{kind}.tar.xz"
        assert not target.exists(), f"{target}: archives are only added"
        with tempfile.TemporaryDirectory() as directory:
            where = Path(directory)
            harness = DiskHarness(OPTIONS, directory=str(where / "data"))
            harness.start()
            fill(harness, clean=kind == "clean")
            with tarfile.open(target, "w:xz", preset=9) as archive:
                for path in sorted((where / "data").rglob("*")):
                    if path.name not in EMPTY and path.parent.name not in EMPTY:
                        add(archive, path, path.relative_to(where))
            harness.start()
            (FOLDER / f"{name}-{kind}.json").write_text(json.dumps(shown(harness), indent=1) + "\n")
            harness.store.abandon()


def add(archive, path, name):
    """Add a member without owner and time."""
    member = tarfile.TarInfo(str(name))
    if path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o700
        archive.addfile(member)
        return
    data = path.read_bytes()
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main(sys.argv[1])
