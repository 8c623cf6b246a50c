"""What this server asks another on behalf of a client, and what it is asked so itself.

A question is sent once. Who asks hears the answer, or None: the other cannot answer, is not linked,
or speaks an older version; the link ended; it took too long. After None the question may have been
acted on all the same.

Must not know: what questions mean. Whoever made this answers them.
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
"""Questions that may be under way; more are answered with None."""


class Asked(Pending[Reply | None]):
    """A question that is under way."""

    __slots__ = ("server_id",)

    def __init__(
        self, server_id: ServerId, deadline_ns: int, done: Callable[[Reply | None], None]
    ) -> None:
        super().__init__(deadline_ns, done)
        self.server_id = server_id


class Queries:
    """The questions of one server."""

    __slots__ = ("_answer", "_asked", "_state")

    def __init__(self, state: HostState, answer: Callable[[Query], Reply | None]) -> None:
        """`answer`: what this server says to a question."""
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
        """`done` once, at once if this server is asked itself or if nobody can be."""
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
        """A peer asks. Raises MalformedFrame. An answer that does not leave is missed by its
        deadline."""
        number, query = decode_query(payload)
        reply = None if query is None else self._answer(query)
        self._state.transport.send(from_server, FrameType.REPLY, encode_reply(number, reply))

    def reply_received(self, from_server: ServerId, payload: memoryview) -> None:
        """A peer's answer. Raises MalformedFrame."""
        number, reply = decode_reply(payload)
        asked = self._asked.get(number)
        if asked is not None and asked.server_id == from_server:
            del self._asked[number]
            asked.done(reply)

    def link_down(self, server_id: ServerId) -> None:
        """What it was asked is not answered any more."""
        self._end([n for n, asked in self._asked.items() if asked.server_id == server_id])

    def expire(self, now_ns: int) -> None:
        """End what has waited for too long."""
        self._end([n for n, asked in self._asked.items() if asked.deadline_ns <= now_ns])

    def close(self) -> None:
        """The server stops."""
        self._end(list(self._asked))

    def _end(self, numbers: list[int]) -> None:
        ended = [self._asked.pop(number) for number in numbers]
        for asked in ended:
            asked.done(None)
