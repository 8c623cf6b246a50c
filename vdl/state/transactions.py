"""Transactional ids of one coordinator: whose transaction is open, where, and how it ended.

A transaction is open from the first partition or consumer group that is added to it. Once it is
decided how it ends (PREPARE_COMMIT, PREPARE_ABORT), that stands for ever: the coordinator's leader
tells every participant, and when all have acknowledged, the transaction is complete and the next
one may begin. A command that meets a transaction between the two is answered
CONCURRENT_TRANSACTIONS, whatever its sender would be told afterwards.

Epochs fence: only the newest instance of a producer may go on. Under the first version of the
protocol (KIP-98) the epoch grows with each InitProducerId; under the second (KIP-890) also with
each end of a transaction, so that nothing late of one transaction can reach the next. An id whose
epochs are used up goes on under a new producer id. What is asked again is answered as before: the
last InitProducerId that named an epoch (KIP-360), and the last EndTxn.

Participants are Raft groups: partitions, and the coordinators of consumer groups. Each transaction
of a transactional id has a number, one more than the last: participants know by it which of two
transactions of one producer they are told about.

Must not know: who proposes, which topics there are, how participants are told.
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
"""Only ever that of markers: the epoch before is the last that a producer gets."""

ID_BYTES: Final = 96
"""What a transactional id takes in a snapshot, about, beside its name and its participants."""
PARTICIPANT_BYTES: Final = 6

IDLE_MS_MIN: Final = 3_600_000
"""An id that was used more lately is not forgotten to make room for another one."""

FIRST_VERSION: Final = 1
SECOND_VERSION: Final = 2
"""Of the protocol (`transaction.version`): with it each end of a transaction bumps the epoch."""


class TransactionState(IntEnum):
    """Kafka's states, under Kafka's numbers. A transactional id that is not there is Dead."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def is_prepared(self) -> bool:
        """Whether it is decided how the transaction ends, and participants are told."""
        return 2 <= self <= 3  # on the path of every command: by number


class TransactionalId(msgspec.Struct, array_like=True):
    """One transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TransactionState
    changed_ms: int
    """When it was last used."""
    last_epoch: int = NO_EPOCH
    """The one before `epoch`, if the producer itself had it bumped: it may ask again (KIP-360)."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The one that `producer_id` took the place of when its epochs were used up."""
    next_producer_id: int = NO_PRODUCER_ID
    """Takes the place of `producer_id` once the transaction is complete."""
    number: int = 0
    """Of the transaction: the open one, or the last one."""
    version: int = FIRST_VERSION
    """Of the protocol of that transaction. Once it is prepared: SECOND_VERSION if its markers have
    a higher epoch than its records."""
    started_ms: int = -1
    participants: list[GroupId] = []
    """Raft groups, ascending. Invariant: none but while it is ONGOING or prepared."""
    ended_epoch: int = NO_EPOCH
    """With which the last transaction was ended under the second version of the protocol; whoever
    had it may be told the new one again."""

    @property
    def is_idle(self) -> bool:
        """Whether it has no transaction that is open or to be completed."""
        return self.state is not TransactionState.ONGOING and not self.state.is_prepared

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no further epoch to give out."""
        return self.epoch >= EPOCH_MAX - 1

    @property
    def bytes(self) -> int:
        """What it takes in a snapshot, about."""
        names = text_bytes(self.transactional_id)
        return ID_BYTES + names + PARTICIPANT_BYTES * len(self.participants)

    @property
    def markers_commit(self) -> bool:
        """How the participants are told it ends, once it is prepared."""
        return self.state is TransactionState.PREPARE_COMMIT


@dataclass(slots=True)
class TransactionAnswer(CommandAnswer):
    """Answer to every command here. `producer_id`, `epoch`: what the producer goes on with."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    needs_producer_id: bool = False
    """Nothing was done: the command is to be proposed again with a new producer id."""
    changed: list[str] = field(default_factory=list)
    """Transactional ids whose transaction began, was decided or completed."""
    touched: list[str] = field(default_factory=list)
    """Transactional ids of which anything at all changed, or that expired."""


class Transactions:
    """See the module. `ids` is read-only to others."""

    __slots__ = ("_dirty", "_oldest", "bytes", "bytes_max", "ids")

    def __init__(self) -> None:
        self.ids: dict[str, TransactionalId] = {}
        self._oldest: list[tuple[int, str]] | None = None
        """A heap of all ids by when each was last used, or some time before; None: nobody needed
        it lately. An id that is forgotten stays until it comes up. Not part of the state: what it
        gives is a function of `ids`."""
        self.bytes = 0
        """What all of them take in a snapshot, about."""
        self.bytes_max = 1 << 62
        """How much they may take; set by the coordinator, of which others take a part."""
        self._dirty: set[str] = set()

    def __len__(self) -> int:
        return len(self.ids)

    # --- InitProducerId ------------------------------------------------------------------------
    def init(self, command: commands.InitTransactions, now_ms: int) -> TransactionAnswer:
        """A new epoch for a new instance of the producer, or for the one that names its own."""
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
            # One that names its epoch may be told the new one when it asks again.
            last_epoch = known.epoch if expects else NO_EPOCH
            fenced = self._fence(known, now_ms, ErrorCode.CONCURRENT_TRANSACTIONS)
            known.last_epoch = last_epoch
            return fenced
        is_present = expects and _is_present(known, command)
        if expects and not is_present and command.expected_epoch != known.last_epoch:
            return TransactionAnswer(ErrorCode.PRODUCER_FENCED)
        # Also one that asks again is never given the epoch that is for markers alone.
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
        # Else it asks again.
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
        if not self._make_room(created.bytes, now_ms):
            return TransactionAnswer(COORDINATOR_IS_FULL)
        self.ids[created.transactional_id] = created
        if self._oldest is not None:
            self._note_created(self._oldest, created)
        self.bytes += created.bytes
        self._dirty.add(created.transactional_id)
        return TransactionAnswer(
            ErrorCode.NONE,
            producer_id=created.producer_id,
            epoch=0,
            touched=[created.transactional_id],
        )

    def _note_created(self, oldest: list[tuple[int, str]], created: TransactionalId) -> None:
        if len(oldest) > 2 * len(self.ids):
            self._oldest = None  # mostly of ids that are forgotten
        else:
            heapq.heappush(oldest, (created.changed_ms, created.transactional_id))

    def _make_room(self, more: int, now_ms: int) -> bool:
        """Whether `more` bytes fit. Where clients draw ever new ids, those that were not used for
        longest are forgotten before their time, some at once: else nobody could begin for days."""
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
            else:
                busy.append((changed_ms, name))
        for one in busy:
            heapq.heappush(oldest, one)
        return self.bytes + more <= self.bytes_max

    # --- adding participants -------------------------------------------------------------------
    def check_producer(
        self, transactional_id: str, producer_id: int, epoch: int
    ) -> TransactionalId | ErrorCode:
        """The transactional id, if this is its producer of now."""
        known = self.ids.get(transactional_id)
        if known is not None and _is_next(known, producer_id, epoch):
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if known is None or known.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if known.epoch != epoch or epoch >= EPOCH_MAX:
            return ErrorCode.PRODUCER_FENCED
        return known

    def verify(self, command: commands.AddToTransaction) -> TransactionAnswer:
        """Whether the participants are in the producer's open transaction (KIP-890)."""
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
        """Participants of the open transaction, or of one that begins with them."""
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
        """Decide how the open transaction ends; once. The producer goes on with what is answered
        as soon as it is complete. Until then whatever it asks for is answered
        CONCURRENT_TRANSACTIONS, also what contradicts the decision: it may be about its next
        transaction, and INVALID_TXN_STATE is fatal to a producer."""
        known = self.ids.get(command.transactional_id)
        if known is None:
            return TransactionAnswer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if _is_next(known, command.producer_id, command.producer_epoch):
            return TransactionAnswer(ErrorCode.CONCURRENT_TRANSACTIONS)
        is_bumped = known.ended_epoch != NO_EPOCH
        same_id = known.producer_id == command.producer_id
        # The answer to the same request may have been lost, and everybody has moved on since.
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
        # KIP-890: a producer that does not know whether anything was added aborts all the same.
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
        """Abort an open transaction under a higher epoch: nobody who has the present one goes on
        with it. Under the second version its producer may still be told that it is aborted."""
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

    # --- what timers and participants say --------------------------------------------------------
    def abort(
        self, command: commands.AbortTransactions | commands.TimeOutTransactions, now_ms: int
    ) -> TransactionAnswer:
        """Abort transactions that were open for too long."""
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
        """All participants of these transactions have acknowledged how they ended."""
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
        """Transactional ids without an open transaction that were not used for so long."""
        return sorted(
            name
            for name, known in self.ids.items()
            if known.changed_ms + retention_ms <= now_ms and known.is_idle
        )

    def expire(self, command: commands.ExpireTransactionalIds, now_ms: int) -> TransactionAnswer:
        """Forget them, as many as the command says."""
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
        """(key, value) of transactional ids that changed and were not taken since."""
        return sorted((_key(name), self._value(name)) for name in taken(self._dirty, limit))

    def _value(self, name: str) -> bytes | None:
        known = self.ids.get(name)
        return None if known is None else encode_value(known)

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
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
    """Whether a producer that names an id may be this one: it has it, or had the one before until
    its epochs were used up, and did not hear of the new one."""
    if command.expected_producer_id == known.producer_id:
        return True
    was_exhausted = command.expected_epoch >= EPOCH_MAX - 1
    return command.expected_producer_id == known.previous_producer_id and was_exhausted


def _is_next(known: TransactionalId, producer_id: int, epoch: int) -> bool:
    """Whether this is who goes on once the transaction is complete, under a new producer id: it may
    have been told already."""
    return producer_id == known.next_producer_id != NO_PRODUCER_ID and epoch == 0


def _is_present(known: TransactionalId, command: commands.InitTransactions) -> bool:
    """Whether a producer names the id and the epoch of now."""
    expected = command.expected_producer_id, command.expected_epoch
    return expected == (known.producer_id, known.epoch)


def _numbered(known: TransactionalId) -> TransactionAnswer:
    return TransactionAnswer(ErrorCode.NONE, data=known.number.to_bytes(8))


def _key(transactional_id: str) -> bytes:
    return digest_key(b"t", transactional_id)
