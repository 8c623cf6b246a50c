"""The idempotent producers of one partition: which batches its log already has (KIP-98).

A producer numbers its records. The partition accepts a batch only if its first number follows the
last accepted one. A batch that is sent again, because its answer was lost, is recognised and
answered with its offset, also by the next leader and after a restart: the windows are a function of
the committed log.

Two layers. `Producers` is the result of committed batches, the same on every replica. `Overlay` is
what this leader has appended and not committed yet; it ends with the term. `check` reads both.

Rules for the first batch of a producer that is unknown here, in this order:

* Number 0 begins an epoch: it is appended.
* In a transaction of KIP-890's second version every other number is out of order: each of those
  begins an epoch.
* A producer whose id is new (`new_ids_from`) was never here, so its numbers begin at 0 here. A
  batch before this one is on its way: OUT_OF_ORDER_SEQUENCE_NUMBER. To append this one would
  reverse their order; Kafka does.
* A full table (`PRODUCERS_MAX`) may have forgotten a producer that still sends a batch again:
  UNKNOWN_PRODUCER_ID. Java's client and franz-go begin a new epoch. librdkafka does so for a batch
  it sent once; for one it sent before it ends with a fatal error: it may be in the log.
* While a server that may lead here is of a version to which numbers begin at 0, likewise
  UNKNOWN_PRODUCER_ID. To it a batch before this one, which may come yet, would be a duplicate.
* Any other number is appended, as in Kafka, but only when it comes again. The producer wrote to the
  topic of that name that was deleted, or has been idle here for so long that nothing of it is sent
  again. Or a batch before this one was refused, or is lost with its leader, and this one overtook
  it: nothing here tells. So the first time it is NOT_LEADER_OR_FOLLOWER, which says that it was not
  appended. All clients then send again from their oldest batch on, in order.

A new epoch of a known producer begins at 0. A batch whose numbers are passed, and that is not among
the last `WINDOW_BATCHES`, is out of order, as in Kafka: a producer has no more than these under
way, and its numbers need not have begun at 0, so that it may never have been appended.

Producers are forgotten by commands and by the bound:

* A producer that was idle for `producer.id.expiration.ms` is forgotten by a command in the log
  (`expire`): the only other times in a partition's log are its clients'. Kafka uses those.
* Where there are more than `PRODUCERS_KEPT`, or than a partition's share of what its leader's
  server keeps, the command forgets those of them that were idle longest sooner, but not while their
  clients may still send again what was not answered.
* Beyond `PRODUCERS_MAX` the producer that was idle longest is forgotten, however long that is: that
  bounds memory where ever new ones come.
* One with an open transaction is never forgotten: its marker is still to come (KIP-98).

A producer's transaction opens with its first transactional batch, and ends with a marker. A marker
may bring a newer epoch (KIP-890, and whenever a producer is fenced): then numbers begin at 0 again.
Only a coordinator's does, which numbers its transactions. An administrator's ends what is open, and
leaves all epochs as they are: a number that somebody made up must fence neither the coordinator nor
the producer. The oldest open transaction bounds what is stable.

On the path of every idempotent batch: plain attributes, no allocation beyond the window's entry.
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
from vdl.state.table import decode_value, encode_value

WINDOW_BATCHES = 5
"""Batches a producer may have in flight and therefore send again (KIP-98)."""

PRODUCERS_KEPT = 4_096
"""Producers a partition remembers for as long as `producer.id.expiration.ms` says."""

PRODUCERS_MAX = 32_768
"""Producers a partition remembers, beside those with open transactions: up to some 40 MB, and some
3 MiB of a snapshot."""

NO_TRANSACTION: Final = Offset(-1)
"""The first offset of no transaction."""

NO_COORDINATOR_EPOCH = -1
"""No marker has come yet."""

UNKNOWN_MAX = PRODUCERS_MAX
"""Producers that a leader notes of those that sent a batch and are not known yet."""

NO_NUMBER = 0
"""Of a marker that is no coordinator's: an administrator ends what hangs (KIP-664)."""

NEW_EPOCHS_FROM = 2
"""The level of `transaction.version` from which on each marker begins a new epoch (KIP-890)."""

SEQUENCE_END = 1 << 31
"""Sequence numbers are 31 bits; 0 follows the largest."""

_KEY = Struct(">cQ")
_KEY_KIND = b"p"


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One accepted batch: its sequence numbers [first, last], its offset, its entry, and its
    largest timestamp (ms; -1 where that was not kept yet)."""

    first: int
    last: int
    base_offset: Offset
    index: Index
    timestamp: int = -1


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a batch that is in the log already; committed if `index` is."""

    base_offset: Offset
    index: Index
    timestamp: int = -1
    """Largest timestamp of the original (ms): what it was answered with where that is the time of
    its append."""


class StoredProducer(msgspec.Struct, frozen=True, array_like=True):
    """A producer as it is stored, if it has written no transaction."""

    epoch: int
    last_timestamp: int
    window: list[Batch]


class StoredTransactional(msgspec.Struct, frozen=True, array_like=True):
    """Any producer as it is stored."""

    epoch: int
    last_timestamp: int
    window: list[Batch]
    index: Index = Index(-1)
    """-1: that of the newest batch."""
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    first_offset: Offset = NO_TRANSACTION
    first_index: Index = NO_INDEX
    number: int = 0


class Producer:
    """What one layer knows of one producer. Invariant: `window` is oldest first, and empty only
    where a marker was the last that came of its epoch."""

    __slots__ = (
        "coordinator_epoch", "epoch", "first_index", "first_offset", "index", "last_timestamp",
        "number", "window",
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_timestamp = -1
        """Largest timestamp (ms) of its newest batch, the client's own."""
        self.window: list[Batch] = []
        self.index = NO_INDEX
        """The entry of its newest batch or marker."""
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        """Of its last marker."""
        self.first_offset = NO_TRANSACTION
        """Where its open transaction begins here. In an overlay: not NO_TRANSACTION if the newest
        batch is of a transaction."""
        self.first_index = NO_INDEX
        """The entry at `first_offset`."""
        self.number = 0
        """Of the newest transaction that a marker has ended; 0: none said."""

    @property
    def has_transaction(self) -> bool:
        return self.first_offset != NO_TRANSACTION

    def find(self, first: int, last: int) -> Duplicate | None:
        """The accepted batch with exactly these sequence numbers."""
        for batch in self.window:
            if batch.first == first and batch.last == last:
                return Duplicate(batch.base_offset, batch.index, batch.timestamp)
        return None


class ActiveProducer(msgspec.Struct, frozen=True, gc=False):
    """A producer as it is described to people (KIP-664)."""

    producer_id: int
    epoch: int
    last_sequence: int
    """Of its newest batch's last record; -1 if its epoch has none."""
    last_timestamp: int
    """Largest timestamp (ms) of its newest batch or marker."""
    coordinator_epoch: int
    """Of its last marker; -1 if there was none."""
    first_offset: Offset
    """Of its open transaction; -1 for none."""


class Overlay:
    """Batches and markers this leader has appended and not yet seen applied, by producer."""

    __slots__ = ("_unknown", "producers", "unstable")

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self.unstable: deque[tuple[Index, Offset]] = deque()
        """(index, base offset) of the batches of transactions among them."""
        self._unknown: dict[int, tuple[int, int]] = {}
        """Producer id → (epoch, number) of the newest batch that came of a producer that is not
        known, and was not appended. Invariant: at most `UNKNOWN_MAX`."""

    def clear(self) -> None:
        """Leadership ended: nobody knows here what becomes of it."""
        self.producers.clear()
        self.unstable.clear()
        self._unknown.clear()

    def note_unknown(self, producer_id: int, epoch: int, base_sequence: int) -> bool:
        """Note that a batch of an unknown producer came. Return whether it is the first of those
        that are sent again: it, or a later one of that epoch, came just before."""
        noted = self._unknown.get(producer_id)
        if noted is None and len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]  # it is sent back once more
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
        """A batch that `check` passed was appended."""
        producer = self._newest(producer_id, epoch, index)
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        producer.window.append(Batch(base_sequence, last, base_offset, index, timestamp))
        if is_transactional:
            self.unstable.append((index, base_offset))
            producer.first_offset = base_offset

    def append_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, index: Index, number: int = 0
    ) -> None:
        """A marker that ends the producer's transaction was appended."""
        producer = self._newest(producer_id, epoch, index)
        producer.number = max(producer.number, number)
        producer.coordinator_epoch = coordinator_epoch
        producer.first_offset = NO_TRANSACTION

    def _newest(self, producer_id: int, epoch: int, index: Index) -> Producer:
        producer = self.producers.get(producer_id)
        if producer is None:
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
        """Entries up to `index` are applied: `Producers` knows them from now on."""
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
    """The windows of all producers of one partition, as committed batches made them."""

    __slots__ = ("_dirty", "_producers", "new_ids_from", "open")

    def __init__(self) -> None:
        self.new_ids_from = 0
        """Producer ids from this one on are new: given out since this replica was opened, and no
        producer with so high an id was forgotten. Use: to refuse what would be out of order; each
        replica has its own. Invariant: never lowered."""
        self._producers: dict[int, Producer] = {}
        """Idle longest first: the order they are forgotten in. Invariant: by the index of the
        newest batch or marker, which no two share."""
        self.open: dict[int, Producer] = {}
        """Those with an open transaction, by id; read only to others. Invariant: in the order of
        first offsets."""
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._producers)

    def ids_given_out(self, next_producer_id: int) -> None:
        """Ids below `next_producer_id` were given out before this replica got its state."""
        self.new_ids_from = max(self.new_ids_from, next_producer_id)

    @property
    def oldest_index(self) -> Index | None:
        """Entry of the newest batch of the producer that is idle longest, of those that may be
        forgotten; None: there are none."""
        for producer in self._producers.values():
            if not producer.has_transaction:
                return producer.index
        return None

    def excess_index(self, kept: int) -> Index:
        """Entry of the newest batch of the last one of those that are more than `kept`, idle
        longest first; 0: there are no more."""
        excess = len(self._producers) - kept
        if excess <= 0:
            return NO_INDEX
        return next(islice(self._producers.values(), excess - 1, None)).index

    @property
    def newest_index(self) -> Index | None:
        """Entry of the newest batch of any producer; None: no producers."""
        producer = next(reversed(self._producers.values()), None)
        return None if producer is None else producer.index

    @property
    def oldest_open(self) -> Producer | None:
        """The producer whose open transaction begins first: nothing from there on is stable. Not
        to be changed."""
        return next(iter(self.open.values())) if self.open else None

    def get(self, producer_id: int) -> Producer | None:
        """The producer as committed, for descriptions; not to be changed."""
        return self._producers.get(producer_id)

    def active(self) -> Iterator[ActiveProducer]:
        """All producers, by id. Whoever takes them in pieces is not told of those that go
        meanwhile, nor of new ones."""
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
        """Whether the producer's last word, committed or not, is of an open transaction: of this
        epoch, or of any."""
        newest = overlay.producers.get(producer_id) or self._producers.get(producer_id)
        if newest is None or not newest.has_transaction:
            return False
        return epoch is None or newest.epoch == epoch

    def opened_by(self, overlay: Overlay) -> int:
        """How many transactions are open once what is appended is applied, and are not yet."""
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
        """What to do with a marker: True to append it, False where there is nothing that it ends,
        or the error to answer (KIP-98, KIP-1228).

        From version 2 on the coordinator begins a new epoch with each marker. So one that is not
        newer than the transaction that is open is late, and of another one. Before that only the
        transaction's number tells: it is noted also where the transaction has written nothing, or
        the marker could come again and end the next one.
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
            # A newer epoch is noted all the same: it fences what an older producer still sends.
            return is_known_by_number or (number > NO_NUMBER and epoch > newest.epoch)
        if epoch == newest.epoch and transaction_version >= NEW_EPOCHS_FROM:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return True

    def epochs(self, overlay: Overlay, producer_id: int) -> tuple[int, int]:
        """(the producer's epoch, its coordinator's) as its newest entries say, committed or not; -1
        for none."""
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
        """What to do with a batch that came: NONE to append it, Duplicate, or the error to answer.
        `begins_epoch`: the batch is of a transaction that does (KIP-890). `may_begin_late`: whether
        all who may lead take it that an unknown producer's numbers begin above 0."""
        committed = self._producers.get(producer_id)
        newest = overlay.producers.get(producer_id) or committed
        if newest is None:
            verdict = self._check_unknown(producer_id, base_sequence, begins_epoch=begins_epoch)
            begins_late = verdict is ErrorCode.NONE and base_sequence != 0
            if begins_late and not may_begin_late():
                return ErrorCode.UNKNOWN_PRODUCER_ID
            # Also 0 is noted: there may be no room for it.
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
            window = committed.window  # only a marker is on its way
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
        """The verdict on the first batch of a producer, or of one that was forgotten."""
        if base_sequence == 0:
            return ErrorCode.NONE
        if begins_epoch or producer_id >= self.new_ids_from:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        # One forgotten by the bound alone left as many behind it as the bound says, and none of
        # them goes before it could have gone by a command itself.
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
        """A batch of this producer is committed at `base_offset`, in the entry at `index`."""
        producer = self._heard(producer_id, epoch, index, timestamp)
        window = producer.window
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        window.append(Batch(base_sequence, last, base_offset, index, timestamp))
        if len(window) > WINDOW_BATCHES:
            del window[0]
        if is_transactional and producer.first_offset == NO_TRANSACTION:
            producer.first_offset, producer.first_index = base_offset, index
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
        """A marker of this producer is committed in the entry at `index`. The first offset of the
        transaction that it ends; NO_TRANSACTION if none was open."""
        producer = self._heard(producer_id, epoch, index, timestamp)
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator_epoch)
        producer.number = max(producer.number, number)
        first_offset = producer.first_offset
        if first_offset != NO_TRANSACTION:
            producer.first_offset, producer.first_index = NO_TRANSACTION, NO_INDEX
            del self.open[producer_id]
        return first_offset

    def _heard(self, producer_id: int, epoch: int, index: Index, timestamp: int) -> Producer:
        """The producer, of which something is committed in the entry at `index`."""
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
        self._dirty.add(producer_id)
        return producer

    def _forget_one(self) -> None:
        """Forget the producer that is idle longest, of those without an open transaction."""
        for producer_id, producer in self._producers.items():
            if not producer.has_transaction:
                del self._producers[producer_id]
                self._forgotten([producer_id])
                return

    def expire(self, index: Index) -> None:
        """Forget the producers of which there is nothing in an entry behind `index`, and that have
        no open transaction."""
        expired: list[int] = []
        for producer_id, producer in self._producers.items():
            if producer.index > index:
                break
            if not producer.has_transaction:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        self._forgotten(expired)
        # A dictionary keeps the room of what was deleted; a copy has what it needs.
        self._producers = dict(self._producers)

    def _forgotten(self, producer_ids: list[int]) -> None:
        self._dirty.update(producer_ids)
        self.new_ids_from = max(self.new_ids_from, 1 + max(producer_ids, default=-1))

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) of every producer that changed since the last call, None where it went."""
        dirty, self._dirty = self._dirty, set()
        return [(_key(producer_id), self._stored(producer_id)) for producer_id in sorted(dirty)]

    def items(self) -> list[tuple[bytes, bytes]]:
        """Everything, in key order."""
        return [
            (_key(producer_id), _encode(self._producers[producer_id]))
            for producer_id in sorted(self._producers)
        ]

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace everything by what `items` or the dirty keys of a life gave. They do not say
        which producers were forgotten."""
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
        # Who was heard of last is told by the entries: an entry has one producer.
        loaded.sort(key=lambda pair: pair[1].index)
        self._producers = dict(loaded)
        opened = [pair for pair in loaded if pair[1].has_transaction]
        opened.sort(key=lambda pair: pair[1].first_offset)
        self.open = dict(opened)
        self._dirty = set()
        self.new_ids_from = max(self.new_ids_from, 1 + max(self._producers, default=-1))

    def _stored(self, producer_id: int) -> bytes | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else _encode(producer)


def _key(producer_id: int) -> bytes:
    return _KEY.pack(_KEY_KIND, producer_id)


def _encode(producer: Producer) -> bytes:
    # An administrator's marker may come without a coordinator's epoch.
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
