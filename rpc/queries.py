"""Requests of one server to another on behalf of a client: QUERY and REPLY.

Both begin with the number of the request and a kind, little endian as everything here:

     0  request   u64
     8  kind      u8   in a REPLY also 0: the server cannot answer

The request or the answer follows:

    1 ELECT   query: groups u64 each, led by the receiver, to be transferred to the first replicas
              of their placements.
              reply: those of them that are not transferred, u64 each.
    2 QUORUM  query: group u64, led by the receiver, whose members are requested.
              reply: leader u32, term u64, commit u64, and for each member server u32, learner u8
              (0 or 1), last u64, heard i64, caught up i64 (ms since 1970; -1: not known).

Does not depend on the reason for a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from ids import GroupId, Index, ServerId, Term
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

GROUPS_MAX = 200
"""Groups of one ELECT: they take some ms of the loop that transfers them."""

_HEAD: Final = Struct("<QB")
_GROUP: Final = Struct("<Q")
_QUORUM: Final = Struct("<IQQ")
_MEMBER: Final = Struct("<IBQqq")
_NO_ANSWER, _ELECT, _QUORUM_KIND = range(3)


@dataclass(frozen=True, slots=True)
class Elect:
    """Query: transfer the leadership of these groups."""

    groups: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True)
class Elected:
    """Reply: `refused` are not transferred; the others are being transferred."""

    refused: tuple[GroupId, ...]


@dataclass(frozen=True, slots=True)
class AskQuorum:
    """Query: the members of a group, as seen by its leader."""

    group: GroupId


@dataclass(frozen=True, slots=True)
class QuorumMember:
    """One replica. Times are ms since 1970, -1 if unknown."""

    server_id: ServerId
    is_learner: bool
    last: Index
    """Highest index it is known to hold; durably, unless it is the leader."""
    heard_ms: int
    """Time when it was last heard from."""
    caught_up_ms: int
    """The replica holds everything that the leader's log held at this time."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """Reply: the group as seen by its leader."""

    leader: int
    """Server of the leader."""
    term: Term
    commit: Index
    members: tuple[QuorumMember, ...]


Query = Elect | AskQuorum
Reply = Elected | Quorum


def encode_query(request: int, query: Query) -> list[Buffer]:
    """Encode the payload of a QUERY frame."""
    if isinstance(query, Elect):
        return [_HEAD.pack(request, _ELECT), *map(_GROUP.pack, query.groups)]
    return [_HEAD.pack(request, _QUORUM_KIND), _GROUP.pack(query.group)]


def decode_query(payload: memoryview) -> tuple[int, Query | None]:
    """Decode request number and query; None for an unknown kind. Raises MalformedFrame."""
    request, kind, rest = _parts("query", payload)
    if kind == _ELECT:
        return request, Elect(_groups("query", rest))
    if kind != _QUORUM_KIND:
        return request, None
    if len(rest) != _GROUP.size:
        raise MalformedFrame("query")
    return request, AskQuorum(*_GROUP.unpack(rest))


def encode_reply(request: int, reply: Reply | None) -> list[Buffer]:
    """Encode the payload of a REPLY frame. None: this server cannot answer."""
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
    """Decode request number and reply. Raises MalformedFrame."""
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
