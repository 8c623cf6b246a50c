"""Responses held until the journal block they depend on is durable.

Responses of a replica about its own log, term or vote, to its peers or to itself as a leader that
counts votes for an entry, leave only when the journal block that holds the state is durable (thesis
§10.2.1). The caller that submits a block, or is notified that one is durable, receives the
responses that may leave, and delivers them.

Does not depend on the content or the receiver of a response.
"""

from __future__ import annotations

from collections.abc import Sequence

import segments.api as storage
from raft.messages import Message
from vdl.clock import Clock
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox

Responses = list[tuple[Group, Sequence[Message]]]
"""Responses by group, in the order of delivery."""


class DurableResponses:
    """Responses of all groups of one server that wait for its disk.

    Invariant: a response leaves only once its group's `last_token` of that turn is durable.
    """

    __slots__ = ("_clock", "_store", "_waiting", "awaited_ns")

    def __init__(self, store: storage.Store, clock: Clock) -> None:
        self._clock = clock
        self._store = store
        self._waiting: dict[int, Responses] = {}
        """Waiting responses, by the journal token that must be durable first."""
        self.awaited_ns = 0
        """Time at which responses last began to wait; 0: never."""

    def submit(self, outbox: Outbox) -> Responses:
        """Close the turn's block and queue the responses that wait for it.

        Return the responses that wait for nothing, because all state of their groups is durable.
        """
        store = self._store
        token = 0
        if outbox.staged:
            token = store.submit(urgent=outbox.urgent)
            if outbox.urgent:
                outbox.urgent_token = token
            outbox.staged = False
            outbox.urgent = False
        ready: Responses = []
        after, outbox.after_append = outbox.after_append, []
        for group, must_sync, responses in after:
            if must_sync:
                group.last_token = token
            if not responses:
                continue
            if group.last_token <= store.durable_token:
                ready.append((group, responses))
            else:
                self._waiting.setdefault(group.last_token, []).append((group, responses))
        if token and token in self._waiting:
            self.awaited_ns = self._clock.now_ns()
        return ready

    def durable(self, token: int) -> Responses:
        """Return the responses that waited for the journal, which is durable up to `token`."""
        waiting = self._waiting
        ready: Responses = []
        for at in sorted(waiting):
            if at > token:
                break
            ready += waiting.pop(at)
        return ready
