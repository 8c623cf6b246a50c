"""The idempotent producers of one partition and the batches they have written (KIP-98).

A producer numbers its records. The partition accepts a batch only if its first sequence number
follows the last accepted one. A batch that is sent again, because its answer was lost, is
recognised and answered with its offset, also by the next leader and after a restart: the windows
are a function of the committed log.

There are two layers. `Producers` is the result of committed batches, the same on every replica.
`Overlay` holds what this leader has appended and not committed yet; it ends with the term. `check`
reads both.

Rules for the first batch of an unknown producer, in this order:

* Sequence number 0 begins an epoch: append it.
* In a transaction of KIP-890's second version every other number is out of order, because each such
  transaction begins an epoch.
* A producer with a new id (`new_ids_from`) has never written here, so its numbers begin at 0. An
  earlier batch must be under way: OUT_OF_ORDER_SEQUENCE_NUMBER. Appending this batch, as Kafka
  does, would reverse their order.
* A full table (`PRODUCERS_MAX`) may have forgotten a producer that is still resending:
  UNKNOWN_PRODUCER_ID. Java's client and franz-go begin a new epoch. librdkafka does so for a batch
  it sent once; for a batch it sent before, it stops with a fatal error, because the batch may be in
  the log.
* While a possible leader runs a version that requires numbers to begin at 0: UNKNOWN_PRODUCER_ID as
  well. Such a leader would take an earlier batch that arrives later for a duplicate.
* Any other number is appended, as in Kafka, but only when it is sent again. There are two cases.
  The producer wrote to a deleted topic of that name, or was idle here for so long that it resends
  nothing. Or an earlier batch was refused, or lost with its leader, and this batch overtook it.
  They cannot be distinguished here. So the first attempt is answered NOT_LEADER_OR_FOLLOWER, which
  means that the batch was not appended. All clients then resend from their oldest batch on, in
  order.

A new epoch of a known producer begins at 0. A batch with past sequence numbers that is not among
the last `WINDOW_BATCHES` is out of order, as in Kafka: a producer has no more than these in flight,
and its numbers need not have begun at 0, so the batch may never have been appended.

Producers are forgotten by commands and by the bound:

* A command in the log (`expire`) forgets producers that were idle for `producer.id.expiration.ms`.
  Kafka uses timestamps in the partition's log instead, but those are set by clients.
* If there are more than `PRODUCERS_KEPT`, or more than the partition's share of what its leader's
  server keeps, the command forgets the longest idle ones sooner, but not while their clients may
  still resend unanswered batches.
* Beyond `PRODUCERS_MAX` the longest idle producer is forgotten, whatever its idle time. This bounds
  memory when clients keep creating producers.
* A producer with an open transaction is never forgotten: its marker is still to come (KIP-98).

A producer's transaction opens with its first transactional batch and ends with a marker. A marker
may bring a newer epoch (KIP-890, and whenever a producer is fenced); sequence numbers then begin at
0 again. Only a coordinator's marker does so, because coordinators number their transactions. An
administrator's marker ends the open transaction and leaves all epochs unchanged: a made-up number
must fence neither the coordinator nor the producer. The oldest open transaction bounds the last
stable offset.

This code is on the path of every idempotent batch: plain attributes, no allocation beyond the
window's entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct
from typing import Final

import msgspec

from ids import NO_INDEX, Index, Offset
from vdl.errors import ErrorCode
from vdl.state.empty import NO_KEYS
from vdl.state.table import decode_value, encode_value

WINDOW_BATCHES = 5
"""Number of batches a producer may have in flight and therefore resend (KIP-98)."""

PRODUCERS_KEPT = 4_096
"""Number of producers that a partition remembers for all of `producer.id.expiration.ms`."""

PRODUCERS_MAX = 32_768
"""Maximum number of producers per partition, besides those with open transactions.

They take up to some 40 MB of memory and some 3 MiB of a snapshot.
"""

NO_TRANSACTION: Final = Offset(-1)
"""First offset of a producer without an open transaction."""

NO_COORDINATOR_EPOCH = -1
"""Coordinator epoch before the first marker."""

UNKNOWN_MAX = PRODUCERS_MAX
"""Maximum number of unknown producers that a leader notes after refusing their batches."""

NO_NUMBER = 0
"""Number in a marker that is not a coordinator's: an administrator's (KIP-664)."""

NEW_EPOCHS_FROM = 2
"""Level of `transaction.version` from which on each marker begins a new epoch (KIP-890)."""

SEQUENCE_END = 1 << 31
"""Sequence numbers have 31 bits; 0 follows the largest."""

_KEY = Struct(">cQ")
_KEY_KIND = b"p"


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One accepted batch: sequence numbers [first, last], offset, entry index, largest timestamp.

    The timestamp is in ms; -1 if it was stored by a version without this field.
    """

    first: int
    last: int
    base_offset: Offset
    index: Index
    timestamp: int = -1


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """Verdict on a batch that is already in the log; it is committed if `index` is."""

    base_offset: Offset
    index: Index
    timestamp: int = -1
    """Largest timestamp (ms) of the original; part of the answer if it is the append time."""


class StoredProducer(msgspec.Struct, frozen=True, array_like=True):
    """A producer as stored, if it has written no transaction."""

    epoch: int
    last_timestamp: int
    window: list[Batch]


class StoredTransactional(msgspec.Struct, frozen=True, array_like=True):
    """Any producer as stored."""

    epoch: int
    last_timestamp: int
    window: list[Batch]
    index: Index = Index(-1)
    """-1 for that of the newest batch."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    first_offset: Offset = NO_TRANSACTION
    first_index: Index = NO_INDEX
    number: int = 0


class Producer:
    """State of one producer in one layer.

    Invariant: `window` is oldest first, and empty only if a marker was the last entry of its epoch.
    """

    __slots__ = (
        "coordinator_epoch", "epoch", "first_index", "first_offset", "index", "last_timestamp",
        "number", "window",
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_timestamp = -1
        """Largest timestamp (ms) of its newest batch, as set by the client."""
        self.window: list[Batch] = []
        self.index = NO_INDEX
        """Index of its newest batch or marker."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        """Coordinator epoch of its last marker."""
        self.first_offset = NO_TRANSACTION
        """First offset of its open transaction here.

        In an overlay: not NO_TRANSACTION if the newest batch belongs to a transaction.
        """
        self.first_index = NO_INDEX
        """Index of the entry at `first_offset`."""
        self.number = 0
        """Number of the newest transaction ended by a marker; 0 if no marker had a number."""

    @property
    def has_transaction(self) -> bool:
        return self.first_offset != NO_TRANSACTION

    def find(self, first: int, last: int) -> Duplicate | None:
        """Return the accepted batch with exactly these sequence numbers."""
        for batch in self.window:
            if batch.first == first and batch.last == last:
                return Duplicate(batch.base_offset, batch.index, batch.timestamp)
        return None


class ActiveProducer(msgspec.Struct, frozen=True, gc=False):
    """Description of a producer for administrators (KIP-664)."""

    producer_id: int
    epoch: int
    last_sequence: int
    """Sequence number of the last record; -1 if the epoch has no batch."""
    last_timestamp: int
    """Largest timestamp (ms) of its newest batch or marker."""
    coordinator_epoch: int
    """Coordinator epoch of its last marker; -1 if there was none."""
    first_offset: Offset
    """First offset of its open transaction; -1 if there is none."""


class Overlay:
    """Batches and markers this leader has appended and not yet seen applied, by producer."""

    __slots__ = ("_unknown", "producers", "unstable")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = NO_KEYS
        self.unstable: deque[tuple[Index, Offset]] | None = None
        """(index, base offset) of the transactional batches among them."""
        self._unknown: dict[int, tuple[int, int]] = NO_KEYS
        """Unknown producer's id → (epoch, sequence number) of its newest refused batch.

        Invariant: at most `UNKNOWN_MAX` entries.
        """

    def clear(self) -> None:
        """Drop everything at the end of leadership: the outcome is unknown here."""
        self.producers = self._unknown = NO_KEYS
        self.unstable = None

    def note_unknown(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Note a batch of an unknown producer.

        Return True if it begins a resend: this batch, or a later one of its epoch, was noted
        before.
        """
        noted = self._unknown.get(producer_id)
        if noted is None and len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]  # it is refused once more
        if self._unknown is NO_KEYS:
            self._unknown = {}
        self._unknown[producer_id] = epoch, base_sequence
        if noted is None or noted[0] != epoch:
            return False
        return (noted[1] - base_sequence) % SEQUENCE_END <= SEQUENCE_END // 2

    def append(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: Offset,
        index: Index,
        timestamp: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Record an appended batch that `check` accepted."""
        producer = self._newest(producer_id, epoch, index)
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        producer.window.append(Batch(base_sequence, last, base_offset, index, timestamp))
        if is_transactional:
            if self.unstable is None:
                self.unstable = deque()  # made when needed: an empty one has 760 bytes
            self.unstable.append((index, base_offset))
            producer.first_offset = base_offset

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, index: Index, number: int = 0
    ) -> None:
        """Record an appended marker that ends the producer's transaction."""
        producer = self._newest(producer_id, epoch, index)
        producer.number = max(producer.number, number)
        producer.coordinator_epoch = coordinator_epoch
        producer.first_offset = NO_TRANSACTION

    def _newest(self, producer_id: int, epoch: int, index: Index) -> Producer:
        producer = self.producers.get(producer_id)
        if producer is None:
            if self.producers is NO_KEYS:
                self.producers = {}
            self.producers[producer_id] = producer = Producer(epoch)
            if self._unknown:
                self._unknown.pop(producer_id, None)
        elif producer.epoch != epoch:
            assert producer.epoch < epoch, (producer.epoch, epoch)
            producer.epoch = epoch
            producer.window.clear()
        producer.index = index
        return producer

    def committed(self, producer_id: int, index: Index) -> None:
        """Drop entries up to `index`: they are applied, and `Producers` holds them now."""
        while self.unstable and self.unstable[0][0] <= index:
            self.unstable.popleft()
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        if producer.index <= index:
            del self.producers[producer_id]
            return
        window = producer.window
        while window and window[0].index <= index:
            del window[0]


class Producers:
    """Windows of all producers of one partition, as produced by committed batches."""

    __slots__ = ("_dirty", "_producers", "new_ids_from", "open")

    def __init__(self) -> None:
        self.new_ids_from = 0
        """Producer ids from this one on are new.

        They were allocated after this replica was opened, and no producer with such an id was
        forgotten. Use: to refuse batches that must be out of order; each replica has its own value.
        Invariant: never lowered.
        """
        self._producers: dict[int, Producer] = NO_KEYS
        """Longest idle first, which is the order of removal.

        Invariant: sorted by the index of the newest batch or marker, which is unique to a producer.
        """
        self.open: dict[int, Producer] = NO_KEYS
        """Producers with an open transaction, by id; read-only to others.

        Invariant: in the order of first offsets.
        """
        self._dirty: dict[int, None] = NO_KEYS

    def __len__(self) -> int:
        return len(self._producers)

    def ids_given_out(self, next_producer_id: int) -> None:
        """Record that ids below `next_producer_id` are older than this replica's state."""
        self.new_ids_from = max(self.new_ids_from, next_producer_id)

    @property
    def oldest_index(self) -> Index | None:
        """Index of the newest batch of the longest idle producer that may be forgotten.

        None if there is no such producer.
        """
        for producer in self._producers.values():
            if not producer.has_transaction:
                return producer.index
        return None

    def excess_index(self, kept: int) -> Index:
        """Return the index up to which producers must expire so that at most `kept` remain.

        It is that of the newest batch of the last excess producer, longest idle first; 0 if there
        is no excess.
        """
        excess = len(self._producers) - kept
        if excess <= 0:
            return NO_INDEX
        return next(islice(self._producers.values(), excess - 1, None)).index

    @property
    def newest_index(self) -> Index | None:
        """Index of the newest batch of any producer; None if there are no producers."""
        producer = next(reversed(self._producers.values()), None)
        return None if producer is None else producer.index

    @property
    def oldest_open(self) -> Producer | None:
        """Producer of the first open transaction, from which on nothing is stable.

        The caller must not change it.
        """
        return next(iter(self.open.values())) if self.open else None

    def get(self, producer_id: int) -> Producer | None:
        """Return the committed state of a producer, for descriptions.

        The caller must not change it.
        """
        return self._producers.get(producer_id)

    def active(self) -> Iterator[ActiveProducer]:
        """Yield all producers by id.

        A caller that iterates in pieces misses producers that are added or removed meanwhile.
        """
        for producer_id in sorted(self._producers):
            producer = self._producers.get(producer_id)
            if producer is not None:
                yield ActiveProducer(
                    producer_id,
                    producer.epoch,
                    producer.window[-1].last if producer.window else -1,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.first_offset,
                )

    def has_transaction(self, overlay: Overlay, producer_id: int, epoch: int | None = None) -> bool:
        """Return True if the producer's newest entry, committed or not, is in an open transaction.

        If `epoch` is given, the transaction must be of that epoch.
        """
        newest = overlay.producers.get(producer_id) or self._producers.get(producer_id)
        if newest is None or not newest.has_transaction:
            return False
        return epoch is None or newest.epoch == epoch

    def opened_by(self, overlay: Overlay) -> int:
        """Return the number of transactions that applying the appended entries will open."""
        return sum(
            producer.has_transaction and producer_id not in self.open
            for producer_id, producer in overlay.producers.items()
        )

    def check_marker(
        self,
        overlay: Overlay,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        transaction_version: int,
        number: int = NO_NUMBER,
    ) -> bool | ErrorCode:
        """Return True to append a marker, False if it ends nothing, or the error to answer.

        KIP-98, KIP-1228. From version 2 on the coordinator begins a new epoch with each marker, so
        a marker whose epoch is not newer than that of the open transaction is a late one of another
        transaction. Before version 2, only the transaction's number distinguishes them. The number
        is recorded even if the transaction has written nothing; otherwise the marker could arrive
        again and end the next transaction.
        """
        is_known_by_number = number > NO_NUMBER and transaction_version < NEW_EPOCHS_FROM
        committed = self._producers.get(producer_id)
        newest = overlay.producers.get(producer_id) or committed
        if newest is None:
            return is_known_by_number
        ended = newest.number if committed is None else max(newest.number, committed.number)
        if NO_NUMBER < number <= ended:
            return False
        if coordinator_epoch < self.epochs(overlay, producer_id)[1]:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if epoch < newest.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if not newest.has_transaction:
            # A newer epoch is appended all the same: it fences batches that an older producer still
            # sends.
            return is_known_by_number or (number > NO_NUMBER and epoch > newest.epoch)
        if epoch == newest.epoch and transaction_version >= NEW_EPOCHS_FROM:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return True

    def epochs(self, overlay: Overlay, producer_id: int) -> tuple[int, int]:
        """Return (producer epoch, coordinator epoch) of its newest entries, committed or not.

        -1 for an epoch that does not exist.
        """
        committed = self._producers.get(producer_id)
        newest = overlay.producers.get(producer_id) or committed
        if newest is None:
            return -1, NO_COORDINATOR_EPOCH
        known = newest.coordinator_epoch
        if committed is not None:
            known = max(known, committed.coordinator_epoch)
        return newest.epoch, known

    def check(
        self,
        overlay: Overlay,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        begins_epoch: bool = False,
        may_begin_late: Callable[[], bool] = lambda: True,
    ) -> Duplicate | ErrorCode:
        """Return NONE to append a batch, a Duplicate, or the error to answer.

        `begins_epoch`: the batch is of a transaction that begins an epoch (KIP-890).
        `may_begin_late`: returns True if all possible leaders accept an unknown producer whose
        sequence numbers begin above 0.
        """
        committed = self._producers.get(producer_id)
        newest = overlay.producers.get(producer_id) or committed
        if newest is None:
            verdict = self._check_unknown(producer_id, base_sequence, begins_epoch=begins_epoch)
            begins_late = verdict is ErrorCode.NONE and base_sequence != 0
            if begins_late and not may_begin_late():
                return ErrorCode.UNKNOWN_PRODUCER_ID
            # A batch with number 0 is noted as well: there may be no room for it.
            comes_again = overlay.note_unknown(producer_id, epoch, base_sequence)
            if begins_late and not comes_again:
                return ErrorCode.NOT_LEADER_OR_FOLLOWER
            return verdict
        if epoch != newest.epoch:
            if epoch < newest.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if base_sequence == 0:
                return ErrorCode.NONE
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        window = newest.window
        if not window and committed is not None and committed.epoch == epoch:
            window = committed.window  # only a marker is in flight
        wanted = (window[-1].last + 1) % SEQUENCE_END if window else 0
        if base_sequence == wanted:
            return ErrorCode.NONE
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        duplicate = newest.find(base_sequence, last)
        if duplicate is not None:
            return duplicate
        if committed is not None and committed is not newest and committed.epoch == epoch:
            duplicate = committed.find(base_sequence, last)
            if duplicate is not None:
                return duplicate
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def _check_unknown(
        self, producer_id: int, base_sequence: int, *, begins_epoch: bool
    ) -> ErrorCode:
        """Return the verdict on the first batch of a new or forgotten producer."""
        if base_sequence == 0:
            return ErrorCode.NONE
        if begins_epoch or producer_id >= self.new_ids_from:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # A producer forgotten only by the bound left as many producers behind as the bound allows.
        # None of them is removed before it could itself have been removed by a command.
        if len(self._producers) >= PRODUCERS_MAX:
            return ErrorCode.UNKNOWN_PRODUCER_ID
        return ErrorCode.NONE

    def apply(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: Offset,
        index: Index,
        timestamp: int,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Record a batch committed at `base_offset`, in the entry at `index`."""
        producer = self._heard(producer_id, epoch, index, timestamp)
        window = producer.window
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        window.append(Batch(base_sequence, last, base_offset, index, timestamp))
        if len(window) > WINDOW_BATCHES:
            del window[0]
        if is_transactional and producer.first_offset == NO_TRANSACTION:
            producer.first_offset, producer.first_index = base_offset, index
            if self.open is NO_KEYS:
                self.open = {}
            self.open[producer_id] = producer

    def apply_marker(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        index: Index,
        timestamp: int,
        number: int = 0,
    ) -> Offset:
        """Record a marker committed in the entry at `index`.

        Return the first offset of the transaction that it ends; NO_TRANSACTION if none was open.
        """
        producer = self._heard(producer_id, epoch, index, timestamp)
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        producer.number = max(producer.number, number)
        first_offset = producer.first_offset
        if first_offset != NO_TRANSACTION:
            producer.first_offset, producer.first_index = NO_TRANSACTION, NO_INDEX
            del self.open[producer_id]
        return first_offset

    def _heard(self, producer_id: int, epoch: int, index: Index, timestamp: int) -> Producer:
        """Return the producer of a committed entry, updated and moved to the end of the order."""
        if self._producers is NO_KEYS:
            self._producers = {}
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = Producer(epoch)
            if len(producers) >= PRODUCERS_MAX:
                self._forget_one()
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.window.clear()
        producers[producer_id] = producer
        producer.last_timestamp = timestamp
        producer.index = index
        if self._dirty is NO_KEYS:
            self._dirty = {}
        self._dirty[producer_id] = None
        return producer

    def _forget_one(self) -> None:
        """Forget the longest idle producer without an open transaction."""
        for producer_id, producer in self._producers.items():
            if not producer.has_transaction:
                del self._producers[producer_id]
                self._forgotten([producer_id])
                return

    def expire(self, index: Index) -> None:
        """Forget producers without entries behind `index` and without an open transaction."""
        expired: list[int] = []
        for producer_id, producer in self._producers.items():
            if producer.index > index:
                break
            if not producer.has_transaction:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        self._forgotten(expired)
        # A dictionary keeps the space of deleted items; a copy has the size it needs.
        self._producers = dict(self._producers) or NO_KEYS

    def _forgotten(self, producer_ids: list[int]) -> None:
        self._own_dirty().update(dict.fromkeys(producer_ids))
        self.new_ids_from = max(self.new_ids_from, 1 + max(producer_ids, default=-1))

    def _own_dirty(self) -> dict[int, None]:
        if self._dirty is NO_KEYS:
            self._dirty = {}
        return self._dirty

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """Return (key, value) of producers changed since the last call; None for a removed one."""
        dirty, self._dirty = self._dirty, NO_KEYS
        return [(_key(producer_id), self._stored(producer_id)) for producer_id in sorted(dirty)]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Return everything in key order."""
        return [
            (_key(producer_id), _encode(self._producers[producer_id]))
            for producer_id in sorted(self._producers)
        ]

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything by stored items, which do not record forgotten producers."""
        loaded: list[tuple[int, Producer]] = []
        for key, value in items:
            stored = decode_value(value, StoredTransactional)
            producer = Producer(stored.epoch)
            producer.last_timestamp = stored.last_timestamp
            producer.window = stored.window
            producer.index = stored.window[-1].index if stored.index < 0 else stored.index
            producer.coordinator_epoch = stored.coordinator_epoch
            producer.first_offset = stored.first_offset
            producer.first_index = stored.first_index
            producer.number = stored.number
            loaded.append((_KEY.unpack(key)[1], producer))
        # The order of removal follows from the indexes: an entry belongs to one producer.
        loaded.sort(key=lambda pair: pair[1].index)
        self._producers = dict(loaded) or NO_KEYS
        opened = [pair for pair in loaded if pair[1].has_transaction]
        opened.sort(key=lambda pair: pair[1].first_offset)
        self.open = dict(opened) or NO_KEYS
        self._dirty = NO_KEYS
        self.new_ids_from = max(self.new_ids_from, 1 + max(self._producers, default=-1))

    def _stored(self, producer_id: int) -> bytes | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else _encode(producer)


def _key(producer_id: int) -> bytes:
    return _KEY.pack(_KEY_KIND, producer_id)


def _encode(producer: Producer) -> bytes:
    # An administrator's marker may come without a coordinator epoch.
    batch_is_newest = bool(producer.window) and producer.window[-1].index == producer.index
    has_marker = producer.coordinator_epoch != NO_COORDINATOR_EPOCH or not batch_is_newest
    if not has_marker and not producer.has_transaction:
        return encode_value(
            StoredProducer(
                epoch=producer.epoch,
                last_timestamp=producer.last_timestamp,
                window=producer.window,
            )
        )
    return encode_value(
        StoredTransactional(
            epoch=producer.epoch,
            last_timestamp=producer.last_timestamp,
            window=producer.window,
            index=producer.index,
            coordinator_epoch=producer.coordinator_epoch,
            first_offset=producer.first_offset,
            first_index=producer.first_index,
            number=producer.number,
        )
    )
