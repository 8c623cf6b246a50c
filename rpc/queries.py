"""Questions that one server asks another on behalf of a client: QUERY and REPLY.

Both begin with the number of the request and a kind, little endian as everything here:

     0  request   u64
     8  kind      u8   of a REPLY also 0: the asked server cannot answer

A QUERY goes on with what is asked, a REPLY with the answer:

    1 ELECT   query: groups u64 each. Hand these, which you lead, to the first replicas of their
              placements.
              reply: those of them that you do not hand over, u64 each.
    2 QUORUM  query: group u64. Who are the members of this group, which you lead?
              reply: leader u32, term u64, commit u64, and for each member server u32, learner u8
              (0 or 1), last u64, heard i64, caught up i64 (ms since 1970; -1: not known).

Must not know: why somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from ids import GroupId, Index, ServerId, Term
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

GROUPS_MAX = 200
"""Groups of one ELECT: some ms of the loop that hands them over."""

_HEAD: Final = Struct("<QB")
_GROUP: Final = Struct("<Q")
_QUORUM: Final = Struct("<IQQ")
_MEMBER: Final = Struct("<IBQqq")
_NO_ANSWER, _ELECT, _QUORUM_KIND = range(3)


@dataclass(frozen=True, slots=True)
class Elect:
    """Query: hand over the leaderships of these groups."""

    groups: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True)
class Elected:
    """Reply: `refused` are not handed over, the others are on their way."""

    refused: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True)
class AskQuorum:
    """Query: the members of a group, as its leader sees them."""

    group: GroupId


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """One replica; times are ms since 1970, -1: not known."""

    server_id: ServerId
    is_learner: bool
    last: Index
    """Highest index that it is known to hold; of another than the leader, durably."""
    heard_ms: int
    """When it was last heard of."""
    caught_up_ms: int
    """It holds all that the leader's log held then."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Reply: the group in the leader's eyes."""

    leader: int
    """Its server."""
    term: Term
    commit: Index
    members: tuple[QuorumMember, ...]


Query = Elect | AskQuorum
Reply = Elected | Quorum


def encode_query(request: int, query: Query) -> list[Buffer]:
    """The payload of a QUERY frame."""
    if isinstance(query, Elect):
        return [_HEAD.pack(request, _ELECT), *map(_GROUP.pack, query.groups)]
    return [_HEAD.pack(request, _QUORUM_KIND), _GROUP.pack(query.group)]


def decode_query(payload: memoryview) -> tuple[int, Query | None]:
    """Number and question; None for one of a kind that is not known here. Raises
    MalformedFrame."""
    request, kind, rest = _parts("query", payload)
    if kind == _ELECT:
        return request, Elect(_groups("query", rest))
    if kind != _QUORUM_KIND:
        return request, None
    if len(rest) != _GROUP.size:
        raise MalformedFrame("query")
    return request, AskQuorum(*_GROUP.unpack(rest))


def encode_reply(request: int, reply: Reply | None) -> list[Buffer]:
    """The payload of a REPLY frame; None: this server cannot answer."""
    if reply is None:
        return [_HEAD.pack(request, _NO_ANSWER)]
    if isinstance(reply, Elected):
        return [_HEAD.pack(request, _ELECT), *map(_GROUP.pack, reply.refused)]
    members = [
        _MEMBER.pack(m.server_id, m.is_learner, m.last, m.heard_ms, m.caught_up_ms)
        for m in reply.members
    ]
    head = _HEAD.pack(request, _QUORUM_KIND) + _QUORUM.pack(reply.leader, reply.term, reply.commit)
    return [head, *members]


def decode_reply(payload: memoryview) -> tuple[int, Reply | None]:
    """Number and answer. Raises MalformedFrame."""
    request, kind, rest = _parts("reply", payload)
    if kind == _NO_ANSWER and not len(rest):
        return request, None
    if kind == _ELECT:
        return request, Elected(_groups("reply", rest))
    members = len(rest) - _QUORUM.size
    if kind != _QUORUM_KIND or members < 0 or members % _MEMBER.size:
        raise MalformedFrame("reply")
    leader, term, commit = _QUORUM.unpack_from(rest)
    found = []
    for fields in _MEMBER.iter_unpack(rest[_QUORUM.size :]):
        server_id, learner, last, heard_ms, caught_up_ms = fields
        if learner > 1:
            raise MalformedFrame("reply")
        found.append(QuorumMember(server_id, bool(learner), last, heard_ms, caught_up_ms))
    return request, Quorum(leader, term, commit, tuple(found))


def _parts(what: str, payload: memoryview) -> tuple[int, int, memoryview]:
    if len(payload) < _HEAD.size:
        raise MalformedFrame(what)
    request, kind = _HEAD.unpack_from(payload)
    return request, kind, payload[_HEAD.size :]


def _groups(what: str, payload: memoryview) -> tuple[GroupId, ...]:
    if len(payload) % _GROUP.size or len(payload) > GROUPS_MAX * _GROUP.size:
        raise MalformedFrame(what)
    return tuple(group for (group,) in _GROUP.iter_unpack(payload))
