"""Transactions as handlers and other servers see them: the coordinators led here, and their use.

A transactional id belongs permanently to one coordinator group, as a consumer group does. A request
that meets a transaction that is decided and not complete waits until it is complete, and is decided
then: a client that receives CONCURRENT_TRANSACTIONS would only retry.

Does not depend on wire formats and versions, nor on how markers are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ids import GroupId
from vdl.clock import MS, Clock
from vdl.errors import ErrorCode
from vdl.kafka.room_shares import TIMES_OF_FREE, TIMES_OF_FREE_IN_USE, transactions_growth
from vdl.kafka.transactions.led_transactions import (
    LedTransactions,
    TransactionHost,
    TransactionOptions,
)
from vdl.logstream.group.state_group import (
    NOT_APPENDED,
    Outcome,
    OutcomeKind,
    StateGroup,
)
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.features import TRANSACTION_VERSION
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.transactions import TransactionAnswer

LATE_NS = 5_000 * MS
"""Longest wait of a request for a transaction to be complete: less than clients wait for a
response."""

OfTransaction = commands.InitTransactions | commands.AddToTransaction | commands.EndTransaction

Decided = Callable[[ErrorCode, TransactionAnswer | None], None]
"""Receives (NONE, the machine's answer), or the error that prevented it."""


class TransactionCoordinator:
    """All coordinator groups of one server. Every method answers once."""

    def __init__(self, *, host: TransactionHost, clock: Clock, options: TransactionOptions) -> None:
        self._host = host
        self._clock = clock
        self._options = options
        self._led: dict[GroupId, LedTransactions] = {}
        self._timed_out = 0
        """Timeouts at coordinators that are no longer led here."""

    def attach(self, state_group: StateGroup) -> None:
        """Follow a coordinator replica of this server, from before it first serves."""
        state_group.observers.append(self)

    # --- StateObserver -------------------------------------------------------------------
    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: int) -> None:
        if isinstance(result, TransactionAnswer):
            led = self._led.get(group.group_id)
            if led is not None:
                led.used()
                led.changed(result.changed)

    def on_installed(self, group: StateGroup) -> None:
        """Check that this is a follower: only followers get snapshots."""
        assert group.group_id not in self._led, group.group_id

    def on_serving(self, group: StateGroup) -> None:
        assert group.group_id not in self._led, group.group_id
        self._led[group.group_id] = LedTransactions(group, self._clock, self._options, self._host)

    def on_stopped_serving(self, group: StateGroup) -> None:
        led = self._led.pop(group.group_id, None)
        if led is not None:
            self._timed_out += led.timed_out
            led.close()

    def numbers(self) -> dict[str, float]:
        """Return counters and gauges of the coordinators that are led here, for `/metrics`."""
        led = self._led.values()
        return {
            "transactional_ids": sum(len(one.machine.transactions) for one in led),
            "transactions_open": sum(one.open for one in led),
            "transactions_ending": sum(one.ending for one in led),
            "transactions_timed_out_total": self._timed_out + sum(one.timed_out for one in led),
        }

    # --- coordinators led here -----------------------------------------------------------
    @property
    def is_available(self) -> bool:
        """True if all servers of the cluster support transactions."""
        servers = self._host.catalog.servers.values()
        return all(TRANSACTION_VERSION in server.features for server in servers)

    def find(self, transactional_id: str) -> LedTransactions | ErrorCode:
        """Return the coordinator of a transactional id if it is here; otherwise 16, or 14 while it
        loads."""
        return self._find(self._host.coordinator_group(transactional_id))

    def _find(self, number: GroupId) -> LedTransactions | ErrorCode:
        led = self._led.get(number)
        if led is not None and led.state_group.serving:
            return led
        state_group = self._host.state_group(number)
        if state_group is not None and state_group.is_leader:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def all_here(self) -> list[LedTransactions | ErrorCode]:
        """Return every coordinator group this server leads, in order; 14 for one that loads."""
        found = [
            self._find(GroupId(number)) for number in range(1, 1 + self._host.coordinator_count)
        ]
        return [one for one in found if one is not ErrorCode.NOT_COORDINATOR]

    # --- requests ------------------------------------------------------------------------
    def decide(self, command: OfTransaction, done: Decided, *, asker: str = "") -> None:
        """Apply a command, after a delay if a transaction has to be complete before. `asker`: the
        client whose share of the room it counts against; empty where there are no shares."""
        name = command.transactional_id
        led = self.find(name)
        if not isinstance(led, LedTransactions):
            done(led, None)
            return
        more = transactions_growth(led.machine, command) if asker else 0
        is_in_use = isinstance(command, commands.AddToTransaction)
        times = TIMES_OF_FREE_IN_USE if is_in_use else TIMES_OF_FREE
        owner = led.shares.begin(asker, name, more, times) if more > 0 else ""
        if owner is None:
            done(COORDINATOR_IS_FULL, None)
            return

        def decided(outcome: Outcome) -> None:
            if owner:
                led.shares.end(owner, name, more)
            if outcome.kind is OutcomeKind.APPLIED:
                done(ErrorCode.NONE, outcome.result)
            elif outcome.kind is OutcomeKind.NOT_APPENDED and not led.state_group.is_leader:
                done(ErrorCode.NOT_COORDINATOR, None)
            else:
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE, None)

        deadline_ns = self._clock.now_ns() + LATE_NS
        if (
            isinstance(command, commands.InitTransactions)
            and led.get(name) is None
            and led.state_group.group.accepts_appends
        ):
            # Applying it could only report that an id is needed. Not on a full disk: the catalog
            # would take what the coordinator refuses.
            self._allocate(led, command, deadline_ns, decided)
        else:
            self._attempt(led, command, deadline_ns, decided)

    def _attempt(
        self,
        led: LedTransactions,
        command: OfTransaction,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        name = command.transactional_id
        known = led.get(name)
        if known is not None and known.state.is_prepared and self._clock.now_ns() < deadline_ns:
            if led.when_complete(
                name,
                deadline_ns=deadline_ns,
                done=lambda: self._propose(led, command, deadline_ns, done),
            ):
                return
            deadline_ns = 0  # it is answered by the present state, and not proposed again
        self._propose(led, command, deadline_ns, done)

    def _propose(
        self,
        led: LedTransactions,
        command: OfTransaction,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        def applied(outcome: Outcome) -> None:
            answer = outcome.result
            if not isinstance(answer, TransactionAnswer):
                done(outcome)
            elif answer.needs_producer_id:
                self._allocate(led, command, deadline_ns, done)
            elif (
                answer.error is ErrorCode.CONCURRENT_TRANSACTIONS
                and self._clock.now_ns() < deadline_ns
            ):
                # Also if the command itself had an open transaction aborted.
                self._attempt(led, command, deadline_ns, done)
            else:
                done(outcome)

        led.state_group.propose(command, deadline_ns=led.deadline_ns(), done=applied)

    def _allocate(
        self,
        led: LedTransactions,
        command: OfTransaction,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        assert not isinstance(command, commands.AddToTransaction), command

        def allocated(outcome: Outcome) -> None:
            if outcome.kind is not OutcomeKind.APPLIED:
                done(NOT_APPENDED)
                return
            named = msgspec.structs.replace(command, new_producer_id=outcome.result.first)
            self._propose(led, named, deadline_ns, done)

        # A producer id that was allocated and is not used is no loss.
        self._host.propose_catalog(
            commands.AllocateProducerIds(1), deadline_ns=led.deadline_ns(), done=allocated
        )

    # --- other servers -------------------------------------------------------------------
    def receive(
        self, group_id: GroupId, command: Any, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None:
        """Process a command from another server, or from a partition that is led here, for a
        coordinator that this server leads. See `GroupCommands.receive`."""
        led = self._led.get(group_id)
        if led is None:
            done(NOT_APPENDED)
        elif not isinstance(command, commands.AddToTransaction):
            led.state_group.propose(command, deadline_ns=deadline_ns, done=done)
        elif command.verify_only:
            self._verify(led, command, deadline_ns, done)
        else:
            self._attempt(led, command, min(deadline_ns, self._clock.now_ns() + LATE_NS), done)

    def _verify(
        self,
        led: LedTransactions,
        command: commands.AddToTransaction,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None:
        """Verify after a quorum confirmed this leader; nothing changes."""

        def confirmed(current: bool) -> None:
            if current:
                answer = led.machine.transactions.verify(command)
                done(Outcome(OutcomeKind.APPLIED, answer))
            else:
                done(NOT_APPENDED)

        led.state_group.read_index(deadline_ns=deadline_ns, done=confirmed)

    def add_participants(
        self, command: commands.AddToTransaction, done: Callable[[CommandAnswer | None], None]
    ) -> None:
        """Send the command to the coordinator of the transaction, on any server. `done` receives
        None if it did not answer."""

        def answered(outcome: Outcome) -> None:
            done(outcome.result if outcome.kind is OutcomeKind.APPLIED else None)

        self._host.command_group(
            self._host.coordinator_group(command.transactional_id),
            commands.encode_command(command),
            deadline_ns=self._clock.now_ns() + self._options.read_timeout_ms * MS,
            done=answered,
        )

    # --- reads ---------------------------------------------------------------------------
    def read(self, led: LedTransactions, done: Callable[[bool], None]) -> None:
        """Call `done(True)` when the applied state reflects everything acknowledged before."""
        led.state_group.read_index(deadline_ns=led.deadline_ns(), done=done)
