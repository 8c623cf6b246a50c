"""Queries to other servers on behalf of clients, and answers to theirs.

A query is sent once. The caller receives the answer, or None: the other server cannot answer, is
not linked, or speaks an older version; the link ended; the deadline passed. After None the query
may have been executed all the same.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import ServerId
from rpc.hello import VERSION_OF_QUERIES
from rpc.peer import FrameType
from rpc.queries import Query, Reply, decode_query, decode_reply, encode_query, encode_reply
from vdl.logstream.group.pending import Pending
from vdl.logstream.state import HostState

WAITING_MAX = 1_000
"""Maximum number of queries in flight; more are answered with None."""


class Asked(Pending[Reply | None]):
    """A query in flight."""

    __slots__ = ("server_id",)

    def __init__(
        self, server_id: ServerId, deadline_ns: int, done: Callable[[Reply | None], None]
    ) -> None:
        super().__init__(deadline_ns, done)
        self.server_id = server_id


class Queries:
    """The queries of one server."""

    __slots__ = ("_answer", "_asked", "_state")

    def __init__(self, state: HostState, answer: Callable[[Query], Reply | None]) -> None:
        """Create the table. `answer`: returns this server's answer to a query."""
        self._state = state
        self._answer = answer
        self._asked: dict[int, Asked] = {}

    def ask(
        self,
        server_id: ServerId,
        query: Query,
        *,
        deadline_ns: int,
        done: Callable[[Reply | None], None],
    ) -> None:
        """Send a query; call `done` once, at once if this server is queried or none can be."""
        state = self._state
        if server_id == state.server_id:
            done(self._answer(query))
            return
        hello = state.alive.get(server_id)
        number = next(state.request_numbers)
        if (
            hello is None
            or hello.version < VERSION_OF_QUERIES
            or len(self._asked) >= WAITING_MAX
            or not state.transport.send(server_id, FrameType.QUERY, encode_query(number, query))
        ):
            done(None)
            return
        self._asked[number] = Asked(server_id, deadline_ns, done)

    def query_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Answer a peer's query. Raise MalformedFrame if it is malformed.

        If the answer cannot be sent, the peer's deadline ends its query.
        """
        number, query = decode_query(payload)
        reply = None if query is None else self._answer(query)
        self._state.transport.send(from_server, FrameType.REPLY, encode_reply(number, reply))

    def reply_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Take a peer's answer. Raise MalformedFrame if it is malformed."""
        number, reply = decode_reply(payload)
        asked = self._asked.get(number)
        if asked is not None and asked.server_id == from_server:
            del self._asked[number]
            asked.done(reply)

    def link_down(self, server_id: ServerId) -> None:
        """End the queries to that server."""
        self._end([n for n, asked in self._asked.items() if asked.server_id == server_id])

    def expire(self, now_ns: int) -> None:
        """End the queries whose deadline has passed."""
        self._end([n for n, asked in self._asked.items() if asked.deadline_ns <= now_ns])

    def close(self) -> None:
        """End all queries: the server stops."""
        self._end(list(self._asked))

    def _end(self, numbers: list[int]) -> None:
        ended = [self._asked.pop(number) for number in numbers]
        for asked in ended:
            asked.done(None)
