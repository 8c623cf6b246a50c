"""Table cases: quorum arithmetic and configuration changes."""

from __future__ import annotations

from collections.abc import Mapping

from ids import Index, NodeId
from raft import describe
from raft.errors import InvalidConfChange
from raft.membership import Membership, enter_joint, leave_joint, simple
from raft.progress import Inflights, Progress, track
from raft.quorum import EVERYTHING, joint_index, joint_vote, majority_index, majority_vote
from tests.conformance.interaction import parse_changes, progress_of_all
from tests.conformance.script import Block


def run_quorum(block: Block) -> list[str]:
    """Run one `committed` or `vote` case: `cfg`, perhaps `cfgj`, and `idx` or `votes` per voter."""
    incoming = _voters(block, "cfg")
    is_joint = "cfgj" in block.named
    outgoing = _voters(block, "cfgj")
    order = list(dict.fromkeys(incoming + outgoing))
    if block.command == "vote":
        votes = {voter: value == "y" for voter, value in _known(block, "votes", order).items()}
        result = (
            joint_vote(incoming, outgoing, votes) if is_joint else majority_vote(incoming, votes)
        )
        return [result.value]
    acked = {voter: int(value) for voter, value in _known(block, "idx", order).items()}
    of_incoming = [acked.get(voter, 0) for voter in incoming]
    of_outgoing = [acked.get(voter, 0) for voter in outgoing]
    index = joint_index(of_incoming, of_outgoing) if is_joint else majority_index(of_incoming)
    return _table(frozenset(order), acked, index)


def _voters(block: Block, key: str) -> list[NodeId]:
    values = block.named.get(key, [])
    return [] if values == ["zero"] else [int(value) for value in values]


def _known(block: Block, key: str, order: list[NodeId]) -> dict[NodeId, str]:
    """Return the values given in the order in which voters first appear; `_` is unknown."""
    values = block.named.get(key, [])
    if len(values) != len(order):
        raise ValueError(f"line {block.line}: {len(values)} values for {len(order)} voters")
    return {voter: value for voter, value in zip(order, values, strict=True) if value != "_"}


def _table(voters: frozenset[NodeId], acked: Mapping[NodeId, Index], index: Index) -> list[str]:
    committed = "∞" if index == EVERYTHING else str(index)
    return (describe.majority(voters, acked) + committed).splitlines()


class Changer:
    """Configuration that the change cases of one file modify.

    Each case advances the log by one entry.
    """

    def __init__(self) -> None:
        self._membership = Membership()
        self._progress: dict[NodeId, Progress] = {}
        self._last_index: Index = 0

    def run(self, block: Block) -> list[str]:
        """Run one `simple`, `enter-joint` or `leave-joint` case."""
        last_index = self._last_index
        self._last_index += 1
        try:
            after = self._changed(block)
        except InvalidConfChange as error:
            return [str(error)]
        self._membership = after
        self._progress = track(
            self._progress, after, last_index=last_index, new_inflights=lambda: Inflights(10)
        )
        text = describe.membership(after) + "\n" + progress_of_all(self._progress)
        return text.splitlines()

    def _changed(self, block: Block) -> Membership:
        changes = parse_changes(" ".join(block.input))
        if block.command == "simple":
            return simple(self._membership, changes)
        if block.command == "enter-joint":
            return enter_joint(self._membership, changes, auto_leave=block.flag("autoleave"))
        if block.command == "leave-joint":
            return leave_joint(self._membership)
        raise ValueError(f"line {block.line}: unknown directive {block.command}")
