"""Delivery of one coordinator's markers: which is sent next, and when one is sent again.

Rules:

* Participants take turns, a marker at a time. Many markers for one participant do not delay those
  for others.
* A participant has `ROOM_FIRST` markers in flight at first, and with each answer one more.
* A participant is silent from when a marker for it is not answered until one is. It is sent one
  marker at a time, a probe, after a pause. Probes have slots of their own, so that participants
  that cannot be reached do not hold those of the others.
* A deleted participant has nothing to end.

Does not depend on what a marker says, or on when a transaction is complete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from ids import GroupId
from vdl.clock import MS, Clock
from vdl.errors import ErrorCode
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.catalog import Catalog
from vdl.state.transactions import TransactionalId

MARKERS_MAX = 1_000
"""Markers in flight, without probes."""

PROBES_MAX = 500
"""Probes in flight. Further silent participants take turns."""

ROOM_FIRST = 8
"""Markers in flight for a participant of which nothing is known."""

TURN_MAX = 1_000
"""Markers sent in one call of the loop."""

MARKER_NS = 3_000 * MS
"""Longest time of one attempt to send a participant its marker."""

RETRY_NS = 500 * MS
"""Delay before a marker is sent again that was refused or not answered."""

Transaction = tuple[str, int, int]
"""Transactional id, producer id, number."""

_PASSED = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""A participant that knows a newer epoch of the producer has ended everything before it."""


class MarkerHost(Protocol):
    """The server, as far as the delivery uses it."""

    @property
    def catalog(self) -> Catalog: ...
    def command_group(
        self,
        group_id: GroupId,
        data: bytes,
        *,
        deadline_ns: int,
        done: Callable[[Outcome], None],
    ) -> None: ...


class Ending:
    """A decided transaction whose participants are being sent their markers."""

    __slots__ = ("commits", "epoch", "left", "transaction", "version")

    def __init__(self, known: TransactionalId) -> None:
        self.transaction = transaction_of(known)
        self.epoch = known.epoch
        self.commits = known.markers_commit
        self.version = known.version
        self.left = set(known.participants)
        """Participants that have not acknowledged."""


class _Participant:
    """A participant with markers that wait or are in flight."""

    __slots__ = ("group_id", "is_paused", "is_queued", "is_silent", "room", "told", "waiting")

    def __init__(self, group_id: GroupId) -> None:
        self.group_id = group_id
        self.waiting: deque[Ending] = deque()
        self.told = 0
        """Markers in flight."""
        self.room = ROOM_FIRST
        """How many may be in flight."""
        self.is_silent = False
        self.is_paused = False
        """True until the next probe is due."""
        self.is_queued = False
        """True if it waits for its turn."""


class MarkerDelivery:
    """The markers of one coordinator, while this server leads it."""

    def __init__(
        self,
        clock: Clock,
        host: MarkerHost,
        encode: Callable[[Ending, GroupId], bytes],
        passed: Callable[[Ending, GroupId], None],
    ) -> None:
        """Call `passed` once for each marker, when the participant has nothing left to end."""
        self._clock = clock
        self._host = host
        self._encode = encode
        self._passed = passed
        self._participants: dict[GroupId, _Participant] = {}
        self._to_tell: deque[_Participant] = deque()
        self._told = 0
        """Markers in flight, without probes."""
        self._to_probe: deque[_Participant] = deque()
        self._probes = 0
        """Probes in flight."""
        self._is_due = False
        """True if `_tell` is going to be called."""
        self._is_closed = False

    def close(self) -> None:
        """Send nothing any more."""
        self._is_closed = True

    def send(self, ending: Ending, group_ids: Iterable[GroupId]) -> None:
        """Deliver the outcome of a transaction to participants."""
        for group_id in group_ids:
            participant = self._participants.get(group_id)
            if participant is None:
                participant = self._participants[group_id] = _Participant(group_id)
            participant.waiting.append(ending)
            self._queue(participant)
        self._tell()

    def _queue(self, participant: _Participant) -> None:
        """Have the participant take a turn if it may; forget it if nothing is left for it."""
        if participant.is_queued or participant.is_paused:
            return
        if participant.waiting:
            if participant.told < participant.room:
                participant.is_queued = True
                (self._to_probe if participant.is_silent else self._to_tell).append(participant)
        elif not participant.told:
            self._participants.pop(participant.group_id, None)

    def _tell(self) -> None:
        """Send markers, as far as there are slots."""
        for _ in range(TURN_MAX):
            if self._is_closed:
                return
            if self._to_tell and self._told < MARKERS_MAX:
                participant, is_probe = self._to_tell.popleft(), False
            elif self._to_probe and self._probes < PROBES_MAX:
                participant, is_probe = self._to_probe.popleft(), True
            else:
                return
            participant.is_queued = False
            # It may have become silent, or have answered, since it was queued.
            if participant.is_silent is is_probe and participant.told < participant.room:
                self._tell_next(participant, is_probe=is_probe)
            self._queue(participant)
        self._tell_soon()

    def _tell_soon(self) -> None:
        if not self._is_due and (self._to_tell or self._to_probe):
            self._is_due = True
            self._clock.call_soon(self._tell_due)

    def _tell_due(self) -> None:
        self._is_due = False
        self._tell()

    def _tell_next(self, participant: _Participant, *, is_probe: bool) -> None:
        ending = participant.waiting.popleft()
        if self._host.catalog.has_deleted(participant.group_id):
            self._passed(ending, participant.group_id)
            return
        participant.told += 1
        if is_probe:
            self._probes += 1
        else:
            self._told += 1
        self._host.command_group(
            participant.group_id,
            self._encode(ending, participant.group_id),
            deadline_ns=self._clock.now_ns() + MARKER_NS,
            done=partial(self._answered, ending, participant, is_probe),
        )

    def _answered(
        self, ending: Ending, participant: _Participant, is_probe: bool, outcome: Outcome
    ) -> None:
        participant.told -= 1
        if is_probe:
            self._probes -= 1
        else:
            self._told -= 1
        if self._is_closed:
            return
        group_id = participant.group_id
        if outcome.kind is OutcomeKind.APPLIED:
            participant.is_silent = False
            participant.room = min(participant.room + 1, MARKERS_MAX)
            if outcome.result.error in _PASSED:
                self._passed(ending, group_id)
            else:
                self._clock.call_later(RETRY_NS, partial(self._send_again, ending, group_id))
        elif self._host.catalog.has_deleted(group_id):
            self._passed(ending, group_id)
        else:
            self._fall_silent(participant)
            participant.waiting.append(ending)
        self._queue(participant)
        self._tell_soon()

    def _send_again(self, ending: Ending, group_id: GroupId) -> None:
        if not self._is_closed:
            self.send(ending, (group_id,))

    def _fall_silent(self, participant: _Participant) -> None:
        participant.is_silent = True
        participant.room = 1
        if not participant.is_paused:
            participant.is_paused = True
            self._clock.call_later(RETRY_NS, partial(self._resume, participant))

    def _resume(self, participant: _Participant) -> None:
        participant.is_paused = False
        self._queue(participant)
        self._tell()


def transaction_of(known: TransactionalId) -> Transaction:
    """Return the key of the id's present transaction, or of its last one."""
    return known.transactional_id, known.producer_id, known.number
