"""Leader lists: versioned lists of led groups, which make heartbeats O(1) per link.

Every server keeps one list of the groups it leads: (group, term, replica). On each link it sends
the list *whole* when the link comes up, then *changes*, and at every heartbeat interval a HEARTBEAT
that only names the list's version. A receiver that holds that version has thereby heard from the
leader of every group on the list; nothing is touched per group. The same lists inform every server
about all leaders, so that metadata is fresh without a write anywhere.

Time proves two things, both conservatively:

* A follower may count from the *arrival* of the heartbeat: `LeaderListReceiver.confirmed_ns`.
* A leader may count from when it *sent* the heartbeat that is acknowledged, never from the
  acknowledgement's arrival: `LeaderListSender.heard_ns`. The heartbeat carries its sender's time,
  and the peer echoes the newest one in its own heartbeat, so no table of outstanding heartbeats is
  needed. An acknowledgement counts for a group only if the list version the peer holds includes the
  group's present term.

An acknowledgement states which list the peer holds, not that it agrees. A peer that knows of a
newer term than a claim on the list denies the claim before each of its heartbeats (`rpc.denials`).
So it confirms what it acknowledges and has not denied before.

A frame that could not be sent is not remembered here. The receiver sees a version that it does not
hold and acknowledges version 0; then the whole list is sent again.

HEARTBEAT, little-endian: version u64, sent_ns i64, echo_ns i64 (-1: none), held_version u64,
wall_ms i64 (the sender's wall clock, since 1970).
LEADERS: whole u8, from_version u64, version u64, count u32, then (group u64, term u64, replica u64,
in_sync u8) each; replica 0: no longer led by the sender. Behind them the in-sync replicas of all
these groups, one group after another: the servers that hold them, u32 each, `in_sync` per group.

The leader decides which replicas are in sync (Kafka's ISR). The list carries them, and each server
reports to its clients what the leader sent last. A change of the in-sync replicas alone is not a
change of leader.

Does not depend on clocks (times are arguments), links, or the nature of a group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from struct import Struct, pack, unpack
from typing import Final

from ids import NO_TERM, TERM_MAX, GroupId, NodeId, ServerId, Term
from raft.types import NONE
from rpc.denials import DENIALS_MAX, Denial, encode_denials
from rpc.errors import MalformedFrame
from rpc.peer import FrameType
from rpc.reader import Buffer

REPLICA_NUMBER_BITS: Final = 16
"""A replica id is server id << 16 | replica number."""

CHANGES_KEPT: Final = 4_096
"""Number of changes kept. A peer further behind is sent the whole list."""

_HEARTBEAT = Struct("<QqqQq")
_LEADERS = Struct("<BQQI")
_LED = Struct("<QQQB")
_SERVER_BYTES: Final = 4

IN_SYNC_MAX: Final = 255
"""Largest number of in-sync replicas in a row."""

LEADERS_SHARED: Final = 1_024
"""Most values that are kept to be shared by groups. Thousands of groups have a few hundred."""

OutFrame = tuple[FrameType, list[Buffer]]


@dataclass(frozen=True, slots=True)
class LeaderConflict:
    """Two replicas claim one term of one group, which Raft excludes (§5.2).

    The known leader is kept; the rest of the list is accepted.
    """

    group: GroupId
    term: Term
    known: NodeId
    claimed: NodeId

    @property
    def server_id(self) -> ServerId:
        """Server whose list contains the new claim."""
        return self.claimed >> REPLICA_NUMBER_BITS

    def __str__(self) -> str:
        known = self.known >> REPLICA_NUMBER_BITS
        return f"server {self.server_id} leads term {self.term}, which server {known} leads"


@dataclass(frozen=True, slots=True)
class Leader:
    """Freshest known leader of a group. `replica` 0: the leader of that term has given it up."""

    term: Term
    replica: NodeId
    in_sync: tuple[ServerId, ...] = ()
    """Servers whose replicas are in sync, as that leader last reported."""

    @property
    def server_id(self) -> ServerId:
        """Server of the leader, 0 if there is none."""
        return self.replica >> REPLICA_NUMBER_BITS


@lru_cache(maxsize=LEADERS_SHARED)
def _leader(term: Term, replica: NodeId, in_sync: tuple[ServerId, ...]) -> Leader:
    """Return a leader. Groups led alike share one value."""
    return Leader(term, replica, in_sync)


@lru_cache(maxsize=LEADERS_SHARED)
def _claim(term: Term, replica: NodeId) -> tuple[Term, NodeId]:
    """Return (term, replica). Groups led alike share one value."""
    return term, replica


@dataclass(slots=True)
class LeaderChange:
    """The freshest known leader of `group` has changed, or is gone (`replica` 0)."""

    group: GroupId
    term: Term
    replica: NodeId


@dataclass(slots=True)
class _Led:
    term: Term
    replica: NodeId
    in_sync: tuple[ServerId, ...]
    version: int  # list version since which it names this leader; in_sync does not change it


class _Cursor:
    """Progress of one peer; exists while its link is up."""

    __slots__ = ("acked_ns", "held_version", "last_sent_ns", "sent_version", "whole_ns")

    def __init__(self) -> None:
        self.sent_version = -1  # -1: the whole list is to be sent
        self.whole_ns = -1  # time when the whole list was sent
        self.last_sent_ns = -1
        self.acked_ns = -1
        self.held_version = 0


_Row = tuple[GroupId, Term, NodeId, tuple[ServerId, ...]]
"""(group, term, replica, servers in sync)."""


def _pack_rows(rows: list[_Row]) -> bytes:
    leaders = [_LED.pack(group, term, replica, len(ids)) for group, term, replica, ids in rows]
    servers = [server for row in rows for server in row[3]]
    return b"".join(leaders) + pack(f"<{len(servers)}I", *servers)


def _unpack_rows(body: memoryview, count: int) -> list[_Row]:
    """Decode `count` rows and the servers they name. Raises MalformedFrame."""
    end = count * _LED.size
    if end > len(body) or (len(body) - end) % _SERVER_BYTES:
        raise MalformedFrame("leader list", len(body))
    servers = unpack(f"<{(len(body) - end) // _SERVER_BYTES}I", body[end:])
    rows: list[_Row] = []
    at = 0
    for group, term, replica, named in _LED.iter_unpack(body[:end]):
        rows.append((group, term, replica, servers[at : at + named]))
        at += named
    if at != len(servers):
        raise MalformedFrame("leader list", len(body))
    return rows


class LeaderListSender:
    """List of the groups this server leads, and each peer's progress in it."""

    def __init__(self) -> None:
        # Version 0 is what a peer without a list acknowledges; an empty list has version 1.
        self.version = 1
        self._led: dict[GroupId, _Led] = {}
        self._changes: deque[_Row] = deque()
        self._cursors: dict[ServerId, _Cursor] = {}

    # --- the list -------------------------------------------------------------------------------
    def set(
        self, group: GroupId, term: Term, replica: NodeId, in_sync: tuple[ServerId, ...] = ()
    ) -> None:
        """Set the local `replica` as leader of `group` in `term`, with the servers in sync."""
        led = self._led.get(group)
        same_leader = led is not None and led.term == term and led.replica == replica
        if led is not None and same_leader and led.in_sync == in_sync:
            return
        assert same_leader or led is None or led.term < term, (group, led, term)
        assert replica > 0, replica
        assert len(in_sync) <= IN_SYNC_MAX, in_sync
        self._changed(group, term, replica, in_sync)
        if led is not None and same_leader:
            # The peer's acknowledgement of this term remains valid.
            led.in_sync = in_sync
        else:
            self._led[group] = _Led(term, replica, in_sync, self.version)

    def drop(self, group: GroupId) -> None:
        """Remove a group that is no longer led from here; no effect if it was not."""
        led = self._led.pop(group, None)
        if led is not None:
            self._changed(group, led.term, NONE, ())

    def _changed(
        self, group: GroupId, term: Term, replica: NodeId, in_sync: tuple[ServerId, ...]
    ) -> None:
        self.version += 1
        self._changes.append((group, term, replica, in_sync))
        if len(self._changes) > CHANGES_KEPT:
            self._changes.popleft()

    # --- peers ----------------------------------------------------------------------------------
    def connected(self, peer: ServerId) -> None:
        """Start a new session, in which the peer is sent the whole list."""
        self._cursors[peer] = _Cursor()

    def disconnected(self, peer: ServerId) -> None:
        """End the session: its acknowledgements no longer count."""
        self._cursors.pop(peer, None)

    def changes(self, peer: ServerId, now_ns: int) -> OutFrame | None:
        """Return the LEADERS frame that brings the peer up to date; None if it is."""
        cursor = self._cursors[peer]
        sent_version = cursor.sent_version
        if sent_version == self.version:
            return None
        cursor.sent_version = self.version
        behind = self.version - sent_version
        if sent_version < 0 or behind > len(self._changes):
            cursor.whole_ns = now_ns
            rows = [
                (group, led.term, led.replica, led.in_sync)
                for group, led in sorted(self._led.items())
            ]
            head = _LEADERS.pack(True, 0, self.version, len(rows))
        else:
            # Only the last of several changes of one group matters.
            recent = list(self._changes)[-behind:]
            rows = list({row[0]: row for row in recent}.values())
            head = _LEADERS.pack(False, sent_version, self.version, len(rows))
        return FrameType.LEADERS, [head + _pack_rows(rows)]

    def heartbeat(
        self, peer: ServerId, now_ns: int, *, wall_ms: int, echo_ns: int, held_version: int
    ) -> OutFrame:
        """Return the HEARTBEAT frame. It confirms `version`: send `changes` before it."""
        cursor = self._cursors[peer]
        assert cursor.sent_version == self.version, (cursor.sent_version, self.version)
        cursor.last_sent_ns = now_ns
        payload = _HEARTBEAT.pack(self.version, now_ns, echo_ns, held_version, wall_ms)
        return FrameType.HEARTBEAT, [payload]

    def acknowledged(self, peer: ServerId, *, echo_ns: int, held_version: int) -> None:
        """Handle the echo in a peer's heartbeat. Raises MalformedFrame if it was never sent."""
        cursor = self._cursors[peer]
        if echo_ns > cursor.last_sent_ns or held_version > self.version:
            raise MalformedFrame("heartbeat acknowledgement")
        cursor.acked_ns = max(cursor.acked_ns, echo_ns)
        cursor.held_version = held_version
        if held_version == 0 and echo_ns >= cursor.whole_ns >= 0:
            # The peer read a heartbeat that was sent behind the whole list, yet holds none: one of
            # our LEADERS frames was never sent.
            cursor.sent_version = -1
            cursor.whole_ns = -1

    def acked_ns(self, peer: ServerId) -> int:
        """Return when the newest heartbeat acknowledged by `peer` was sent; -1 if none."""
        cursor = self._cursors.get(peer)
        return cursor.acked_ns if cursor is not None else -1

    def heard_ns(self, peer: ServerId, group: GroupId) -> int:
        """Return when `peer` is known to have last held our present claim on `group`.

        Check-quorum may count from it. -1: the peer does not hold the claim, or we do not lead the
        group.
        """
        cursor = self._cursors.get(peer)
        led = self._led.get(group)
        if cursor is None or led is None or led.version > cursor.held_version:
            return -1
        return cursor.acked_ns


class _Held:
    """List of one peer, as held here."""

    __slots__ = ("confirmed_ns", "echo_ns", "listed", "outdated", "version", "wall_ms")

    def __init__(self) -> None:
        self.listed: dict[GroupId, tuple[Term, NodeId]] = {}  # group → (term, replica)
        self.outdated: dict[GroupId, None] = {}
        """Groups listed with a term older than one known here, in the order of their denials."""
        self.version = 0  # 0: not (or no longer) known to be complete
        self.confirmed_ns = -1
        self.echo_ns = -1
        self.wall_ms = 0

    def end_session(self) -> None:
        # `listed` stays: it is still the best known list of leaders, and the next whole list is
        # compared with it.
        self.version = 0
        self.confirmed_ns = -1
        self.echo_ns = -1


class LeaderListReceiver:
    """Merged lists of all peers: the leader of the highest term per group."""

    def __init__(self, on_conflict: Callable[[LeaderConflict], None]) -> None:
        self._on_conflict = on_conflict
        self._held: dict[ServerId, _Held] = {}
        self._leaders: dict[GroupId, Leader] = {}
        self._entered: dict[GroupId, Term] = {}
        """Newest term in which a replica on this server was seen."""

    def connected(self, peer: ServerId) -> None:
        """Start a new session with `peer`."""
        held = self._held.setdefault(peer, _Held())
        held.end_session()

    def disconnected(self, peer: ServerId) -> None:
        """End the session. The list stays known, unconfirmed, until others lead."""
        held = self._held.get(peer)
        if held is not None:
            held.end_session()

    def leaders(self, peer: ServerId, payload: memoryview) -> list[LeaderChange]:
        """Handle a LEADERS frame and return what changed for the host. Raises MalformedFrame."""
        if len(payload) < _LEADERS.size:
            raise MalformedFrame("leader list", len(payload))
        whole, from_version, version, count = _LEADERS.unpack_from(payload)
        if version == 0:
            raise MalformedFrame("leader list", _LEADERS.size)
        held = self._held[peer]
        rows = _unpack_rows(payload[_LEADERS.size :], count)
        for _, term, replica, _ in rows:
            if replica and replica >> REPLICA_NUMBER_BITS != peer:
                raise MalformedFrame(f"leader list of server {peer} with replica {replica}")
            # Above the maximum, the real leader would never be accepted again. Term 0 has no
            # leader.
            if term > TERM_MAX or (replica and not term):
                raise MalformedFrame(f"leader list of server {peer} with term {term}")
        changes: list[LeaderChange] = []
        if whole:
            kept = {row[0] for row in rows}
            for group in [group for group in held.listed if group not in kept]:
                self._dropped(held, group, changes)
        elif from_version != held.version:
            held.version = 0
            return []
        for group, term, replica, in_sync in rows:
            if replica:
                self._led(held, LeaderChange(group, term, replica), in_sync, changes)
            else:
                self._dropped(held, group, changes)
        held.version = version
        return changes

    def heartbeat(
        self, peer: ServerId, version: int, sent_ns: int, now_ns: int, *, wall_ms: int
    ) -> None:
        """Handle a HEARTBEAT that names the version of the peer's list."""
        held = self._held[peer]
        held.wall_ms = wall_ms
        held.echo_ns = sent_ns
        if version == held.version:
            held.confirmed_ns = now_ns
        else:
            held.version = 0

    def leader(self, group: GroupId) -> Leader | None:
        """Return the known leader of the highest term."""
        return self._leaders.get(group)

    def count(self, peer: ServerId) -> int:
        """Return the number of groups that `peer` leads, as last reported."""
        held = self._held.get(peer)
        return 0 if held is None else len(held.listed)

    def confirmed_ns(self, peer: ServerId) -> int:
        """Return when `peer` last confirmed its list, on our clock; -1: not on this connection."""
        held = self._held.get(peer)
        return held.confirmed_ns if held is not None else -1

    def wall_ms(self, peer: ServerId) -> int:
        """Return the wall clock of its last heartbeat; 0 before the first."""
        held = self._held.get(peer)
        return held.wall_ms if held is not None else 0

    def confirmed(self, group: GroupId) -> tuple[Leader, int] | None:
        """Return the freshest known leader, and when its server last confirmed its whole list.

        None if the group has no known leader, or its server has not confirmed on this connection.
        """
        leader = self._leaders.get(group)
        if leader is None or not leader.replica:
            return None
        confirmed_ns = self.confirmed_ns(leader.server_id)
        return None if confirmed_ns < 0 else (leader, confirmed_ns)

    def entered(self, group: GroupId, term: Term) -> None:
        """Record that a replica of the group on this server is in this term."""
        if term > self._entered.get(group, NO_TERM):
            self._entered[group] = term
            self._outdate(group)

    def denials(self, peer: ServerId) -> list[Denial]:
        """Return denials of the claims of `peer` that are older than a term known here.

        Only claims on a list that it would confirm, and as many as fit one heartbeat. The others
        come first next time.
        """
        held = self._held[peer]
        if not held.outdated or not held.version:
            return []
        denials: list[Denial] = []
        for group in list(islice(held.outdated, DENIALS_MAX)):
            term, replica = held.listed[group]
            denials.append(Denial(group, term, self._newest(group), replica))
            del held.outdated[group]
            held.outdated[group] = None
        return denials

    def acknowledgement(self, peer: ServerId) -> tuple[int, int]:
        """Return (echo_ns, held_version) for our next heartbeat to `peer`."""
        held = self._held[peer]
        return held.echo_ns, held.version

    def forget_group(self, group: GroupId) -> None:
        """Forget a deleted group."""
        self._leaders.pop(group, None)
        self._entered.pop(group, None)
        for held in self._held.values():
            held.listed.pop(group, None)
            held.outdated.pop(group, None)

    def forget_groups(self, is_deleted: Callable[[GroupId], bool]) -> None:
        """Forget all known groups for which `is_deleted` returns True."""
        known = [*self._leaders, *self._entered]
        for group in [group for group in known if is_deleted(group)]:
            self.forget_group(group)

    def _led(
        self,
        held: _Held,
        claim: LeaderChange,
        in_sync: tuple[ServerId, ...],
        changes: list[LeaderChange],
    ) -> None:
        group, term, replica = claim.group, claim.term, claim.replica
        known = self._leaders.get(group)
        # A contradicting claim is kept too: it is denied once a newer term is known.
        held.listed[group] = _claim(term, replica)
        if known is not None and known.term == term and known.replica not in (0, replica):
            self._on_conflict(LeaderConflict(group, term, known.replica, replica))
        elif known is None or known.term < term or (known.term == term and not known.replica):
            self._leaders[group] = _leader(term, replica, in_sync)
            changes.append(claim)
        elif known.term == term and known.in_sync != in_sync:
            self._leaders[group] = _leader(term, replica, in_sync)
        held.outdated.pop(group, None)
        self._outdate(group)

    def _dropped(self, held: _Held, group: GroupId, changes: list[LeaderChange]) -> None:
        listed = held.listed.pop(group, None)
        held.outdated.pop(group, None)
        if listed is None:
            return
        term, replica = listed
        known = self._leaders.get(group)
        if known is not None and known.term == term and known.replica == replica:
            # The term stays known, so that an older claim does not come back.
            self._leaders[group] = _leader(term, NONE, known.in_sync)
            changes.append(LeaderChange(group, term, NONE))

    def _newest(self, group: GroupId) -> Term:
        """Return the newest known term of a group, from the lists and the replica here."""
        leader = self._leaders.get(group)
        entered = self._entered.get(group, NO_TERM)
        return entered if leader is None else max(leader.term, entered)

    def _outdate(self, group: GroupId) -> None:
        """Mark claims on a group that are older than its newest known term for denial."""
        newest = self._newest(group)
        for held in self._held.values():
            claim = held.listed.get(group)
            if claim is not None and claim[0] < newest:
                held.outdated.setdefault(group)


class LeaderLists:
    """Both directions of all links, to be wired to the callbacks of the host's transport."""

    def __init__(self, on_conflict: Callable[[LeaderConflict], None]) -> None:
        """`on_conflict` is called for each row that is not accepted."""
        self.sender = LeaderListSender()
        self.receiver = LeaderListReceiver(on_conflict)

    def connected(self, peer: ServerId) -> None:
        """Handle `PeerHandler.link_up` of a peer of our cluster. Send `frames` right after."""
        self.sender.connected(peer)
        self.receiver.connected(peer)

    def disconnected(self, peer: ServerId) -> None:
        """Handle `PeerHandler.link_down`."""
        self.sender.disconnected(peer)
        self.receiver.disconnected(peer)

    def frames(
        self, peer: ServerId, now_ns: int, *, wall_ms: int = 0, denies: bool = True
    ) -> list[OutFrame]:
        """Return the frames to send at a heartbeat.

        Changes if there are any, then denials of claims that the heartbeat would otherwise confirm,
        then the heartbeat. `denies`: the peer accepts denials.
        """
        frames: list[OutFrame] = []
        changes = self.sender.changes(peer, now_ns)
        if changes is not None:
            frames.append(changes)
        denials = self.receiver.denials(peer) if denies else []
        if denials:
            frames.append((FrameType.DENIALS, [encode_denials(denials)]))
        echo_ns, held_version = self.receiver.acknowledgement(peer)
        heartbeat = self.sender.heartbeat(
            peer, now_ns, wall_ms=wall_ms, echo_ns=echo_ns, held_version=held_version
        )
        frames.append(heartbeat)
        return frames

    def received(
        self, peer: ServerId, frame_type: FrameType, payload: memoryview, now_ns: int
    ) -> list[LeaderChange]:
        """Handle a HEARTBEAT or LEADERS frame. Raises MalformedFrame."""
        if frame_type is FrameType.LEADERS:
            return self.receiver.leaders(peer, payload)
        assert frame_type is FrameType.HEARTBEAT, frame_type
        if len(payload) != _HEARTBEAT.size:
            raise MalformedFrame("heartbeat", len(payload))
        version, sent_ns, echo_ns, held_version, wall_ms = _HEARTBEAT.unpack_from(payload)
        self.sender.acknowledged(peer, echo_ns=echo_ns, held_version=held_version)
        self.receiver.heartbeat(peer, version, sent_ns, now_ns, wall_ms=wall_ms)
        return []
