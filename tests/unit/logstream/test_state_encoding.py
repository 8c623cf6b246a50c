"""A partition's state in checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.logstream.group.state_encoding import AppliedState, StateEncoding
from vdl.state.aborted import RUN_RANGES, AbortedRange, _Run
from vdl.state.partition import PartitionState


class Partition:
    """A log stream, as far as checkpoints of its state need it."""

    entries_are_state = True
    item_count = 1
    large = None

    def __init__(self) -> None:
        self.state = PartitionState()

    def items(self) -> Any:
        return self.state.items()

    def take_meta(self) -> Any:
        return self.state.take_dirty()

    def scan(self) -> None:
        """Return None: the state is read in one piece."""


@pytest.mark.parametrize("is_lost", [True, False])
def test_first_checkpoint_makes_a_long_list_of_aborted_transactions_once(
    monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    """All of it is stored, after a snapshot was installed or meta was lost.

    Each block exists since it was full.
    """
    owner: Any = Partition()
    for number in range(1, 4 * RUN_RANGES):
        offset = 2 * number
        owner.state.aborted.add(AbortedRange(7, offset, offset + 1, number))
    whole = owner.items()
    looked: list[_Run] = []
    unpacked = _Run.ranges

    def ranges(run: _Run) -> list[AbortedRange]:
        looked.append(run)
        return unpacked(run)

    monkeypatch.setattr(_Run, "ranges", ranges)
    applied = AppliedState(owner, is_replaced=not is_lost, piece=100)
    assert applied.collect(is_lost=is_lost) == (dict(whole), True)
    assert looked == []
    assert applied.collect(is_lost=False) == ({}, False)


def test_encoding_that_had_much_to_take_reads_small_pieces_again() -> None:
    """A burst of changes doubles the number of items read at a time, but not after its end."""
    read: list[bytes] = []

    def items() -> Any:
        for number in range(10_000):
            read.append(b"%d" % number)
            yield read[-1], b""

    storm = 100 * [(b"c", b"")], 200 * [(b"c", b"")], 400 * [(b"c", b"")], 3 * [(b"c", b"")]
    changes = iter(storm)
    encoding = StateEncoding(items(), lambda limit: next(changes, [])[:limit], piece=100)
    sizes = []
    for _ in range(7):
        before = len(read)
        encoding.read_on()
        sizes.append(len(read) - before)
    assert sizes == [0, 0, 0, 797, 100, 100, 100]
