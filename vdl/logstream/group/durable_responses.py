"""Answers that wait for the disk.

Whatever a replica says about its own log, term or vote, to its peers or to itself as a leader that
counts votes for an entry, leaves only when the journal block that holds it is durable (thesis
§10.2.1). This is where it waits.

Must not know: what an answer says, where it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import segments.api as storage
from raft.messages import Message
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox


class Answers:
    """The waiting answers of all groups of one server."""

    __slots__ = ("_deliver", "_store", "_waiting")

    def __init__(
        self,
        store: storage.Store,
        *,
        deliver: Callable[[Group, Sequence[Message]], None],
    ) -> None:
        """`deliver`: these may be said now."""
        self._store = store
        self._deliver = deliver
        self._waiting: dict[int, list[tuple[Group, Sequence[Message]]]] = {}
        """By the journal token that must be durable first."""

    def submit(self, outbox: Outbox) -> None:
        """Close the turn's block and line up the answers that wait for it."""
        store = self._store
        token = 0
        if outbox.staged:
            token = store.submit(urgent=outbox.urgent)
            if outbox.urgent:
                outbox.urgent_token = token
            outbox.staged = False
            outbox.urgent = False
        after, outbox.after_append = outbox.after_append, []
        for group, must_sync, responses in after:
            if must_sync:
                group.last_token = token
            if not responses:
                continue
            if group.last_token <= store.durable_token:
                self._deliver(group, responses)
            else:
                self._waiting.setdefault(group.last_token, []).append((group, responses))

    def durable(self, token: int) -> None:
        """The journal is durable up to `token`."""
        waiting = self._waiting
        for at in sorted(waiting):
            if at > token:
                break
            for group, responses in waiting.pop(at):
                self._deliver(group, responses)
