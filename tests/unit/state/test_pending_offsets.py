"""Offsets committed in transactions: invisible until the end, and the later one in the log wins."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands, pending_offsets
from vdl.state.coordinator import Coordinator

G = "g"


class Life:
    """One coordinator of a group, whose transactions are identified by their producer."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.index = 0

    def apply(self, command: Any) -> Any:
        self.index += 1
        result = self.machine.apply(command, self.index, self.index)
        copy = Coordinator()
        copy.load(self.machine.items())
        assert copy.items() == self.machine.items()
        assert copy.bytes_held == self.machine.bytes_held
        return result

    def pend(
        self,
        producer: int,
        offset: int,
        *,
        number: int = 1,
        epoch: int = 0,
        group: str = G,
        asked_at: int = -1,
    ) -> ErrorCode:
        offsets = [commands.OffsetCommit("t", b"i" * 16, 0, offset, -1, "", 900)]
        command = commands.CommitTransactionOffsets(
            group, -1, "", None, producer, epoch, number, offsets, asked_at
        )
        return ErrorCode(self.apply(command).error)

    def end(self, producer: int, commits: bool, *, number: int = 1) -> None:
        self.apply(commands.EndTransactionOffsets(producer, 0, number, commits))

    def commit(self, offset: int) -> None:
        offsets = [commands.OffsetCommit("t", b"i" * 16, 0, offset, -1, "", 900)]
        assert self.apply(commands.CommitOffsets(G, -1, "", None, offsets)).error == 0

    def position(self, group: str = G) -> int:
        found = self.machine.offsets.get(group, "t", 0)
        return -1 if found is None else found.offset

    @property
    def is_unstable(self) -> bool:
        return self.machine.pending.is_unstable(G, "t", 0)


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_are_seen_when_their_transaction_commits(commits: bool) -> None:
    life = Life()
    life.commit(3)
    assert life.pend(7, 5) is ErrorCode.NONE
    assert life.pend(7, 6) is ErrorCode.NONE
    assert (life.position(), life.is_unstable) == (3, True)
    life.end(7, commits)
    assert (life.position(), life.is_unstable) == (6 if commits else 3, False)
    assert not life.machine.pending.holds(G)


def test_end_that_is_told_again_ends_nothing_more() -> None:
    """A repeated end has no effect, nor the previous transaction's while the next is open."""
    life = Life()
    life.pend(7, 5)
    life.end(7, True)
    assert life.pend(7, 9, number=2) is ErrorCode.NONE
    life.end(7, False)
    assert life.is_unstable
    life.end(7, True, number=2)
    assert life.position() == 9


def test_offset_that_comes_after_its_transaction_is_refused() -> None:
    """An offset verified before the end and applied after it is refused.

    No end would ever follow.
    """
    life = Life()
    life.end(7, True, number=4)
    assert life.pend(7, 5, number=4) is ErrorCode.INVALID_TXN_STATE
    assert life.pend(7, 5, number=5) is ErrorCode.NONE
    life.apply(commands.EndTransactionOffsets(7, 3, 5, False))
    assert life.pend(7, 5, number=6, epoch=2) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_later_commit_in_the_log_stands() -> None:
    """The later commit in the log wins, independent of which transaction ends first."""
    life = Life()
    life.pend(7, 5)
    life.pend(8, 6)
    life.end(8, True)
    life.end(7, True)
    assert life.position() == 6
    life.pend(7, 10, number=2)
    life.commit(11)
    assert not life.is_unstable, "nothing can move it any more"
    life.end(7, True, number=2)
    assert life.position() == 11


def test_group_with_pending_offsets_does_not_expire() -> None:
    life = Life()
    life.pend(7, 5)
    life.apply(commands.ExpireOffsets(0, [], 10**12))
    assert life.machine.group(G) is not None
    life.end(7, False)
    life.apply(commands.ExpireOffsets(0, [], 10**12))
    assert life.machine.group(G) is None


def test_pending_offsets_go_with_their_group_and_their_partition() -> None:
    life = Life()
    life.pend(7, 5)
    life.pend(7, 5, group="h")
    assert life.apply(commands.DeleteGroups([G])).errors == [ErrorCode.NONE]
    assert not life.is_unstable
    life.pend(7, 5)
    life.apply(commands.ExpireOffsets(10**12, [900]))
    life.end(7, True)
    assert (life.position(), life.position("h")) == (-1, -1)


def test_only_the_latest_producers_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recent producer is removed first; a restarted replica removes the same one next."""
    monkeypatch.setattr(pending_offsets, "ENDED_MAX", 2)
    life = Life()
    for producer in (7, 8, 7, 9):
        life.end(producer, True, number=life.index + 1)
    assert life.pend(8, 1) is ErrorCode.NONE
    assert life.pend(7, 1) is ErrorCode.INVALID_TXN_STATE
    copy = Coordinator()
    copy.load(life.machine.items())
    for machine in (copy, life.machine):
        machine.apply(commands.EndTransactionOffsets(10, 0, 1, True), 9, 9)
    assert copy.items() == life.machine.items()


def test_offset_that_comes_after_an_end_that_is_forgotten_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An offset verified before its transaction's end is refused, also thousands of ends later.

    The producer's next transaction would commit it, or abort what was committed.
    """
    monkeypatch.setattr(pending_offsets, "ENDED_MAX", 2)
    life = Life()
    life.commit(3)
    asked_at = life.machine.index
    life.end(7, True)
    for producer in (8, 9):
        life.end(producer, True)
    late = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert life.pend(7, 5, asked_at=asked_at) is late
    restarted = Life()
    restarted.machine.load(life.machine.items())
    restarted.index = life.index
    assert restarted.pend(7, 5, asked_at=asked_at) is late
    assert life.pend(10, 6, asked_at=asked_at) is late, "nobody knows of this one either"
    life.end(7, True, number=2)
    assert life.position() == 3
    assert life.pend(10, 6, asked_at=life.machine.index) is ErrorCode.NONE
    assert life.pend(8, 7, number=2, asked_at=life.machine.index) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("generation", "member", "error"),
    [
        (-1, "", ErrorCode.NONE),
        (1, "m", ErrorCode.NONE),
        (0, "m", ErrorCode.ILLEGAL_GENERATION),
        (1, "n", ErrorCode.UNKNOWN_MEMBER_ID),
        (-1, "n", ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_members_commit_in_their_generation(generation: int, member: str, error: ErrorCode) -> None:
    """KIP-447. Requests without a member may commit all the same, as older clients do."""
    life = Life()
    life.apply(
        commands.JoinGroup(
            group_id=G, member_id="", new_member_id="m", group_instance_id=None, client_id="c",
            client_host="/h", session_timeout_ms=1, rebalance_timeout_ms=1,
            protocol_type="consumer", protocols=[commands.Protocol("range", b"")],
            known_member_id_required=False, members_max=9, hold_first_rebalance=False,
        )
    )  # fmt: skip
    offsets = [commands.OffsetCommit("t", b"i" * 16, 0, 1, -1, "")]
    command = commands.CommitTransactionOffsets(G, generation, member, None, 7, 0, 1, offsets)
    assert life.apply(command).error is error
    unknown = commands.CommitTransactionOffsets("other", 1, "m", None, 7, 0, 1, offsets)
    assert life.apply(unknown).error is ErrorCode.ILLEGAL_GENERATION
