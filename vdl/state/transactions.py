"""Transactional ids of one coordinator: open transactions, their participants and outcomes.

A transaction is open from the first partition or consumer group that is added to it. Once its
outcome is decided (PREPARE_COMMIT, PREPARE_ABORT), the decision is final: the coordinator's leader
sends it to every participant, and when all have acknowledged it, the transaction is complete and
the next one may begin. A command that arrives between the two is answered CONCURRENT_TRANSACTIONS,
whatever its answer would be afterwards.

Epochs fence: only the newest instance of a producer may continue. Under the first version of the
protocol (KIP-98) the epoch grows with each InitProducerId; under the second (KIP-890) also with
each end of a transaction, so that no late message of one transaction can affect the next. An id
that has used up its epochs continues under a new producer id. Repeated requests get the same
answer: the last InitProducerId that named an epoch (KIP-360), and the last EndTxn.

Participants are Raft groups: partitions, and the coordinators of consumer groups. Each transaction
of a transactional id has a number, one more than the last, by which participants distinguish a
producer's transactions.

Does not depend on proposers, on topics, or on how decisions are sent to participants.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

from ids import GroupId
from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.answer import CommandAnswer
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.table import ALL, decode_value, digest_key, encode_value, taken, text_bytes

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = (1 << 15) - 1
"""Used only in markers: the epoch before it is the last one a producer gets."""

ID_BYTES: Final = 96
"""Estimated size of a transactional id in a snapshot, without its name and participants."""
PARTICIPANT_BYTES: Final = 6

IDLE_MS_MIN: Final = 3_600_000
"""Minimum idle time before an id may be forgotten to make room for another one."""

FIRST_VERSION: Final = 1
SECOND_VERSION: Final = 2
"""Protocol version (`transaction.version`) in which each end of a transaction bumps the epoch."""


class TransactionState(IntEnum):
    """Kafka's states, with Kafka's numbers. A transactional id that does not exist is Dead."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """True if the outcome is decided and is being sent to participants."""
        return 2 <= self <= 3  # on the path of every command: compare by number


class TransactionalId(msgspec.Struct, array_like=True):
    """State of one transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    changed_ms: int
    """Time of its last use."""
    last_epoch: int = NO_EPOCH
    """Epoch before `epoch`, if the producer requested the bump: it may repeat that (KIP-360)."""
    previous_producer_id: int = NO_PRODUCER_ID
    """Producer id that `producer_id` replaced when its epochs were used up."""
    next_producer_id: int = NO_PRODUCER_ID
    """Producer id that replaces `producer_id` once the transaction is complete."""
    number: int = 0
    """Number of the open transaction, or of the last one."""
    version: int = FIRST_VERSION
    """Protocol version of that transaction.

    Once it is prepared: SECOND_VERSION if its markers have a higher epoch than its records.
    """
    started_ms: int = -1
    participants: list[GroupId] = []
    """Raft groups, ascending. Invariant: empty unless ONGOING or prepared."""
    ended_epoch: int = NO_EPOCH
    """Epoch in which the last transaction was ended under the second version of the protocol.

    A producer that repeats the request with this epoch gets the current one again.
    """

    @property
    def is_idle(self) -> bool:
        """True if it has no transaction that is open or must be completed."""
        return self.state is not TransactionState.ONGOING and not self.state.is_prepared

    def may_be_forgotten(self, now_ms: int) -> bool:
        """Return True if it is idle for so long that it makes room for another id."""
        return self.is_idle and self.changed_ms + IDLE_MS_MIN <= now_ms

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no further epoch to allocate."""
        return self.epoch >= EPOCH_MAX - 1

    @property
    def bytes(self) -> int:
        """Estimated size in a snapshot."""
        names = text_bytes(self.transactional_id)
        return ID_BYTES + names + PARTICIPANT_BYTES * len(self.participants)

    @property
    def markers_commit(self) -> bool:
        """True if a prepared transaction commits, as sent to participants."""
        return self.state is TransactionState.PREPARE_COMMIT


@dataclass(slots=True)
class TransactionAnswer(CommandAnswer):
    """Answer to every command here. The producer continues with `producer_id` and `epoch`."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    needs_producer_id: bool = False
    """True if nothing was done and the command must be proposed again with a new producer id."""
    changed: list[str] = field(default_factory=list)
    """Transactional ids whose transaction began, was decided or completed."""
    touched: list[str] = field(default_factory=list)
    """Transactional ids that changed in any way, or expired."""


class Transactions:
    """All transactional ids of one coordinator; see the module. Other modules only read `ids`."""

    __slots__ = ("_dirty", "_oldest", "bytes", "bytes_max", "ids")

    def __init__(self) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self._oldest: list[tuple[int, str]] | None = None
        """Heap of all ids by time of last use, or an earlier time; None if not needed recently.

        A forgotten id stays in it until it reaches the top. Not part of the state: results depend
        only on `ids`.
        """
        self.bytes = 0
        """Estimated size of all ids in a snapshot."""
        self.bytes_max = 1 << 62
        """Size limit of all ids; set by the coordinator, whose other tables take the rest."""
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        return len(self.ids)

    # --- InitProducerId ------------------------------------------------------------------------
    def init(self, command: commands.InitTransactions, now_ms: int) -> TransactionAnswer:
        """Allocate an epoch for a new instance of the producer, or for one that names its epoch."""
        name = command.transactional_id
        known = self.ids.get(name)
        if known is None:
            return self._create(command, now_ms)
        expects = command.expected_producer_id != NO_PRODUCER_ID
        if _is_next(known, command.expected_producer_id, command.expected_epoch):
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expects and not _may_be_expected(known, command):
            return TransactionAnswer(ErrorCode.PRODUCER_FENCED)
        if known.state.is_prepared:
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        if known.state is TransactionState.ONGOING:
            if expects and not _is_present(known, command):
                return TransactionAnswer(ErrorCode.PRODUCER_FENCED)
            # A producer that names its epoch may get the new one when it repeats the request.
            last_epoch = known.epoch if expects else NO_EPOCH
            fenced = self._fence(known, now_ms, ErrorCode.CONCURRENT_TRANSACTIONS)
            known.last_epoch = last_epoch
            return fenced
        is_present = expects and _is_present(known, command)
        if expects and not is_present and command.expected_epoch != known.last_epoch:
            return TransactionAnswer(ErrorCode.PRODUCER_FENCED)
        # A repeated request never gets the epoch reserved for markers either.
        needs_new = not expects or is_present or known.epoch >= EPOCH_MAX
        if known.is_exhausted and needs_new:
            if command.new_producer_id == NO_PRODUCER_ID:
                return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, needs_producer_id=True)
            known.previous_producer_id = known.producer_id
            known.last_epoch = command.expected_epoch if expects else NO_EPOCH
            known.producer_id, known.epoch = command.new_producer_id, 0
        elif not expects:
            known.epoch, known.last_epoch = known.epoch + 1, NO_EPOCH
        elif is_present:
            known.epoch, known.last_epoch = known.epoch + 1, known.epoch
        # Otherwise it is a repeated request.
        known.state = TransactionState.EMPTY
        known.timeout_ms = command.timeout_ms
        known.ended_epoch = NO_EPOCH
        known.started_ms = -1
        self._touch(known, now_ms)
        return TransactionAnswer(
            ErrorCode.NONE, producer_id=known.producer_id, epoch=known.epoch, touched=[name]
        )

    def _create(self, command: commands.InitTransactions, now_ms: int) -> TransactionAnswer:
        if command.new_producer_id == NO_PRODUCER_ID:
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, needs_producer_id=True)
        created = TransactionalId(
            transactional_id=command.transactional_id,
            producer_id=command.new_producer_id,
            epoch=0,
            timeout_ms=command.timeout_ms,
            state=TransactionState.EMPTY,
            changed_ms=now_ms,
        )
        forgotten: list[str] = []
        if not self._make_room(created.bytes, now_ms, forgotten):
            return TransactionAnswer(COORDINATOR_IS_FULL, touched=forgotten)
        self.ids[created.transactional_id] = created
        if self._oldest is not None:
            self._note_created(self._oldest, created)
        self.bytes += created.bytes
        self._dirty.add(created.transactional_id)
        return TransactionAnswer(
            ErrorCode.NONE,
            producer_id=created.producer_id,
            epoch=0,
            touched=[*forgotten, created.transactional_id],
        )

    def _note_created(self, oldest: list[tuple[int, str]], created: TransactionalId) -> None:
        if len(oldest) > 2 * len(self.ids):
            self._oldest = None  # mostly forgotten ids
        else:
            heapq.heappush(oldest, (created.changed_ms, created.transactional_id))

    def _make_room(self, more: int, now_ms: int, forgotten: list[str]) -> bool:
        """Return True if `more` bytes fit, after forgetting idle ids if needed.

        Forgotten ids are added to `forgotten`.

        If clients keep creating ids, the longest idle ones are forgotten early, several at a time;
        otherwise no producer could begin for days.
        """
        if self.bytes + more <= self.bytes_max:
            return True
        goal = self.bytes_max - more - self.bytes_max // 64
        if self._oldest is None or len(self._oldest) > 2 * len(self.ids):
            self._oldest = [(known.changed_ms, name) for name, known in self.ids.items()]
            heapq.heapify(self._oldest)
        oldest = self._oldest
        busy: list[tuple[int, str]] = []
        while self.bytes > goal and oldest and oldest[0][0] + IDLE_MS_MIN <= now_ms:
            changed_ms, name = heapq.heappop(oldest)
            known = self.ids.get(name)
            if known is None:
                continue
            if known.changed_ms != changed_ms:
                heapq.heappush(oldest, (known.changed_ms, name))
            elif known.is_idle:
                self._forget(name)
                forgotten.append(name)
            else:
                busy.append((changed_ms, name))
        for one in busy:
            heapq.heappush(oldest, one)
        return self.bytes + more <= self.bytes_max

    # --- adding participants -------------------------------------------------------------------
    def check_producer(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> TransactionalId | ErrorCode:
        """Return the transactional id if this is its current producer, else the error."""
        known = self.ids.get(transactional_id)
        if known is not None and _is_next(known, producer_id, epoch):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch or epoch >= EPOCH_MAX:
            return ErrorCode.PRODUCER_FENCED
        return known

    def verify(self, command: commands.AddToTransaction) -> TransactionAnswer:
        """Check that the participants are in the producer's open transaction (KIP-890)."""
        known = self.check_producer(
            command.transactional_id, command.producer_id, command.producer_epoch
        )
        if isinstance(known, ErrorCode):
            return TransactionAnswer(known)
        if known.state.is_prepared:
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_open = known.state is TransactionState.ONGOING
        if not is_open or not set(command.participants) <= set(known.participants):
            return TransactionAnswer(ErrorCode.TRANSACTION_ABORTABLE)
        return _numbered(known)

    def add(self, command: commands.AddToTransaction, now_ms: int) -> TransactionAnswer:
        """Add participants to the open transaction, or begin one with them."""
        if command.verify_only:
            return self.verify(command)
        known = self.check_producer(
            command.transactional_id, command.producer_id, command.producer_epoch
        )
        if isinstance(known, ErrorCode):
            return TransactionAnswer(known)
        if known.state.is_prepared:
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        begins = known.state is not TransactionState.ONGOING
        added = set(command.participants).difference(known.participants)
        if not added:
            return _numbered(known) if not begins else TransactionAnswer(ErrorCode.NONE)
        more = PARTICIPANT_BYTES * len(added)
        if self.bytes + more > self.bytes_max:
            return TransactionAnswer(ErrorCode.TRANSACTION_ABORTABLE)
        self.bytes += more
        known.participants = sorted(added.union(known.participants))
        answer = TransactionAnswer(ErrorCode.NONE, touched=[known.transactional_id])
        if begins:
            known.state = TransactionState.ONGOING
            known.number += 1
            known.started_ms = now_ms
            known.version = command.version
            known.last_epoch = known.ended_epoch = NO_EPOCH
            answer.changed.append(known.transactional_id)
        self._touch(known, now_ms)
        answer.data = known.number.to_bytes(8)
        return answer

    # --- EndTxn --------------------------------------------------------------------------------
    def end(self, command: commands.EndTransaction, now_ms: int) -> TransactionAnswer:
        """Decide the outcome of the open transaction, once.

        The producer continues with the returned id and epoch as soon as the transaction is
        complete. Until then all its requests are answered CONCURRENT_TRANSACTIONS, even one that
        contradicts the decision: it may be about the next transaction, and INVALID_TXN_STATE is
        fatal to a producer.
        """
        known = self.ids.get(command.transactional_id)
        if known is None:
            return TransactionAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if _is_next(known, command.producer_id, command.producer_epoch):
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_bumped = known.ended_epoch != NO_EPOCH
        same_id = known.producer_id == command.producer_id
        # The answer to the same request may have been lost, and the state may have advanced since.
        asks_again = (
            command.version >= SECOND_VERSION
            and is_bumped
            and command.producer_epoch == known.ended_epoch
            and (same_id or known.previous_producer_id == command.producer_id)
        )
        if not same_id and not asks_again:
            return TransactionAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        is_present = known.epoch == command.producer_epoch < EPOCH_MAX
        if not is_present and not asks_again:
            return TransactionAnswer(ErrorCode.PRODUCER_FENCED)
        match known.state:
            case TransactionState.ONGOING:
                return self._prepare(known, command, now_ms)
            case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
                return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
            case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT:
                committed = known.state is TransactionState.COMPLETE_COMMIT
                if asks_again or command.version < SECOND_VERSION:
                    if command.commits is not committed:
                        return TransactionAnswer(ErrorCode.INVALID_TXN_STATE)
                    return TransactionAnswer(
                        ErrorCode.NONE, producer_id=known.producer_id, epoch=known.epoch
                    )
            case TransactionState.EMPTY:
                pass
        if command.commits or command.version < SECOND_VERSION:
            return TransactionAnswer(ErrorCode.INVALID_TXN_STATE)
        # KIP-890: a producer that does not know whether anything was added may abort all the same.
        return self._prepare(known, command, now_ms)

    def _prepare(
        self, known: TransactionalId, command: commands.EndTransaction, now_ms: int
    ) -> TransactionAnswer:
        bumps = command.version >= SECOND_VERSION
        name = known.transactional_id
        answer = TransactionAnswer(ErrorCode.NONE, changed=[name], touched=[name])
        next_producer_id = NO_PRODUCER_ID
        if bumps and known.is_exhausted:
            next_producer_id = command.new_producer_id
            if next_producer_id == NO_PRODUCER_ID:
                return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS, needs_producer_id=True)
        if bumps:
            known.ended_epoch = known.epoch
            known.last_epoch = known.epoch
            known.epoch += 1
        known.next_producer_id = next_producer_id
        known.version = SECOND_VERSION if bumps else FIRST_VERSION
        known.state = (
            TransactionState.PREPARE_COMMIT if command.commits else TransactionState.PREPARE_ABORT
        )
        if not known.participants:
            self._complete(known)
        self._touch(known, now_ms)
        answer.producer_id, answer.epoch = known.producer_id, known.epoch
        if next_producer_id != NO_PRODUCER_ID:
            answer.producer_id, answer.epoch = next_producer_id, 0
        return answer

    def _fence(self, known: TransactionalId, now_ms: int, error: ErrorCode) -> TransactionAnswer:
        """Abort an open transaction under a higher epoch, which fences holders of the current one.

        Under the second version its producer can still learn that the transaction was aborted.
        """
        bumps = known.version >= SECOND_VERSION and not known.is_exhausted
        known.ended_epoch = known.epoch if bumps else NO_EPOCH
        known.last_epoch = NO_EPOCH
        known.epoch += 1
        known.version = SECOND_VERSION
        known.state = TransactionState.PREPARE_ABORT
        assert known.epoch <= EPOCH_MAX, known
        assert known.participants, known
        self._touch(known, now_ms)
        name = known.transactional_id
        return TransactionAnswer(error, changed=[name], touched=[name])

    # --- timeouts and completion -----------------------------------------------------------------
    def abort(
        self, command: commands.AbortTransactions | commands.TimeOutTransactions, now_ms: int
    ) -> TransactionAnswer:
        """Abort transactions that exceeded their timeouts."""
        answer = TransactionAnswer(ErrorCode.NONE)
        may_go_on = isinstance(command, commands.TimeOutTransactions)
        for name, producer_id, number in command.transactions:
            known = self._transaction(name, producer_id, number)
            if known is not None and known.state is TransactionState.ONGOING:
                epoch = known.epoch
                answer.changed += self._fence(known, now_ms, ErrorCode.NONE).changed
                if may_go_on:
                    known.last_epoch = epoch
        answer.touched = list(answer.changed)
        return answer

    def complete(self, command: commands.CompleteTransactions, now_ms: int) -> TransactionAnswer:
        """Complete transactions whose participants have all acknowledged the outcome."""
        answer = TransactionAnswer(ErrorCode.NONE)
        for name, producer_id, number in command.transactions:
            known = self._transaction(name, producer_id, number)
            if known is not None and known.state.is_prepared:
                self._complete(known)
                self._touch(known, now_ms)
                answer.changed.append(name)
        answer.touched = list(answer.changed)
        return answer

    def _transaction(self, name: str, producer_id: int, number: int) -> TransactionalId | None:
        known = self.ids.get(name)
        if known is None or (known.producer_id, known.number) != (producer_id, number):
            return None
        return known

    def _complete(self, known: TransactionalId) -> None:
        assert known.state.is_prepared, known
        known.state = (
            TransactionState.COMPLETE_COMMIT
            if known.state is TransactionState.PREPARE_COMMIT
            else TransactionState.COMPLETE_ABORT
        )
        self.bytes -= PARTICIPANT_BYTES * len(known.participants)
        known.participants = []
        known.started_ms = -1
        if known.next_producer_id != NO_PRODUCER_ID:
            known.previous_producer_id = known.producer_id
            known.producer_id, known.epoch = known.next_producer_id, 0
            known.next_producer_id = NO_PRODUCER_ID

    # --- expiry --------------------------------------------------------------------------------
    def expirable(self, now_ms: int, retention_ms: int) -> list[str]:
        """Return the sorted idle transactional ids that were not used for `retention_ms`."""
        return sorted(
            name
            for name, known in self.ids.items()
            if known.changed_ms + retention_ms <= now_ms and known.is_idle
        )

    def expire(self, command: commands.ExpireTransactionalIds, now_ms: int) -> TransactionAnswer:
        """Forget expired ids, up to the command's limit."""
        expired = self.expirable(command.now_ms, command.retention_ms)[: command.ids_max]
        for name in expired:
            self._forget(name)
        return TransactionAnswer(ErrorCode.NONE, touched=expired)

    def _forget(self, name: str) -> None:
        self.bytes -= self.ids.pop(name).bytes
        self._dirty.add(name)

    def _touch(self, known: TransactionalId, now_ms: int) -> None:
        known.changed_ms = max(known.changed_ms, now_ms)
        self._dirty.add(known.transactional_id)

    # --- storing ---------------------------------------------------------------------------------
    def take_dirty(self, limit: int = ALL) -> list[tuple[bytes, bytes | None]]:
        """Return up to `limit` (key, value) changes not taken yet; None for a removed id."""
        return sorted((_key(name), self._value(name)) for name in taken(self._dirty, limit))

    def _value(self, name: str) -> bytes | None:
        known = self.ids.get(name)
        return None if known is None else encode_value(known)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return sorted((_key(name), encode_value(known)) for name, known in self.ids.items())

    def scan(self) -> Iterator[tuple[bytes, bytes]]:
        """See `Scan.items`."""
        for name in list(self.ids):
            if (known := self.ids.get(name)) is not None:
                yield _key(name), encode_value(known)

    def load(self, values: list[bytes]) -> None:
        """Replace everything."""
        self._dirty = set()
        loaded = [decode_value(value, TransactionalId) for value in values]
        self.ids = {known.transactional_id: known for known in loaded}
        self._oldest = None
        self.bytes = sum(known.bytes for known in loaded)


def _may_be_expected(known: TransactionalId, command: commands.InitTransactions) -> bool:
    """Return True if the producer may hold the id it names.

    It has the current one, or had the previous one until its epochs were used up and has not
    received the new one.
    """
    if command.expected_producer_id == known.producer_id:
        return True
    was_exhausted = command.expected_epoch >= EPOCH_MAX - 1
    return command.expected_producer_id == known.previous_producer_id and was_exhausted


def _is_next(known: TransactionalId, producer_id: int, epoch: int) -> bool:
    """Return True for the producer id that takes over when the transaction completes.

    Its producer may have received it already.
    """
    return producer_id == known.next_producer_id != NO_PRODUCER_ID and epoch == 0


def _is_present(known: TransactionalId, command: commands.InitTransactions) -> bool:
    """Return True if the producer names the current id and epoch."""
    expected = command.expected_producer_id, command.expected_epoch
    return expected == (known.producer_id, known.epoch)


def _numbered(known: TransactionalId) -> TransactionAnswer:
    return TransactionAnswer(ErrorCode.NONE, data=known.number.to_bytes(8))


def _key(transactional_id: str) -> bytes:
    return digest_key(b"t", transactional_id)
