"""Read index rounds of one group (Raft §8, thesis §6.4).

A caller that must not see stale state requests a round; the requests of one turn share one
heartbeat round. A request is answered True once the leader proved that it still led after the
request *and* this replica applied up to the commit index of that time. It is answered False when
leadership ends or the deadline passes.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import Index
from raft.node import RawNode
from raft.types import ReadState
from vdl.logstream.group.pending import Pending, take_late
from vdl.state.empty import NO_ITEMS, NO_KEYS


class ReadRounds:
    """Read index rounds of one group, oldest first.

    Invariant: a request is answered True only after a round that began after it confirmed the
    leader, and the commit index of that round was applied here.
    """

    __slots__ = ("_number", "_rounds", "answerable", "asks")

    def __init__(self) -> None:
        self.asks: list[Pending[bool]] = NO_ITEMS
        """Requests without a round yet."""
        self._rounds: dict[bytes, list[Pending[bool]]] = NO_KEYS
        """Requests of the rounds that are not confirmed, by the context of the round."""
        self.answerable: list[tuple[Index, list[Pending[bool]]]] = NO_ITEMS
        """Confirmed requests, and the index whose application answers them."""
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.asks or self._rounds or self.answerable)

    def ask(self, deadline_ns: int, done: Callable[[bool], None]) -> None:
        if self.asks is NO_ITEMS:
            self.asks = []
        self.asks.append(Pending(deadline_ns, done))

    def begin(self, node: RawNode) -> None:
        """Start one round for all requests since the last. Use: if there are `asks`."""
        self._number += 1
        context = self._number.to_bytes(8, "big")
        if self._rounds is NO_KEYS:
            self._rounds = {}
        self._rounds[context] = self.asks
        self.asks = NO_ITEMS
        node.read_index(context)

    def confirmed(self, states: list[ReadState]) -> None:
        """Note the rounds that the core confirmed; each is answered once `index` is applied."""
        for state in states:
            asks = self._rounds.pop(state.context, None)
            if asks:
                if self.answerable is NO_ITEMS:
                    self.answerable = []
                self.answerable.append((state.index, asks))

    def applied(self, index: Index) -> None:
        """Answer the requests that waited for `index` to be applied."""
        while self.answerable and self.answerable[0][0] <= index:
            for ask in self.answerable.pop(0)[1]:
                ask.done(True)

    def fail(self) -> None:
        """Answer False to all requests: leadership ended."""
        asks = [*self.asks]
        for round_asks in self._rounds.values():
            asks.extend(round_asks)
        for _, confirmed in self.answerable:
            asks.extend(confirmed)
        self.asks = self.answerable = NO_ITEMS
        self._rounds = NO_KEYS
        for ask in asks:
            ask.done(False)

    def expire(self, now_ns: int) -> None:
        """Answer False to requests whose deadline has passed."""
        late = take_late(self.asks, now_ns)
        for context in list(self._rounds):
            late += take_late(self._rounds[context], now_ns)
            if not self._rounds[context]:
                del self._rounds[context]
        for _, asks in self.answerable:
            late += take_late(asks, now_ns)
        for ask in late:
            ask.done(False)
