"""Transactions of one coordinator group while this server leads it: timers, markers, waiters.

Decisions about a transaction are replicated (`vdl/state/transactions.py`). This module does the
leader's work: it sends every participant the outcome of a transaction, repeatedly until each has
acknowledged it, and then completes the transaction. It is created when this server starts to serve
a coordinator group, begins with all transactions that are decided and not complete, and is dropped
when the server stops serving.

Rules:

* Timers only propose commands; `apply` decides.
* A new leader gives every open transaction its whole timeout again. A stall of this server does not
  count towards timeouts: clients were not at fault.
* A participant is a Raft group: a partition receives a marker, a coordinator of consumer groups the
  end of offsets. A deleted one has nothing to end.

Does not depend on requests, wire formats or other coordinator groups.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ids import GroupId
from rpc.hello import VERSION_OF_DOWNGRADES
from vdl.clock import MS, NEVER, Clock, Timer
from vdl.kafka.room_shares import GroupShares, room_of_transactions
from vdl.kafka.transactions.marker_delivery import (
    Ending,
    MarkerDelivery,
    MarkerHost,
    Transaction,
    transaction_of,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.state import commands
from vdl.state.coordinator import Coordinator
from vdl.state.partition import EndTransactionMarker
from vdl.state.partition import encode_command as encode_partition_command
from vdl.state.transactions import TransactionalId, TransactionState

RETRY_NS = 500 * MS
"""Delay before a command is sent again that was refused or not answered."""

CHECK_NS = 500 * MS
"""Interval of checks for transactions that exceeded their timeout."""

STALL_NS = 1_000 * MS
"""A check this late means that the server was stalled."""

EXPIRED_MAX = 5_000
"""Transactional ids removed by one command."""

COMPLETED_MAX = 1_000
"""Transactions completed, or aborted, by one command."""

WAITERS_MAX = 10_000
"""Requests that wait for transactions to complete; further ones are answered at once."""


class TransactionOptions(Protocol):
    """Settings used here (`vdl.kafka.context.KafkaOptions`)."""

    @property
    def read_timeout_ms(self) -> int: ...
    @property
    def transaction_max_timeout_ms(self) -> int: ...
    @property
    def transactional_id_expiration_ms(self) -> int: ...
    @property
    def transactional_id_check_ms(self) -> int: ...


class TransactionHost(MarkerHost, Protocol):
    """The server, as far as transactions use it."""

    @property
    def coordinator_count(self) -> int: ...
    def coordinator_group(self, key: str) -> GroupId: ...
    def state_group(self, group_id: GroupId) -> StateGroup | None: ...
    def settled_ms(self) -> int: ...
    def propose_catalog(
        self, command: Any, *, deadline_ns: int, done: Callable[[Outcome], None]
    ) -> None: ...


class LedTransactions:
    """Leader's state of the transactions: see the module."""

    def __init__(
        self,
        state_group: StateGroup,
        clock: Clock,
        options: TransactionOptions,
        host: TransactionHost,
    ) -> None:
        machine = state_group.machine
        assert isinstance(machine, Coordinator), machine
        self.machine = machine
        self.state_group = state_group
        self._clock = clock
        self._options = options
        self._host = host
        room = room_of_transactions(machine, host.settled_ms)
        self.shares = GroupShares(machine, room, clock)
        self._open: set[str] = set()
        """Transactional ids with an open transaction."""
        self._due_ns: dict[str, int] = {}
        """Transactional id → time of `_now_ns` at which its open transaction is to be aborted."""
        self._due: list[tuple[int, str]] = []
        """Heap of times at which to check them, possibly earlier than they are due by now."""
        self._queued_ns: dict[str, int] = {}
        """Valid time in the heap of each; its other entries are dropped when they come up."""
        self._stalled_ns = 0
        """Total time of stalls, which does not count towards timeouts."""
        self._checked_ns = 0
        self._endings: dict[Transaction, Ending] = {}
        self._markers = MarkerDelivery(clock, host, self._marker, self._ended_at)
        self._completed: list[Transaction] = []
        self._is_flushing = False
        self._waiters: dict[str, list[_Waiter]] = {}
        self._waiter_count = 0
        self.timed_out = 0
        """Transactions that exceeded their timeout."""
        self._is_closed = False
        self._check_timer: Timer | None = None
        """Runs while there are open transactions."""
        self._expiry_timer: Timer | None = None
        """Runs while there are transactional ids."""
        for known in list(machine.transactions.ids.values()):
            self._look_at(known)
        if machine.transactions.ids:
            self.used()

    def close(self) -> None:
        """Stop because this server no longer leads: the new leader continues."""
        self._is_closed = True
        self._markers.close()
        for timer in (self._check_timer, self._expiry_timer):
            if timer is not None:
                timer.cancel()
        waiters, self._waiters = self._waiters, {}
        for waiting in waiters.values():
            for waiter in waiting:
                waiter.end()

    def deadline_ns(self) -> int:
        return self._clock.now_ns() + self._options.read_timeout_ms * MS

    def get(self, transactional_id: str) -> TransactionalId | None:
        """Return the applied state of the id, not to be changed; None if there is none."""
        return self.machine.transactions.ids.get(transactional_id)

    @property
    def open(self) -> int:
        """Number of transactions that are not decided."""
        return len(self._open)

    @property
    def ending(self) -> int:
        """Number of transactions that are decided and not complete."""
        return len(self._endings)

    # --- applied commands ----------------------------------------------------------------
    def changed(self, transactional_ids: list[str]) -> None:
        """Process transactions of these ids that began, were decided, or completed."""
        for name in transactional_ids:
            known = self.get(name)
            if known is None:
                continue
            self._look_at(known)
            if not known.state.is_prepared:
                for waiter in self._waiters.pop(name, ()):
                    self._waiter_count -= 1
                    waiter.end()

    def _look_at(self, known: TransactionalId) -> None:
        if known.state is TransactionState.ONGOING:
            self._open.add(known.transactional_id)
            self._arm(known)
            return
        self._open.discard(known.transactional_id)
        if known.state.is_prepared and transaction_of(known) not in self._endings:
            ending = self._endings[transaction_of(known)] = Ending(known)
            self._markers.send(ending, sorted(ending.left))

    def when_complete(self, name: str, *, deadline_ns: int, done: Callable[[], None]) -> bool:
        """Call `done` once, when the decided transaction is complete or the deadline has passed.
        Return False, without a call, if too many requests wait."""
        if self._waiter_count >= WAITERS_MAX or self._is_closed:
            return False
        waiter = _Waiter(done)
        self._waiters.setdefault(name, []).append(waiter)
        self._waiter_count += 1
        delay_ns = max(0, deadline_ns - self._clock.now_ns())
        waiter.timer = self._clock.call_later(delay_ns, partial(self._late, name, waiter))
        return True

    def _late(self, name: str, waiter: _Waiter) -> None:
        waiting = self._waiters.get(name)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            self._waiter_count -= 1
            if not waiting:
                del self._waiters[name]
        waiter.end()

    # --- markers -------------------------------------------------------------------------
    def _marker(self, ending: Ending, participant: GroupId) -> bytes:
        _, producer_id, number = ending.transaction
        if participant <= self._host.coordinator_count:
            return commands.encode_command(
                commands.EndTransactionOffsets(producer_id, ending.epoch, number, ending.commits)
            )
        return encode_partition_command(
            EndTransactionMarker(
                producer_id,
                ending.epoch,
                self.state_group.term,
                ending.commits,
                ending.version,
                number,
            )
        )

    def _ended_at(self, ending: Ending, participant: GroupId) -> None:
        """Note that a participant has nothing left to end."""
        ending.left.discard(participant)
        if not ending.left:
            self._completed.append(ending.transaction)
            self._flush_soon()

    # --- completing ----------------------------------------------------------------------
    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._clock.call_soon(self._flush)

    def _flush(self) -> None:
        """Propose to complete, together, the transactions whose participants have all
        acknowledged."""
        self._is_flushing = False
        if self._is_closed:
            return
        ready, self._completed = (
            self._completed[:COMPLETED_MAX],
            self._completed[COMPLETED_MAX:],
        )
        if ready:
            self.state_group.propose(
                commands.CompleteTransactions(ready),
                deadline_ns=self.deadline_ns(),
                done=partial(self._flushed, ready),
            )
        if self._completed:
            self._flush_soon()

    def _flushed(self, ready: list[Transaction], outcome: Outcome) -> None:
        if self._is_closed:
            return
        if outcome.kind is OutcomeKind.APPLIED:
            for transaction in ready:
                self._endings.pop(transaction, None)
        else:
            self._clock.call_later(RETRY_NS, partial(self._complete_again, ready))

    def _complete_again(self, ready: list[Transaction]) -> None:
        self._completed += ready
        self._flush_soon()

    # --- time ----------------------------------------------------------------------------
    def _now_ns(self) -> int:
        """Return the monotonic time without the stalls of this server."""
        return self._clock.now_ns() - self._stalled_ns

    def _arm(self, known: TransactionalId) -> None:
        """Set the time at which the open transaction is aborted."""
        name = known.transactional_id
        due_ns = self._now_ns() + known.timeout_ms * MS
        self._due_ns[name] = due_ns
        if due_ns < self._queued_ns.get(name, NEVER):
            self._queue(due_ns, name)
        if self._check_timer is None:
            self._check_later()

    def _queue(self, at_ns: int, name: str) -> None:
        self._queued_ns[name] = at_ns
        heapq.heappush(self._due, (at_ns, name))

    def _check_later(self) -> None:
        self._checked_ns = self._clock.now_ns()
        self._check_timer = self._clock.call_later(CHECK_NS, self._check)

    def _check(self) -> None:
        """Propose to abort transactions that exceeded their timeout."""
        late_ns = self._clock.now_ns() - self._checked_ns - CHECK_NS
        if late_ns > STALL_NS:
            self._stalled_ns += late_ns
        over: list[Transaction] = []
        now_ns = self._now_ns()
        while self._due and self._due[0][0] <= now_ns and len(over) < COMPLETED_MAX:
            at_ns, name = heapq.heappop(self._due)
            if self._queued_ns.get(name) != at_ns:
                continue  # it was queued again, for an earlier time
            del self._queued_ns[name]
            due_ns = self._due_ns.get(name, at_ns)
            known = self.get(name)
            if known is None or known.state is not TransactionState.ONGOING:
                self._due_ns.pop(name, None)
                continue
            if due_ns <= now_ns:
                over.append(transaction_of(known))
                # It is aborted by then, or this is tried again.
                due_ns = self._due_ns[name] = now_ns + self._options.read_timeout_ms * MS
            self._queue(due_ns, name)
        self._check_timer = None
        if self._due:
            self._check_later()
        if over:
            self.timed_out += len(over)
            is_known = self.state_group.members_speak(VERSION_OF_DOWNGRADES)
            command = commands.TimeOutTransactions if is_known else commands.AbortTransactions
            self.state_group.propose(command(over), deadline_ns=self.deadline_ns(), done=_ignore)

    def used(self) -> None:
        """Start the expiry timer, because there are transactional ids."""
        if self._expiry_timer is None and not self._is_closed:
            delay_ns = self._options.transactional_id_check_ms * MS
            self._expiry_timer = self._clock.call_later(delay_ns, self._expire)

    def _expire(self) -> None:
        """Propose to remove transactional ids that were not used for long."""
        self._expiry_timer = None
        if self.machine.transactions.ids:
            self.used()
        retention_ms = self._options.transactional_id_expiration_ms
        now_ms = self._host.settled_ms()
        if self.machine.transactions.expirable(now_ms, retention_ms):
            self.state_group.propose(
                commands.ExpireTransactionalIds(retention_ms, now_ms, EXPIRED_MAX),
                deadline_ns=self.deadline_ns(),
                done=_ignore,
            )


class _Waiter:
    """A request that waits for a transaction to be complete."""

    __slots__ = ("_done", "timer")

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self.timer: Timer | None = None

    def end(self) -> None:
        """End the wait. Only the first call has an effect."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
            self._done()


def _ignore(_: Outcome) -> None:
    """Ignore the outcome of a timer's command: the timer is armed again in any case."""
