"""The chain of journal files that count, and the position at which the journal continues.

Each file's header names the file before it. A start follows this chain from the newest file to the
oldest. A file begun on a full disk may stand for the newest ones before it; these are released once
a second block proves its first.

Does not depend on how files are made or on the contents of blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segments.format.block import FileHeader, Mark, encode_file_header
from segments.journal.files import JournalFile


@dataclass(slots=True)
class Position:
    """Position at which the journal continues after recovery."""

    lsn: int
    chain: int
    """CRC of the block before."""
    next_sequence: int
    previous: int
    """Sequence of the file before; 0: none."""
    replaced: int = 0
    """If not 0, the file before counts only up to this many bytes before `lsn`."""


class Chain:
    """Files from the oldest to the one being written."""

    __slots__ = ("begins", "crc", "divided", "durable_lsn", "paths", "recorded_lsn", "replaced")

    def __init__(self) -> None:
        self.durable_lsn = 0
        """Use: written in each block, which so proves those before it; the next block begins here.
        Invariant: the LSN after the last block known to be on disk."""
        self.recorded_lsn = 0
        """Use: peers may remember it. Blocks that only prove the one before, or carry only commit
        indexes, are excluded: peers send their contents again, so a start that finds such a block
        damaged has lost nothing.
        Invariant: the LSN after the last block on disk that needs a proof."""
        self.crc = 0
        """Use: seed of the next block's CRC.
        Invariant: the CRC of the block that was built last and not taken back."""
        self.paths: dict[int, str] = {}
        """Use: the files by sequence, including those in `replaced`.
        Invariant: a file is added when its first block is on disk. It is removed when its contents
        are no longer needed, or when `replaced` is proved."""
        self.begins: dict[int, int] = {}
        """Use: by sequence, the LSN up to which the files before that one count.
        Invariant: has every file in `paths`, and the one whose first block is being written."""
        self.replaced: list[int] = []
        """Use: the files for which the newest one stands.
        Invariant: they stay in `paths` until a second block of the newest file is on disk."""
        self.divided: list[tuple[int, int]] = []
        """Use: (first, last) file of each batch that is divided over several.
        Invariant: a file after the first of these is never the oldest replaced one, because the
        batch's entries are noted as being in the first."""

    def open(
        self, position: Position, live: Sequence[tuple[int, str]], begins: Mapping[int, int]
    ) -> None:
        """Continue at `position`, after the `live` files of a recovery: (sequence, path)."""
        self.durable_lsn = self.recorded_lsn = position.lsn
        self.crc = position.chain
        self.paths = dict(live)
        self.begins = {sequence: begins[sequence] for sequence in self.paths}

    def live(self) -> list[int]:
        """Return the sequences of the files that a new one would follow, ascending."""
        return sorted(self.paths.keys() - set(self.replaced))

    def first_of_newest(self, count: int) -> int:
        """Return the sequence of the oldest of the newest `count` files; 0 if there are fewer."""
        return sorted(self.paths)[-count] if len(self.paths) >= count else 0

    def begin(self, file: JournalFile, marks: list[Mark], stands_for: int) -> bytes:
        """Return the header of `file`, which is next.

        It stands for the files from `stands_for` on, unless that is 0.
        """
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
        """Return those of the `live` files that hold the rest of a batch begun in an older one."""
        self.divided = [(first, last) for first, last in self.divided if last >= live[0]]
        return {n for first, last in self.divided for n in live if first < n <= last}

    def release(self, sequence: int) -> list[str]:
        """Drop the files before `sequence`; return their paths, oldest first."""
        gone = [n for n in sorted(self.paths) if n < sequence]
        return [self._drop(n) for n in gone]

    def drop_replaced(self) -> list[str]:
        """Drop the replaced files, now that the newest file's first block is proved.

        Return their paths.
        """
        gone = [n for n in self.replaced if n in self.paths]
        self.replaced = []
        return [self._drop(n) for n in gone]

    def _drop(self, sequence: int) -> str:
        del self.begins[sequence]
        return self.paths.pop(sequence)
