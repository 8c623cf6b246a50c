"""Catalog commands from any server: appended by the catalog's leader, answered where applied.

A server that does not lead the catalog sends the encoded command to the leader, and waits until the
command is applied *here*. A refusal is definite, so the command is then sent again, to the leader
of that time. After any other failure the outcome is unknown until the deadline, because a command
sent twice might be applied twice.

Does not depend on what commands mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ids import ServerId
from rpc.commands import (
    Proposed,
    ProposeOutcome,
    SentCommand,
    decode_command,
    decode_proposed,
    encode_command,
    encode_proposed,
)
from rpc.peer import FrameType
from vdl.logstream.group.state_group import (
    COMMAND_BYTES_MAX,
    NOT_APPENDED,
    TOO_LARGE,
    Outcome,
)
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.state import CATALOG_GROUP, HostState

WAITING_MAX = 10_000
"""Maximum number of commands of this server that wait for a catalog leader, or for their result."""


class Forwarded:
    """A command in progress."""

    __slots__ = ("command", "deadline_ns", "done", "sent_to", "seq")

    def __init__(self, command: Any, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        self.command = command
        self.deadline_ns = deadline_ns
        self.done = done
        self.seq = 0
        self.sent_to = 0
        """Server that may have appended it, 0 if certainly none has."""


class Forwarding:
    """The catalog commands of one server."""

    __slots__ = (
        "_catalog", "_liveness", "_numbers", "_sent", "_server_id", "_transport", "_waiting",
    )  # fmt: skip

    def __init__(self, state: HostState, liveness: Liveness) -> None:
        self._server_id = state.server_id
        self._catalog = state.catalog_group
        self._transport = state.transport
        self._numbers = state.request_numbers
        self._liveness = liveness
        self._waiting: list[Forwarded] = []
        """Commands that were not sent, or definitely refused."""
        self._sent: dict[int, Forwarded] = {}
        """Sent commands, by request number."""

    def propose(self, command: Any, *, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        """Propose a command; call `done` once.

        It was applied here, or certainly not appended, or the outcome is unknown at the deadline.
        """
        if len(self._waiting) + len(self._sent) >= WAITING_MAX:
            done(NOT_APPENDED)
            return
        forwarded = Forwarded(command, deadline_ns, done)
        if not self._try(forwarded):
            self._waiting.append(forwarded)

    def _try(self, forwarded: Forwarded) -> bool:
        """Append here or send to the leader. Return False if neither is possible now."""
        catalog = self._catalog
        # A server without a running catalog replica uses the other servers' lists.
        leader = (
            catalog.leader_server
            if catalog.is_running
            else self._liveness.leader_of(CATALOG_GROUP)[0]
        )
        if leader <= 0 or (leader == self._server_id and not catalog.serving):
            return False
        seq, data = catalog.envelope(forwarded.command)
        if len(data) > COMMAND_BYTES_MAX:
            forwarded.done(TOO_LARGE)
            return True
        if leader == self._server_id:
            if not catalog.append(data):
                return False
            catalog.expect(seq, forwarded.deadline_ns, forwarded.done, term=catalog.term)
            return True
        number = next(self._numbers)
        propose = SentCommand(number, CATALOG_GROUP, 0, data)
        if not self._transport.send(leader, FrameType.PROPOSE, encode_command(propose)):
            return False
        forwarded.seq = seq
        forwarded.sent_to = leader
        self._sent[number] = forwarded
        catalog.expect(seq, forwarded.deadline_ns, lambda outcome: self._ended(number, outcome))
        return True

    def _ended(self, number: int, outcome: Outcome) -> None:
        forwarded = self._sent.pop(number, None)
        if forwarded is not None:
            forwarded.done(outcome)

    # --- frames ------------------------------------------------------------------------------
    def proposal_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Append a peer's command, as the catalog's leader."""
        propose = decode_command(payload)
        if propose.group != CATALOG_GROUP:
            outcome = ProposeOutcome.UNKNOWN_GROUP
        elif not self._catalog.accepts(command := bytes(propose.command)):
            outcome = ProposeOutcome.REFUSED
        elif self._catalog.append(command):
            outcome = ProposeOutcome.ACCEPTED
        else:
            outcome = ProposeOutcome.NOT_LEADER
        answer = Proposed(propose.request_id, outcome)
        self._transport.send(from_server, FrameType.PROPOSED, encode_proposed(answer))

    def answer_received(self, from_server: ServerId, payload: memoryview) -> None:
        """Take the leader's answer: it appended our command, or certainly did not."""
        answer = decode_proposed(payload)
        forwarded = self._sent.get(answer.request_id)
        if forwarded is None or forwarded.sent_to != from_server:
            return
        if answer.outcome is ProposeOutcome.ACCEPTED:
            return
        del self._sent[answer.request_id]
        self._catalog.forget(forwarded.seq)
        if answer.outcome is ProposeOutcome.REFUSED:
            forwarded.done(NOT_APPENDED)
        else:
            self._waiting.append(forwarded)

    # --- time --------------------------------------------------------------------------------
    def retry(self, now_ns: int) -> None:
        """Try waiting commands again, and answer those whose deadline has passed."""
        waiting, self._waiting = self._waiting, []
        for forwarded in waiting:
            if forwarded.deadline_ns <= now_ns:
                forwarded.done(NOT_APPENDED)
            elif not self._try(forwarded):
                self._waiting.append(forwarded)

    @property
    def busy(self) -> bool:
        """True if commands wait for a leader."""
        return bool(self._waiting)

    def close(self) -> None:
        """Answer waiting commands: the server stops.

        Sent ones are answered when the catalog closes.
        """
        waiting, self._waiting = self._waiting, []
        for forwarded in waiting:
            forwarded.done(NOT_APPENDED)
