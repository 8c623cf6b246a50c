"""Invariants that must hold after every event, for simulations, tests, and partly production.

`check_node` checks one replica and takes a microsecond or two. `ClusterInvariants` watches all
replicas of a group over a whole run, restarts included, and checks the properties of the paper's
Figure 3: Election Safety, Leader Append-Only, Log Matching, Leader Completeness, State Machine
Safety. Call `observe` after every event on a replica: an event that is not observed is not checked,
and the first observer of a commit is taken for its leader.

A violation raises `InvariantViolation`. It is a bug in the core or a broken guarantee of the host
(a lost write, a reused id), never chance.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ids import NO_INDEX, NO_TERM, Index, NodeId, Term
from raft.errors import Compacted, NotInMemory, RaftError
from raft.log import RaftLog
from raft.node import RawNode
from raft.progress import PROBE, REPLICATE
from raft.state import CANDIDATE, LEADER, Raft
from raft.types import NO_LIMIT, NONE, Entry, HardState


class InvariantViolation(RaftError):
    """An invariant does not hold."""

    def __init__(self, rule: str, **facts: object) -> None:
        super().__init__(rule + ": " + ", ".join(f"{name}={fact}" for name, fact in facts.items()))
        self.rule = rule
        self.facts = facts


def _require(holds: bool, rule: str, **facts: object) -> None:
    if not holds:
        raise InvariantViolation(rule, **facts)


# --- One replica -------------------------------------------------------------------------------


def check_node(node: RawNode) -> None:
    """Check that the indexes are in order and that the role fits the other state."""
    raft = node.raft
    _check_log(raft)
    if raft.state is LEADER:
        _require(raft.lead == raft.id, "lead is the leader's own id", id=raft.id, lead=raft.lead)
        _check_progress(raft)
    else:
        _require(raft.lead != raft.id, "only a leader leads", id=raft.id, state=raft.state)
    if raft.state is CANDIDATE:
        _require(raft.vote == raft.id, "a candidate votes for itself", id=raft.id, vote=raft.vote)


def _check_log(raft: Raft) -> None:
    log = raft.log
    entries = log.entries
    if (
        log.applied <= log.applying <= log.committed <= log.last_index
        and log.stable <= log.in_progress <= log.last_index
        and log.offset <= log.stable + 1
        and log.offset + len(entries) == log.last_index + 1
        and (not entries or _ends_right(log, entries[-1]))
        and (log.applying <= log.stable or not raft.async_storage_writes or log.snapshot)
    ):
        return
    _name_disorder(raft)


def _ends_right(log: RaftLog, last: Entry) -> bool:
    return (
        last.index == log.last_index
        and last.term == log.last_term
        and last.base_offset + last.records == log.next_offset
    )


def _name_disorder(raft: Raft) -> None:
    """Raise for the rule that `_check_log` found broken.

    Separate, because distinguishing the rules costs more than all other checks together.
    """
    log = raft.log
    facts = {
        "id": raft.id,
        "applied": log.applied,
        "applying": log.applying,
        "committed": log.committed,
        "offset": log.offset,
        "stable": log.stable,
        "in_progress": log.in_progress,
        "last": log.last_index,
    }
    _require(log.applied <= log.applying, "applied ≤ applying", **facts)
    _require(log.applying <= log.committed, "applying ≤ committed", **facts)
    _require(log.committed <= log.last_index, "committed ≤ last", **facts)
    _require(log.stable <= log.in_progress, "stable ≤ in_progress", **facts)
    _require(log.in_progress <= log.last_index, "in_progress ≤ last", **facts)
    _require(log.offset <= log.stable + 1, "offset ≤ stable + 1", **facts)
    _require(
        log.offset + len(log.entries) == log.last_index + 1,
        ("the tail ends at the last entry"),
        **facts,
    )
    if log.entries:
        last = log.entries[-1]
        _require(last.index == log.last_index, "indexes are dense", **facts)
        _require(last.term == log.last_term, "last_term is the term of the last entry", **facts)
        _require(log.next_offset == last.base_offset + last.records, "offsets are dense", **facts)
    raise InvariantViolation("only durable entries are applied", **facts)


def _check_progress(raft: Raft) -> None:
    last = raft.log.last_index
    for node, progress in raft.progress.items():
        match, state = progress.match, progress.state
        if (
            match <= last
            and (match < progress.next or node == raft.id)
            and not (state is PROBE and len(progress.inflights) and node != raft.id)
            and (state is not REPLICATE or progress.next <= last + 1 or node == raft.id)
        ):
            continue
        facts = {"leader": raft.id, "node": node, "match": match, "next": progress.next}
        _require(match <= last, "match ≤ last of the leader", last=last, **facts)
        _require(match < progress.next, "match < next", **facts)
        _require(state is not PROBE, "a probing follower has no message in flight", **facts)
        raise InvariantViolation("only existing entries are sent", **facts)


# --- All replicas of a group -------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """State of a replica when it was last observed."""

    term: Term
    commit: Index
    state_term: Term
    """Term in which it was last seen leading; 0 if never."""
    led_last: Index
    """Last index of its log at that time."""


@dataclass(frozen=True, slots=True)
class _Committed:
    """Entry that some replica has reported as committed."""

    term: Term
    fingerprint: int
    commit_term: Term
    """Term of the replica that reported it first: the leader's."""


class ClusterInvariants:
    """Checks of all replicas of one group."""

    def __init__(self) -> None:
        self._seen: dict[NodeId, _Seen] = {}
        self._leaders: dict[Term, NodeId] = {}
        self._votes: dict[tuple[NodeId, Term], NodeId] = {}
        self._committed: dict[Index, _Committed] = {}
        self._last_committed: Index = NO_INDEX
        self.fingerprint: Callable[[Entry], int] = entry_fingerprint
        """Return a value that is equal for the same entry on all replicas."""

    @property
    def last_committed(self) -> Index:
        """Highest index any replica has reported as committed."""
        return self._last_committed

    def committed_term(self, index: Index) -> Term:
        """Return the term of the entry committed at an index; 0 if that was not observed."""
        committed = self._committed.get(index)
        return committed.term if committed is not None else NO_TERM

    def restarted(self, node: RawNode, durable: HardState) -> None:
        """Record a restart from what the disk held; a vote that was not durable does not count."""
        for (voter, term), vote in list(self._votes.items()):
            is_lost = term >= durable.term and (term, vote) != (durable.term, durable.vote)
            if voter == node.id and is_lost:
                del self._votes[voter, term]
        _require(node.term >= durable.term, "a restart keeps the term", id=node.id, term=node.term)
        led = max((term for term, who in self._leaders.items() if who == node.id), default=0)
        _require(
            node.term > led or (node.term, node.raft.vote) == (led, node.id) or not led,
            "a leader's term and vote are durable (Figure 2)",
            id=node.id,
            term=node.term,
            vote=node.raft.vote,
            led=led,
        )
        self._seen.pop(node.id, None)
        self.observe(node)

    def observe(self, node: RawNode) -> None:
        """Check a replica against itself, its earlier state, and the other replicas."""
        check_node(node)
        raft = node.raft
        seen = self._seen.get(node.id)
        if seen is None:
            seen = self._seen[node.id] = _Seen(
                raft.term, raft.log.first_index() - 1, NO_TERM, NO_INDEX
            )
        if raft.term < seen.term or raft.log.committed < seen.commit:
            facts = {"id": node.id, "term": raft.term, "commit": raft.log.committed}
            before = seen.term
            _require(raft.term >= before, "a term never decreases (§5.1)", before=before, **facts)
            raise InvariantViolation("a commit index never decreases", before=seen.commit, **facts)
        seen.term = raft.term
        self._check_vote(raft)
        self._check_commits(raft, seen)
        if raft.state is LEADER:
            self._check_leader(raft, seen)

    def _check_vote(self, raft: Raft) -> None:
        if raft.vote == NONE:
            return
        before = self._votes.setdefault((raft.id, raft.term), raft.vote)
        _require(
            before == raft.vote,
            "one vote a term (§5.2)",
            id=raft.id,
            term=raft.term,
            before=before,
            now=raft.vote,
        )

    def _check_commits(self, raft: Raft, seen: _Seen) -> None:
        log = raft.log
        index = max(seen.commit + 1, log.first_index())
        while index <= log.committed:
            try:
                entries = log.slice(index, log.committed + 1, NO_LIMIT)
            except NotInMemory as answer:
                # On disk: it was checked when it was appended and committed.
                index = answer.end
                continue
            except Compacted:
                break
            for entry in entries:
                self._check_commit(raft, entry)
            index += len(entries)
        seen.commit = log.committed
        self._last_committed = max(self._last_committed, log.committed)

    def _check_commit(self, raft: Raft, entry: Entry) -> None:
        now = _Committed(entry.term, self.fingerprint(entry), raft.term)
        before = self._committed.setdefault(entry.index, now)
        _require(
            (before.term, before.fingerprint) == (now.term, now.fingerprint),
            "State Machine Safety (§5.4.3)",
            id=raft.id,
            index=entry.index,
            before=before,
            now=now,
        )

    def _check_leader(self, raft: Raft, seen: _Seen) -> None:
        term = raft.term
        before = self._leaders.setdefault(term, raft.id)
        _require(before == raft.id, "Election Safety (§5.2)", term=term, before=before, now=raft.id)
        last = raft.log.last_index
        if seen.state_term == term:
            _require(
                last >= seen.led_last,
                "Leader Append-Only (§5.3)",
                id=raft.id,
                before=seen.led_last,
                now=last,
            )
        else:
            self._check_completeness(raft)
        seen.state_term = term
        seen.led_last = last

    def _check_completeness(self, raft: Raft) -> None:
        """Check that a new leader's log has everything committed in earlier terms."""
        index = self._last_committed
        # A late winner of an old term need not have what a newer leader committed since.
        while index in self._committed and self._committed[index].commit_term >= raft.term:
            index -= 1
        committed = self._committed.get(index)
        # A log also knows the term of the entry before its first one.
        if committed is None or index < raft.log.first_index() - 1:
            return
        _require(
            raft.log.matches(index=index, term=committed.term),
            "Leader Completeness (§5.4.3)",
            leader=raft.id,
            term=raft.term,
            index=index,
        )

    def check_logs(self, nodes: Iterable[RawNode]) -> None:
        """Check Log Matching (§5.3): equal term at an index means equal logs up to there."""
        known: dict[tuple[Index, Term], tuple[NodeId, Term]] = {}
        for node in nodes:
            log = node.raft.log
            previous: Term = log.term(log.first_index() - 1)
            for index in map(Index, range(log.first_index(), log.last_index + 1)):
                term = log.term(index)
                other, other_previous = known.setdefault((index, term), (node.id, previous))
                # For a compacted log, the base may be all that is known of the entry before.
                _require(
                    previous == other_previous,
                    "Log Matching (§5.3)",
                    index=index,
                    term=term,
                    nodes=(other, node.id),
                )
                previous = term


def entry_fingerprint(entry: Entry) -> int:
    """Return a checksum of everything in an entry except index and term."""
    return zlib.crc32(entry.data, place_fingerprint(entry))


def place_fingerprint(entry: Entry) -> int:
    """Return a checksum of what is kept of an entry when its log is compacted."""
    return zlib.crc32(f"{entry.kind}/{entry.base_offset}/{entry.records}".encode())
