"""A replica's node that compares every step with the paper.

The effect of a message is compared with its permitted effects before any history could show harm:
by chance, most wrong votes and wrong acknowledgements do none. The rules see the replica from
outside, before and after, and share no code with the handlers. Does not depend on other replicas,
disks or clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import ClassVar

from ids import NO_TERM, NodeId, Term
from raft.errors import Contradiction
from raft.messages import (
    Message,
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgPreVote,
    MsgPreVoteResp,
    MsgVote,
    MsgVoteResp,
)
from raft.node import RawNode
from raft.ready import Ready, ReadyMaker
from raft.state import LEADER
from raft.types import NONE, ConfChange, Entry

Broken = Callable[[str, str], None]

UNHEARD_TIMEOUTS = 4
"""Election timeouts for which a leader may hear from no majority; check-quorum needs two."""


class WatchedNode(RawNode):
    """Node that replaces another and shares its state.

    `broken` receives (rule, description). `taken` is called when the host takes a `Ready`.
    """

    __slots__ = ("_broken", "_heard", "_led_term", "_taken", "_ticks")

    def __init__(
        self, node: RawNode, broken: Broken, taken: Callable[[], None] = lambda: None
    ) -> None:
        for name in ReadyMaker.__slots__:
            setattr(self, name, getattr(node, name))
        self._broken = broken
        self._taken = taken
        self._ticks = 0
        self._led_term: Term = NO_TERM
        self._heard: dict[NodeId, int] = {}
        """While the replica leads: tick at which each peer was last heard from."""

    def ready(self) -> Ready:
        """See `RawNode.ready`."""
        self._taken()
        return super().ready()

    # --- messages -------------------------------------------------------------------------------
    def step(self, msg: Message) -> None:
        """See `RawNode.step`."""
        raft = self.raft
        if raft.state is LEADER:
            self._heard[msg.from_] = self._ticks
        judge = self._JUDGES.get(type(msg))
        try:
            if judge is None:
                super().step(msg)
            else:
                judge(self, msg)
        except Contradiction as contradiction:
            # Replicas that follow the rules never produce a contradiction.
            self._broken("contradiction", f"{type(msg).__name__} of {msg.from_}: {contradiction}")
            raise

    def _step_and_answers(self, msg: Message) -> Iterator[Message]:
        """Step the message; yield the answers to its sender."""
        raft = self.raft
        said = len(raft.msgs), len(raft.msgs_after_append)
        super().step(msg)
        for queue, begin in zip((raft.msgs, raft.msgs_after_append), said, strict=True):
            for answer in islice(queue, begin, None):
                if answer.to == msg.from_:
                    yield answer

    def _step_vote(self, msg: MsgVote | MsgPreVote) -> None:
        raft, log = self.raft, self.raft.log
        own, theirs = (log.last_term, log.last_index), (msg.log_term, msg.index)
        term = raft.term
        is_led = raft.lead != NONE and raft.election_elapsed < raft.election_ticks
        is_deaf = raft.check_quorum and is_led and msg.term > term and not msg.transfer
        for answer in self._step_and_answers(msg):
            is_granted = isinstance(answer, MsgVoteResp | MsgPreVoteResp) and not answer.reject
            if is_granted and theirs < own:
                self._broken(
                    "vote-for-older-log", f"for a log that ends in (term, index) {theirs}, its own"
                    f" in {own}",
                )  # fmt: skip
            if is_granted and is_deaf:
                self._broken("helps-to-depose", f"a vote against {raft.lead}, which it hears")
        if is_deaf and raft.term != term:
            self._broken("helps-to-depose", f"hears the leader of term {term}, but left it")

    def _step_append(self, msg: MsgApp) -> None:
        raft, log = self.raft, self.raft.log
        committed = log.committed
        matched = max(committed, msg.index + len(msg.entries))
        for answer in self._step_of_leader(msg):
            if isinstance(answer, MsgAppResp) and not answer.reject and answer.index > matched:
                self._broken(
                    "ack-beyond-match", f"acknowledges {answer.index}, the append matched {matched}"
                )
        if log.committed > max(committed, min(msg.commit, matched)):
            self._broken(
                "commit-beyond-match", (
                    f"treats {log.committed} as committed, but the append matched {matched} "
                    f"and had commit {msg.commit}"
                ),
            )  # fmt: skip
        assert raft.term >= msg.term, (raft.term, msg.term)

    def _step_other(self, msg: Message) -> None:
        for _ in self._step_of_leader(msg):
            pass

    def _step_of_leader(self, msg: Message) -> Iterator[Message]:
        """Step; check that a leader of an older term receives the newer term (§5.1).

        It would not learn of the newer term otherwise.
        """
        raft = self.raft
        is_old = 0 < msg.term < raft.term and raft.check_quorum
        told = False
        for answer in self._step_and_answers(msg):
            told = told or answer.term > msg.term
            yield answer
        if is_old and not told:
            self._broken(
                "old-leader-not-told", f"is in term {raft.term}, {msg.from_} in {msg.term}"
            )

    _JUDGES: ClassVar[dict[type[Message], Callable[..., None]]] = {
        MsgVote: _step_vote,
        MsgPreVote: _step_vote,
        MsgApp: _step_append,
        MsgHeartbeat: _step_other,
        MsgCommit: _step_other,
    }

    def propose_conf_change(self, change: ConfChange, *, v1: bool = False) -> Entry:
        """See `RawNode.propose_conf_change`.

        A leader that has not committed an entry of its own term does not know which entries are
        committed, including the previous change (thesis §4.1, erratum).
        """
        raft = self.raft
        is_early = raft.state is LEADER and not raft.own_term_committed
        entry = super().propose_conf_change(change, v1=v1)
        if is_early:
            self._broken("early-change", f"members change at {entry.index}, in term {raft.term}")
        return entry

    # --- liveness and time ----------------------------------------------------------------------
    def leader_heard(self, ticks_ago: int, *, lead: NodeId = NONE, term: Term = NO_TERM) -> None:
        """See `RawNode.leader_heard`."""
        raft = self.raft
        is_old = 0 < term < raft.term
        before = raft.election_elapsed, raft.campaign_due, raft.lead
        super().leader_heard(ticks_ago, lead=lead, term=term)
        if is_old and before != (raft.election_elapsed, raft.campaign_due, raft.lead):
            self._broken("old-leader-believed", f"in term {raft.term}, it leads in {term}")

    def peer_heard(self, peer: NodeId) -> None:
        """See `RawNode.peer_heard`."""
        self._heard[peer] = self._ticks
        super().peer_heard(peer)

    def tick(self, n: int = 1) -> None:
        """See `RawNode.tick`."""
        super().tick(n)
        self._ticks += n
        raft = self.raft
        if raft.state is LEADER and raft.check_quorum:
            self._check_heard(n)

    def _check_heard(self, n: int) -> None:
        """Check that a leader hears from a majority, or steps down (thesis §6.2)."""
        raft, heard, now = self.raft, self._heard, self._ticks
        if self._led_term != raft.term or raft.lead_transferee != NONE:
            self._led_term = raft.term
            heard.clear()
        heard[raft.id] = now
        limit = UNHEARD_TIMEOUTS * raft.election_ticks + n
        for half in (raft.membership.incoming, raft.membership.outgoing):
            # A new member could not be heard from before.
            there = sum(now - heard.setdefault(replica, now) <= limit for replica in half)
            if half and there * 2 <= len(half):
                self._broken(
                    "leads-unheard", f"in office, hears {there} of {len(half)} voters within"
                    f" {limit} ticks",
                )  # fmt: skip
