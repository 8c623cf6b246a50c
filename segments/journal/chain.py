"""The journal files that count, and where the journal goes on.

Each file's header names the file before it, so the files form a chain. A start follows it from the
newest file to the oldest. A file that was begun on a full disk may stand for the newest ones before
it: those go once a second block proves its first.

Must not know: how files are made, what is in the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segments.format.block import FileHeader, Mark, encode_file_header
from segments.journal.files import JournalFile


@dataclass(slots=True)
class Position:
    """Where the journal goes on after recovery."""

    lsn: int
    chain: int
    """CRC of the block before."""
    next_sequence: int
    previous: int
    """Sequence of the file before; 0: none."""
    replaced: int = 0
    """Not 0: the file before counts only up to so many bytes before `lsn`."""


class Chain:
    """The files from the oldest to the one being written."""

    __slots__ = ("begins", "crc", "divided", "durable_lsn", "paths", "recorded_lsn", "replaced")

    def __init__(self) -> None:
        self.durable_lsn = 0
        """Use: each block says it, and so proves those before it; the next block begins here.
        Invariant: the LSN behind the last block that is known to be on disk."""
        self.recorded_lsn = 0
        """Use: peers may remember it. A block that only proves the one before, or carries commit
        indexes alone, is left out: nothing is lost with it that peers do not tell again, so a start
        that finds it damaged is not behind.
        Invariant: the LSN behind the last block on disk that needs a proof."""
        self.crc = 0
        """Use: the CRC of the next block is seeded with it.
        Invariant: the CRC of the block that was built last and not taken back."""
        self.paths: dict[int, str] = {}
        """Use: the files by sequence, also those in `replaced`.
        Invariant: a file comes in when its first block is on disk. It goes when nothing in it is
        needed, or when `replaced` is proved."""
        self.begins: dict[int, int] = {}
        """Use: by sequence, the LSN up to which the files before that one count.
        Invariant: has every file in `paths`, and the one whose first block is on its way."""
        self.replaced: list[int] = []
        """Use: the files for which the newest one stands.
        Invariant: they stay in `paths` until a second block of the newest file is on disk."""
        self.divided: list[tuple[int, int]] = []
        """Use: (first, last) file of each batch that lies in several.
        Invariant: a file behind the first of them is never the oldest one that is replaced, for the
        batch's entries are noted as of the first."""

    def open(
        self, position: Position, live: Sequence[tuple[int, str]], begins: Mapping[int, int]
    ) -> None:
        """Go on at `position`, behind the `live` files of a recovery: (sequence, path)."""
        self.durable_lsn = self.recorded_lsn = position.lsn
        self.crc = position.chain
        self.paths = dict(live)
        self.begins = {sequence: begins[sequence] for sequence in self.paths}

    def live(self) -> list[int]:
        """Sequences of the files that a new one would follow, ascending."""
        return sorted(self.paths.keys() - set(self.replaced))

    def first_of_newest(self, count: int) -> int:
        """Sequence of the oldest of the newest `count` files; 0: there are not so many."""
        return sorted(self.paths)[-count] if len(self.paths) >= count else 0

    def begin(self, file: JournalFile, marks: list[Mark], stands_for: int) -> bytes:
        """The header of `file`, which is next. It stands for the files from `stands_for` on, unless
        that is 0."""
        begin = self.begins[stands_for] if stands_for else self.durable_lsn
        live = self.live()
        previous = max((n for n in live if not 0 < stands_for <= n), default=0)
        self.begins[file.sequence] = begin
        file.start_lsn = self.durable_lsn
        if stands_for:
            self.replaced += [n for n in live if n >= stands_for]
        return encode_file_header(
            FileHeader(
                file.sequence, file.salt, self.durable_lsn, previous, self.crc, marks,
                replaced=self.durable_lsn - begin,
            )
        )  # fmt: skip

    def inside(self, live: Sequence[int]) -> set[int]:
        """Those of the `live` files that hold the rest of a batch which begins in an older one."""
        self.divided = [(first, last) for first, last in self.divided if last >= live[0]]
        return {n for first, last in self.divided for n in live if first < n <= last}

    def release(self, sequence: int) -> list[str]:
        """Drop the files before `sequence`; their paths, oldest first."""
        gone = [n for n in sorted(self.paths) if n < sequence]
        return [self._drop(n) for n in gone]

    def drop_replaced(self) -> list[str]:
        """Drop the files for which the newest one stands, now that its first block is proved; their
        paths."""
        gone = [n for n in self.replaced if n in self.paths]
        self.replaced = []
        return [self._drop(n) for n in gone]

    def _drop(self, sequence: int) -> str:
        del self.begins[sequence]
        return self.paths.pop(sequence)
