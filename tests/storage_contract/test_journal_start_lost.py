"""The start of the newest journal file is lost: zeros, an older header, or no bytes at all.

The file's contents were acknowledged, so the log must not silently come back older: its replica
would vote twice in a term. A file that was prepared and never used looks alike.
"""

import errno
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from segments.api import Buffer, HardState, Log, StoredEntry, StoreOptions
from segments.format.block import FileHeader, decode_file_header, encode_file_header
from segments.io.fs import RealFile, RealFileSystem
from segments.io.inline_workers import InlineWorkers
from segments.store import DiskStore

JOURNAL_BYTES = 256 << 10
PIECE_BYTES = 64 << 10


class Engine:
    """One data directory with one log, and its store."""

    def __init__(self, path: Path) -> None:
        self.path = path / "data"
        self.start()
        self.create(9)

    def start(self) -> None:
        self.workers = InlineWorkers()
        options = StoreOptions(
            journal_file_bytes=JOURNAL_BYTES,
            journal_first_file_bytes=JOURNAL_BYTES // 2,
            meta_map_bytes=1 << 24,
            checkpoint_bytes=1 << 40,
            checkpoint_interval_ms=10**9,
        )
        self.store = DiskStore.open(
            RealFileSystem(), str(self.path), self.workers, options, random.Random(1)
        )

    def create(self, group_id: int) -> Log:
        made: list[Log] = []
        self.store.create_log(group_id, 1, on_created=made.append)
        self.workers.advance(10)
        return made[0]

    @property
    def log(self) -> Log:
        """Newest log."""
        return self.store.logs[max(self.store.logs)]

    @property
    def current(self) -> int:
        return self.store._journal.current_sequence

    def put(self, count: int = 1, size: int = 5_000) -> None:
        """Append entries, each in a block of its own; nothing proves the last."""
        for _ in range(count):
            log = self.log
            index = log.last_index + 1
            data = bytes([index & 0xFF]) * size
            self.store.append(log, [StoredEntry(1, index, 0, data, log.next_offset, 1, 1)])
            hard = log.hard_state
            self.store.set_hard_state(log, HardState(max(hard.term, 1), hard.vote, index))
            self.store.submit()
            self.workers.pump()

    def vote(self) -> None:
        log = self.log
        self.store.set_hard_state(log, HardState(7, 3, log.commit_index))
        self.store.submit()
        self.workers.advance(1_000)

    def roll(self) -> None:
        """Append until another file is written to."""
        before = self.current
        while self.current == before:
            self.put()

    def recycle(self) -> None:
        """Append until a used file has become a prepared one."""
        for _ in range(3):
            self.roll()
            self.store.checkpoint()
            self.workers.advance(1_000)

    def journals(self) -> dict[int, Path]:
        files = (self.path / "journal").glob("*.journal")
        return {int(file.stem, 16): file for file in sorted(files)}

    def prepared(self) -> list[Path]:
        return [file for sequence, file in self.journals().items() if sequence > self.current]

    def outcome(self) -> tuple[int, int, int]:
        hard = self.log.hard_state
        return self.log.last_index, hard.term, hard.vote

    def is_lost(self) -> bool:
        return self.log.lost


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def zero(path: Path, end: int) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes(end) + data[end:])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def older_header(path: Path) -> None:
    """Write an older header, as if the newest one had never overwritten that of an earlier use."""
    data = path.read_bytes()
    header = decode_file_header(data)
    assert header is not None
    older = encode_file_header(FileHeader(header.sequence - 1, 1, 0, 0, 0, header.marks))
    path.write_bytes(older + data[len(older) :])


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def flip_twice(path: Path) -> None:
    flip(path, 20)
    flip(path, 4096 + 21)


def rot(path: Path, page: int) -> None:
    """Damage all of one page."""
    data = path.read_bytes()
    path.write_bytes(
        data[:page] + bytes(b ^ 0x5A for b in data[page : page + 4096]) + data[page + 4096 :]
    )


SMALL_DAMAGES: dict[str, Callable[[Path], None]] = {
    "bit": lambda path: flip(path, 20),
    "length": lambda path: flip(path, 13),
    "sector": lambda path: zero(path, 512),
    "page": lambda path: zero(path, 4096),
    "rot": lambda path: rot(path, 0),
    "parity": lambda path: rot(path, 4096),
}
DAMAGES: dict[str, Callable[[Path], None]] = {
    "bits": flip_twice,
    "pages": lambda path: zero(path, 8192),
    "blocks": lambda path: zero(path, 24 << 10),
    "older": older_header,
    "empty": lambda path: cut(path, 0),
    "sector left": lambda path: cut(path, 512),
    "page left": lambda path: cut(path, 4096),
    "header left": lambda path: cut(path, 8192),
}
BEGUN = ("behind the one before", "by a start", "in a recycled file")


def begin(engine: Engine, begun: str) -> None:
    """Return an engine whose newest file holds acknowledged blocks."""
    engine.put(4)
    if begun == "by a start":
        engine.store.abandon()
        engine.start()
    elif begun == "in a recycled file":
        engine.recycle()
        engine.roll()
    else:
        engine.roll()
    engine.put(8)
    engine.vote()


@pytest.mark.parametrize("damage", SMALL_DAMAGES)
@pytest.mark.parametrize("begun", BEGUN)
def test_one_damaged_page_of_a_header_costs_nothing(
    engine: Engine, begun: str, damage: str
) -> None:
    """A damaged header page follows from the others and is rewritten before the next damage."""
    begin(engine, begun)
    want = engine.outcome()
    newest = engine.journals()[engine.current]
    whole = newest.read_bytes()[:8192]
    engine.store.abandon()
    for other in SMALL_DAMAGES.values():
        SMALL_DAMAGES[damage](newest)
        engine.start()
        assert not engine.is_lost()
        assert engine.outcome() == want
        assert engine.store.stats()["recovered_damaged_headers"] == 1
        engine.store.abandon()
        assert newest.read_bytes()[:8192] == whole
        other(newest)
        engine.start()
        assert not engine.is_lost()
        engine.store.abandon()


@pytest.mark.parametrize("page", [0, 4096, 8192])
def test_unreadable_page_of_a_header_costs_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """An unreadable first block may lose logs, but does not stop the start."""
    begin(engine, "behind the one before")
    want = engine.outcome()
    newest = engine.journals()[engine.current]
    engine.store.abandon()
    unreadable(monkeypatch, newest, page)
    engine.start()
    if page < 8192:
        assert not engine.is_lost()
        assert engine.outcome() == want
    else:
        assert engine.is_lost()


def test_unreadable_page_anywhere_in_the_journal_keeps_nobody_out(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other logs are unaffected: the damaged part names its log, or later records do."""
    begin(engine, "behind the one before")
    engine.store.abandon()
    aside = tmp_path / "aside"
    shutil.copytree(engine.path, aside)
    for name in sorted(path.name for path in engine.journals().values()):
        size = (engine.path / "journal" / name).stat().st_size
        for page in range(0, size, 4096 * 5):
            shutil.rmtree(engine.path)
            shutil.copytree(aside, engine.path)
            with monkeypatch.context() as patch:
                unreadable(patch, engine.path / "journal" / name, page)
                engine.start()
                engine.store.abandon()


def unreadable(monkeypatch: pytest.MonkeyPatch, path: Path, page: int) -> None:
    """Make this page unreadable until it is written to."""
    bad = path.stat().st_ino
    written: list[int] = []
    real_read, real_write = RealFile.pread, RealFile.pwrite

    def pread(file: RealFile, length: int, position: int) -> bytes:
        end = min(position + length, file.size())
        is_bad = os.fstat(file._fd).st_ino == bad and not written
        if is_bad and position < page + 4096 and end > page:
            raise OSError(errno.EIO, "bad sector")
        return real_read(file, length, position)

    def pwrite(
        file: RealFile, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        if os.fstat(file._fd).st_ino == bad and position <= page:
            written.append(page)
        return real_write(file, buffers, position, durable=durable)

    monkeypatch.setattr(RealFile, "pread", pread)
    monkeypatch.setattr(RealFile, "pwrite", pwrite)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("begun", BEGUN)
def test_file_that_was_acknowledged_is_not_taken_for_one_that_never_was(
    engine: Engine, begun: str, damage: str
) -> None:
    """However it began.

    A start repeats the last block, so its file begins before the end of the previous one; a
    recycled file holds older blocks behind the newest.
    """
    begin(engine, begun)
    newest = engine.journals()[engine.current]
    engine.store.abandon()
    DAMAGES[damage](newest)
    for _ in range(2):  # the second start finds the notes of the first
        engine.start()
        assert engine.is_lost()
        engine.store.abandon()


@pytest.mark.parametrize("size", [512, 4096, 8192, 12288])
def test_start_that_is_all_there_is_left_of_a_first_write(engine: Engine, size: int) -> None:
    """The sectors of the first write arrive in any order, and a power cut stops them.

    A block that nothing proves was never acknowledged.
    """
    engine.put(4)
    before = engine.outcome()
    engine.store.abandon()
    for _ in range(3):
        engine.start()
        newest = engine.journals()[engine.current]
        engine.store.abandon()
        zero(newest, size)
    engine.start()
    assert not engine.is_lost()
    assert engine.outcome() == before


def test_prepared_file_is_used_whatever_it_holds(engine: Engine) -> None:
    """No start takes a prepared file's zeros or leftovers for damage, and the next uses it."""
    kinds = set()
    for life in range(6):
        if life:
            engine.recycle()
        engine.put(2)
        engine.vote()
        want = engine.outcome()
        files = engine.prepared()
        kinds |= {any(file.read_bytes()) for file in files}
        engine.store.abandon()
        engine.start()
        assert not engine.is_lost()
        assert engine.outcome() == want
        assert engine.journals()[engine.current] == files[0]
    assert kinds == {False, True}


def test_bad_sector_in_a_file_that_was_never_used_keeps_nobody_out(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written there, so nothing is lost; the next write replaces the sector."""
    engine.put(2)
    engine.vote()
    want = engine.outcome()
    (prepared, *_) = engine.prepared()
    engine.store.abandon()
    bad = prepared.stat().st_ino
    real = RealFile.pread

    def pread(file: RealFile, length: int, position: int) -> bytes:
        end = min(position + length, file.size())
        if os.fstat(file._fd).st_ino == bad and position < 69_632 and end > 65_536:
            raise OSError(errno.EIO, "bad sector")
        return real(file, length, position)

    monkeypatch.setattr(RealFile, "pread", pread)
    engine.start()
    assert not engine.is_lost()
    assert engine.outcome() == want
    assert engine.journals()[engine.current] == prepared


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 5_000, 3 * PIECE_BYTES])
def test_piece_with_the_name_of_a_journal_file_is_not_damage(engine: Engine, size: int) -> None:
    """The piece has its name before it is extended, and is extended before that is synced.

    It may hold blocks written on an earlier full disk.
    """
    engine.put(4)
    oldest, newest = engine.journals()[1], max(engine.journals())
    engine.roll()
    engine.vote()
    want = engine.outcome()
    engine.store.abandon()
    for n, data in enumerate((bytes(size), oldest.read_bytes()[:PIECE_BYTES])):
        piece = oldest.with_name(f"{newest + 1 + n:016x}.journal")
        piece.write_bytes(data + bytes(size - len(data)))
    engine.start()
    assert not engine.is_lost()
    assert engine.outcome() == want


def test_replica_made_anew_does_not_pay_for_a_journal_that_was_lost(engine: Engine) -> None:
    """Prepared files hold blocks of the lost journal.

    The new journal continues behind all of them: they never look like its missing blocks.
    """
    engine.put(4)
    engine.recycle()
    engine.recycle()
    assert any(any(file.read_bytes()) for file in engine.prepared())
    engine.store.abandon()
    for sequence, file in engine.journals().items():
        if sequence <= engine.current:
            zero(file, 8192)
    engine.start()
    assert engine.is_lost()
    engine.store.delete_log(engine.log.log_id)
    engine.workers.advance(1_000)
    engine.create(10)
    for _ in range(4):
        engine.put(2)
        want = engine.outcome()
        engine.store.abandon()
        engine.start()
        assert not engine.is_lost()
        assert engine.outcome() == want
