"""Commands in one partition's log: entries that change its state and hold no records.

Other groups send some of them, and are answered when the command is applied here. The leader itself
appends the commands that expire idle producers and those that let the replicas compact.

Does not depend on records, or on how a command is applied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ids import Index
from raft.types import Entry
from vdl.clock import MS
from vdl.logstream.group.pending import Pending, end_all, take_late
from vdl.logstream.group.producer_expiry import IdleProducers
from vdl.logstream.group.state_group import (
    NOT_APPENDED,
    TOO_LARGE,
    UNKNOWN,
    Outcome,
    OutcomeKind,
)
from vdl.logstream.group.stream import Stream
from vdl.logstream.group.transactions import Transactions, transaction_ended
from vdl.logstream.options import HostOptions
from vdl.state.answer import CommandAnswer
from vdl.state.empty import NO_ITEMS
from vdl.state.partition import (
    Compact,
    DecodeError,
    EndTransactionMarker,
    ExpireProducers,
    decode_command,
    encode_command,
)
from vdl.state.producers import Producers

COMMANDS_MAX = 10_000
"""Maximum number of commands of other groups that wait to be applied to one partition."""


class Commands:
    """Commands that one replica of a partition appends while it leads."""

    __slots__ = (
        "_expiry_index", "_idle_producers", "_options", "_stream", "_transactions", "waiting",
    )  # fmt: skip

    def __init__(self, stream: Stream, transactions: Transactions, options: HostOptions) -> None:
        self._stream = stream
        self._transactions = transactions
        self.waiting: list[Pending[Outcome]] = NO_ITEMS
        """Commands of other groups that wait to be applied. Invariant: ordered by index; each was
        appended in this term."""
        self._options = options
        self._idle_producers: IdleProducers | None = None
        """None: no producer is known."""
        self._expiry_index = 0
        """Index of the newest `ExpireProducers` that was appended here in this term, or 0. Use: the
        next one is appended only once this one is applied."""

    def run(self, data: bytes, *, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        """Append a command of another group, and return its result when it is applied here.

        It may be appended again: see `peers/group_commands.py`.
        """
        stream = self._stream
        try:
            command = decode_command(data)
        except DecodeError:
            done(TOO_LARGE)
            return
        if isinstance(command, EndTransactionMarker):
            ended = partial(transaction_ended, done)
            self._transactions.end(command, deadline_ns=deadline_ns, done=ended)
        elif (
            not stream.serving
            or len(self.waiting) >= COMMANDS_MAX
            or not stream.group.accepts_appends
            or not stream.propose(Entry(data=data))
        ):
            done(NOT_APPENDED)
        else:
            if self.waiting is NO_ITEMS:
                self.waiting = []
            self.waiting.append(Pending(deadline_ns, done, index=stream.group.node.last_index))

    def expire_producers(
        self, producers: Producers, now_ns: int, *, kept: int, may_append: bool
    ) -> None:
        """Append a command that expires idle producers, earlier if there are more than `kept`.

        Called on every replica, so that a new leader knows how long each has been idle. Only the
        leader decides, if it `may_append`.
        """
        stream = self._stream
        if not len(producers):
            self._idle_producers = None
            return
        if self._idle_producers is None:
            self._idle_producers = IdleProducers(self._options.producer_expiration_ms * MS)
        self._idle_producers.note(producers, now_ns)
        idle_index = self._idle_producers.index(producers, now_ns, kept=kept)
        oldest = producers.oldest_index
        if oldest is None or oldest > idle_index or not may_append or not stream.serving:
            return
        is_under_way = self._expiry_index > stream.group.applied
        if is_under_way or not stream.group.accepts_appends:
            return
        if stream.propose(Entry(data=encode_command(ExpireProducers(idle_index)))):
            self._expiry_index = stream.group.node.last_index

    def compact(self, *, upto: Index, markers_upto: Index) -> None:
        """Propose compaction up to these indexes if there is room for the entry: see `Compact`.

        The command is an entry, so all replicas compact up to the same indexes, each when it can.
        """
        stream = self._stream
        if stream.serving and stream.group.store.accepts_appends:
            stream.propose(Entry(data=encode_command(Compact(upto, markers_upto))))

    def applied(self, index: Index, answer: CommandAnswer) -> None:
        """Answer the command at `index`, and those before it."""
        while self.waiting and self.waiting[0].index <= index:
            # No other leader can have overwritten it: otherwise the queue would be empty.
            self.waiting.pop(0).done(Outcome(OutcomeKind.APPLIED, answer))

    def expire(self, now_ns: int) -> None:
        """Answer commands past their deadline: they may still be applied."""
        # `iter` keeps `end_all` from searching the queue for an answer.
        end_all(iter(take_late(self.waiting, now_ns)), UNKNOWN)

    def leadership_lost(self) -> list[Pending[Outcome]]:
        """Remove and return the waiting commands, whose outcome is unknown now."""
        self._expiry_index = 0
        waiting, self.waiting = self.waiting, NO_ITEMS
        return waiting
