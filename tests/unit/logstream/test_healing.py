"""What a replica answers to those that ask it for entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from raft.types import EntryKind
from rpc.ranges import RangeRequest, decode_entries, encode_range
from segments.api import Compacted, StoredEntry
from vdl.logstream.healing import Healing

GROUP = 7


class Log:
    """Entries 3 to 9 in memory; a range that is none is a mistake of whoever asks."""

    holes: Sequence[tuple[int, int]] = ()

    def entries(self, first: int, end: int, _bytes_max: int) -> list[StoredEntry]:
        assert first < end, (first, end)
        if first < 3:
            raise Compacted(f"index {first} is below 3")
        return [StoredEntry(1, n, EntryKind.NORMAL, b"x", n, 1, 0) for n in range(first, end)]


@dataclass
class Replica:
    """A group whose entries up to `commit` are known to be committed."""

    commit: int = 6
    log: Log = field(default_factory=Log)


@dataclass
class Wire:
    """What was sent."""

    frames: list[bytes] = field(default_factory=list)

    def send(self, _server_id: int, _frame_type: Any, buffers: Sequence[Any]) -> bool:
        self.frames.append(b"".join(bytes(buffer) for buffer in buffers))
        return True


@pytest.mark.parametrize(
    ("first", "end", "answered"),
    [
        (4, 6, [4, 5]),
        (5, 99, [5, 6]),
        (7, 9, []),
        (9, 10, []),
        (2, 5, []),
    ],
    ids=["all", "up to the commit index", "just behind it", "far behind it", "cut off"],
)
def test_asked_for_entries_gives_committed_ones_only(
    first: int, end: int, answered: list[int]
) -> None:
    """What is here and not known to be committed is not given, nor is it looked at."""
    group: Any = Replica()
    wire: Any = Wire()
    nobody: Any = None
    healing = Healing(
        server_id=1,
        groups={GROUP: group},
        alive={},
        store=nobody,
        transport=wire,
        clock=nobody,
        log=nobody,
        healed=lambda _: None,
    )
    (asked,) = encode_range(RangeRequest(12, GROUP, first, end))
    healing.asked(2, memoryview(bytes(asked)))
    (frame,) = wire.frames
    request, entries = decode_entries(memoryview(frame))
    assert (request, [entry.index for entry in entries]) == (12, answered)
