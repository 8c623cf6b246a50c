"""The idempotent producers of one partition: which batches its log already has (KIP-98).

A producer numbers its records. The partition accepts a batch only if its first number follows the
last accepted one. A batch that is sent again, because its answer was lost, is recognised and
answered with its offset, also by the next leader and after a restart: the windows are a function of
the committed log.

Two layers. `Producers` is the result of committed batches, the same on every replica. `Overlay` is
what this leader has appended and not committed yet; it ends with the term. `check` reads both.

Rules, and where they are stricter than Kafka's:

* The first batch of a producer here, and the first of a new epoch, must start at 0. A later batch
  of an unknown producer is UNKNOWN_PRODUCER_ID. Kafka (`ProducerAppendInfo.checkSequence`) accepts
  any first number, and so can miss a gap. The numbers of an epoch are therefore dense from 0. The
  Java client and franz-go start a new epoch and send the batch again. librdkafka does so for a
  batch it sent once; for one it sent before it ends with a fatal error: it may be in the log, and
  would be there twice.
* Hence a batch wholly below the window was certainly appended: DUPLICATE_SEQUENCE_NUMBER, which
  clients take as success without an offset. OUT_OF_ORDER_SEQUENCE_NUMBER would mean "not appended",
  and a batch with an open fate would be appended twice.
* A producer that was idle for `producer.id.expiration.ms` is forgotten by a command in the log
  (`expire`): the only other times in a partition's log are its clients'. Kafka uses those.
* Beyond `PRODUCERS_MAX` the producer that was idle longest is forgotten, however long that is.
* A forgotten producer is an unknown one: see the first rule. Kafka would accept its batch.

On the path of every idempotent batch: plain attributes, no allocation beyond the window's entry.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from vdl.errors import ErrorCode
from vdl.state.table import decode_value, encode_value

WINDOW_BATCHES = 5
"""Batches a producer may have in flight and therefore send again (KIP-98)."""

PRODUCERS_MAX = 4_096
"""Producers a partition remembers."""

SEQUENCE_END = 1 << 31
"""Sequence numbers are 31 bits; 0 follows the largest."""

_KEY = Struct(">cQ")
_KEY_KIND = b"p"


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One accepted batch: its sequence numbers [first, last], its offset, its entry, and its
    largest timestamp (ms; -1 where that was not kept yet)."""

    first: int
    last: int
    base_offset: int
    index: int
    timestamp: int = -1


class Duplicate(msgspec.Struct, frozen=True, gc=False):
    """The verdict on a batch that is in the log already; committed if `index` is."""

    base_offset: int
    index: int
    timestamp: int = -1
    """Largest timestamp of the original (ms): what it was answered with where that is the time of
    its append."""


class StoredProducer(msgspec.Struct, frozen=True, array_like=True):
    """A producer as it is stored."""

    epoch: int
    last_timestamp: int
    window: list[Batch]


class Producer:
    """What one layer knows of one producer. Invariant: `window` is not empty, oldest first."""

    __slots__ = ("epoch", "last_timestamp", "window")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_timestamp = -1
        """Largest timestamp (ms) of its newest batch, the client's own."""
        self.window: list[Batch] = []

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
    """Of its newest batch's last record."""
    last_timestamp: int
    """Largest timestamp (ms) of its newest batch."""


class Overlay:
    """Batches this leader has appended and not yet seen applied, by producer."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}

    def append(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        index: int,
        timestamp: int,
    ) -> None:
        """A batch that `check` passed was appended."""
        producer = self.producers.get(producer_id)
        if producer is None:
            self.producers[producer_id] = producer = Producer(epoch)
        elif producer.epoch != epoch:
            assert producer.epoch < epoch, (producer.epoch, epoch)
            producer.epoch = epoch
            producer.window.clear()
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        producer.window.append(Batch(base_sequence, last, base_offset, index, timestamp))

    def committed(self, producer_id: int, index: int) -> None:
        """Entries up to `index` are applied: `Producers` knows them from now on."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        window = producer.window
        if window[-1].index <= index:
            del self.producers[producer_id]
            return
        while window[0].index <= index:
            del window[0]


class Producers:
    """The windows of all producers of one partition, as committed batches made them."""

    __slots__ = ("_dirty", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        """Idle longest first: the order they are forgotten in. Invariant: by the index of the
        newest batch, which no two share."""
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def oldest_index(self) -> int | None:
        """Entry of the newest batch of the producer that is idle longest; None: no producers."""
        producer = next(iter(self._producers.values()), None)
        return None if producer is None else producer.window[-1].index

    @property
    def newest_index(self) -> int | None:
        """Entry of the newest batch of any producer; None: no producers."""
        producer = next(reversed(self._producers.values()), None)
        return None if producer is None else producer.window[-1].index

    def get(self, producer_id: int) -> Producer | None:
        """The producer as committed, for descriptions; not to be changed."""
        return self._producers.get(producer_id)

    def active(self) -> list[ActiveProducer]:
        """All producers, by id."""
        return [
            ActiveProducer(
                producer_id, producer.epoch, producer.window[-1].last, producer.last_timestamp
            )
            for producer_id, producer in sorted(self._producers.items())
        ]

    def check(
        self,
        overlay: Overlay,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
    ) -> Duplicate | ErrorCode:
        """What to do with a batch: NONE to append it, Duplicate, or the error to answer."""
        committed = self._producers.get(producer_id)
        newest = overlay.producers.get(producer_id) or committed
        if newest is None:
            return ErrorCode.NONE if base_sequence == 0 else ErrorCode.UNKNOWN_PRODUCER_ID
        if epoch != newest.epoch:
            if epoch < newest.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if base_sequence == 0:
                return ErrorCode.NONE
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        wanted = (newest.window[-1].last + 1) % SEQUENCE_END
        if base_sequence == wanted:
            return ErrorCode.NONE
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        duplicate = newest.find(base_sequence, last)
        if duplicate is not None:
            return duplicate
        oldest = newest
        if committed is not None and committed is not newest and committed.epoch == epoch:
            duplicate = committed.find(base_sequence, last)
            if duplicate is not None:
                return duplicate
            oldest = committed
        # Numbers are dense from 0, so what lies below the window was accepted before it, unless it
        # is ahead: just before the numbers wrap, the next ones are lower. Once they have wrapped,
        # below and above cannot be told apart: then it is out of order.
        is_behind = (base_sequence - wanted) % SEQUENCE_END > SEQUENCE_END // 2
        if is_behind and base_sequence <= last < oldest.window[0].first:
            return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def apply(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        base_offset: int,
        index: int,
        timestamp: int,
    ) -> None:
        """A batch of this producer is committed at `base_offset`, in the entry at `index`."""
        producers = self._producers
        producer = producers.pop(producer_id, None)
        if producer is None:
            producer = Producer(epoch)
            if len(producers) >= PRODUCERS_MAX:
                forgotten = next(iter(producers))
                del producers[forgotten]
                self._dirty.add(forgotten)
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.window.clear()
        producers[producer_id] = producer
        producer.last_timestamp = timestamp
        window = producer.window
        last = (base_sequence + record_count - 1) % SEQUENCE_END
        window.append(Batch(base_sequence, last, base_offset, index, timestamp))
        if len(window) > WINDOW_BATCHES:
            del window[0]
        self._dirty.add(producer_id)

    def expire(self, index: int) -> None:
        """Forget the producers that have no batch in an entry behind `index`."""
        expired: list[int] = []
        for producer_id, producer in self._producers.items():
            if producer.window[-1].index > index:
                break
            expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        self._dirty.update(expired)
        # A dictionary keeps the room of what was deleted; a copy has what it needs.
        self._producers = dict(self._producers)

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
        """Replace everything by what `items` or the dirty keys of a life gave."""
        loaded: list[tuple[int, Producer]] = []
        for key, value in items:
            stored = decode_value(value, StoredProducer)
            producer = Producer(stored.epoch)
            producer.last_timestamp = stored.last_timestamp
            producer.window = stored.window
            loaded.append((_KEY.unpack(key)[1], producer))
        # Who was heard of last is told by the entries: an entry has one producer.
        loaded.sort(key=lambda pair: pair[1].window[-1].index)
        self._producers = dict(loaded)
        self._dirty = set()

    def _stored(self, producer_id: int) -> bytes | None:
        producer = self._producers.get(producer_id)
        return None if producer is None else _encode(producer)


def _key(producer_id: int) -> bytes:
    return _KEY.pack(_KEY_KIND, producer_id)


def _encode(producer: Producer) -> bytes:
    return encode_value(
        StoredProducer(
            epoch=producer.epoch,
            last_timestamp=producer.last_timestamp,
            window=producer.window,
        )
    )
