"""Share-partitions that this server delivers from: those whose partition it leads (KIP-932).

    CLAIMING ──claimed──▶ STARTING ──start known──▶ READY
        └──────────────refused, deposed, write failed──────▶ GONE

A share-partition is claimed from its coordinator when a member first reads it here, under the
leader's epoch. It exists while this replica leads in this epoch and a session reads it. Anything
that may make memory and durable state differ ends it: it is GONE for good, with all its locks, and
the next request claims the state again. So no change is ever undone. A write in flight at that time
may still be applied, so its callbacks receive its outcome.

Changes are written at the end of the turn, for all share-partitions of one coordinator in one
command. The next write to a coordinator waits for the one before. A caller whose response has to
wait until a change is durable passes `written` a callback.

When another session begins to read it, it is written even if nothing changed: the group may have
been deleted, or its offsets set, while an earlier session kept it here.

Does not depend on requests, sessions or records.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from ids import GroupId
from vdl.clock import MS, NEVER, Clock, Timer
from vdl.errors import ERRORS_BY_CODE, ErrorCode
from vdl.kafka.share.group_settings import EARLIEST, LATEST, GroupSettings
from vdl.kafka.share.share_partition import SharePartition
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.answer import CommandAnswer
from vdl.state.commands import (
    ClaimSharePartition,
    ShareWrite,
    WriteShareState,
    encode_command,
)
from vdl.state.share_states import (
    ClaimedShareState,
    ShareKey,
    WrittenShareStates,
)
from vdl.state.table import decode_value

if TYPE_CHECKING:
    from segments.api import StorageError
    from vdl.kafka.configs.options import KafkaOptions
    from vdl.kafka.host import Host, LogStream, TimedOffset, Wait

Written = Callable[[ErrorCode], None]

WRITES_MAX = 200
"""Share-partitions in one command."""
CHANGES_MAX = 20_000
"""Changed runs in a command; once it has this many, further share-partitions wait for the next."""
FULL_NS = 5_000 * MS
"""Time for which no records are delivered after the coordinator had no room."""
CLAIM_AGAIN_NS = 500 * MS
REFUSED_MAX = 10_000
"""Refused claims that are remembered."""

GROUP_IS_FULL = ErrorCode.MESSAGE_TOO_LARGE


class Server(Protocol):
    """The server, as share-partitions see it."""

    @property
    def host(self) -> Host: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def config(self) -> KafkaOptions: ...
    def defer(self, step: Callable[[], None], /) -> None:
        """Run a step once at the end of this turn."""


class Phase(Enum):
    """Life cycle of a share-partition: see the module."""

    CLAIMING = "waits for the coordinator"
    STARTING = "waits for the log"
    READY = "gives records out"
    GONE = "does nothing any more"


class LivePartition:
    """One share-partition: see the module."""

    __slots__ = (
        "_owner", "_timer", "_timer_ns", "_watch", "claim", "coordinator", "error", "is_checked",
        "key", "number", "phase", "readers", "settings", "share", "state_epoch", "stream", "term",
        "waiters", "written", "written_by_next",
    )  # fmt: skip

    def __init__(
        self,
        owner: LivePartitions,
        key: ShareKey,
        stream: LogStream,
        settings: GroupSettings,
        claim: int,
    ) -> None:
        self._owner = owner
        self.key = key
        self.stream = stream
        self.term = stream.term
        self.settings = settings
        self.claim = claim
        self.coordinator = owner.server.host.coordinator_group(key[0])
        self.phase = Phase.CLAIMING
        self.error = ErrorCode.NONE
        """Reason why it is GONE."""
        self.share: SharePartition | None = None
        """Set once it is READY."""
        self.state_epoch = -1
        self.number = 0
        """Number of the newest write."""
        self.readers: set[tuple[str, str]] = set()
        """Sessions that read it."""
        self.is_checked = True
        """True if its state was the coordinator's when the newest of them joined."""
        self.waiters: dict[object, Callable[[], None]] = {}
        """Polls to wake when there may be records to deliver, or it is GONE."""
        self.written: list[Written] = []
        """Callbacks of the write in flight."""
        self.written_by_next: list[Written] = []
        """Callbacks of the write after that."""
        self._timer: Timer | None = None
        self._timer_ns = 0
        self._watch: Wait | None = None

    @property
    def is_current(self) -> bool:
        """True while this replica leads in the epoch it was claimed in."""
        return self.stream.is_leader and self.stream.term == self.term

    # --- beginning ---------------------------------------------------------------------------
    def begin(self) -> None:
        """Claim the state from the coordinator."""
        server = self._owner.server
        command = ClaimSharePartition(*self.key, self.term, self.claim)
        self._watch = self.stream.wait_for(NEVER, self._leadership_changed)
        server.host.command_group(
            self.coordinator,
            encode_command(command),
            deadline_ns=server.clock.now_ns() + server.config.read_timeout_ms * MS,
            done=self._claimed,
        )

    def _leadership_changed(self) -> None:
        self._watch = None
        if not self.is_current:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.phase is not Phase.GONE:
            self._watch = self.stream.wait_for(NEVER, self._leadership_changed)

    def _claimed(self, outcome: Outcome) -> None:
        if self.phase is not Phase.CLAIMING:
            return
        if outcome.kind is not OutcomeKind.APPLIED:
            self.end(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        answer: CommandAnswer = outcome.result
        if answer.error is not ErrorCode.NONE:
            self._owner.refused(self)
            self.end(answer.error)
            return
        try:
            claimed = decode_value(answer.data, ClaimedShareState)
        except msgspec.DecodeError:
            self.end(ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self.phase = Phase.STARTING
        self.state_epoch = claimed.state_epoch
        server = self._owner.server
        self.stream.when_serving(
            deadline_ns=server.clock.now_ns() + server.config.read_timeout_ms * MS,
            done=partial(self._serving, claimed),
        )

    def _serving(self, claimed: ClaimedShareState, serves: bool) -> None:
        if self.phase is not Phase.STARTING:
            return
        if not serves or not self.is_current:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif claimed.start_offset >= 0 or self.settings.reset == EARLIEST:
            self._start(claimed, self.stream.log_start_offset)
        elif self.settings.reset == LATEST:
            self._start(claimed, self.stream.high_watermark)
        else:
            since_ms = self._owner.server.host.agreed_ms() - self.settings.reset_ms
            self.stream.offset_for_time(since_ms, partial(self._found, claimed))

    def _found(self, claimed: ClaimedShareState, found: TimedOffset | StorageError) -> None:
        if self.phase is not Phase.STARTING:
            return
        if isinstance(found, Exception):
            self.end(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            self._start(claimed, self.stream.high_watermark if found.offset < 0 else found.offset)

    def _start(self, claimed: ClaimedShareState, start_offset: int) -> None:
        share = SharePartition(claimed, start_offset, self.settings.limits)
        share.move_start(self.stream.log_start_offset)
        self.share = share
        self.phase = Phase.READY
        if share.has_changes or not self.is_checked:
            self._owner.changed(self)
        self.wake()

    # --- while it exists ---------------------------------------------------------------------
    def join(self, reader: tuple[str, str]) -> None:
        """Add a session that reads it."""
        if reader in self.readers:
            return
        if self.phase is not Phase.CLAIMING:
            self.is_checked = False
            if self.share is not None:
                self._owner.changed(self)
        self.readers.add(reader)

    def changed(self, written: Written | None = None) -> None:
        """Write its changes; `written` is called once they are durable, or it is GONE."""
        share = self.share
        assert share is not None, self.phase
        if written is not None:
            if share.has_changes:
                self.written_by_next.append(written)
            elif self.written:
                self.written.append(written)
            else:
                written(ErrorCode.NONE)
        if share.has_changes:
            self._owner.changed(self)
        self._arm()

    @property
    def records_end(self) -> int:
        """End of the records that may be delivered."""
        if self.settings.is_read_committed:
            return self.stream.last_stable_offset
        return self.stream.high_watermark

    def freed(self) -> None:
        """Wake polls because records were released or completed, so that others may be
        delivered."""
        share = self.share
        # A thousand members that wait for new records in the log must not wake each other.
        if share is not None and share.may_acquire and share.next_offset < self.records_end:
            self.wake()

    def wake(self) -> None:
        """Wake all polls: there may be records to deliver, or it is GONE."""
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters.values():
            waiter()

    def _arm(self) -> None:
        """Set the timer for the next lock that ends."""
        share = self.share
        due_ns = -1 if share is None else share.due_ns
        if due_ns < 0 or (self._timer is not None and self._timer_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        clock = self._owner.server.clock
        self._timer_ns = due_ns
        self._timer = clock.call_later(max(0, due_ns - clock.now_ns()), self._locks_due)

    def _locks_due(self) -> None:
        self._timer = None
        share = self.share
        if share is None or self.phase is not Phase.READY:
            return
        freed = share.expire(self._owner.server.clock.now_ns())
        if freed:
            self._owner.locks_expired += freed
            self.freed()
        self.changed()

    def release_member(self, member_id: str) -> None:
        """Release the locks of a member whose session ended."""
        if self.share is not None and self.share.release_member(member_id):
            self.freed()
            self.changed()

    def end(self, error: ErrorCode) -> None:
        """End it. Callbacks of changes that were not sent to the coordinator receive the error."""
        if self.phase is Phase.GONE:
            return
        self.phase = Phase.GONE
        self.error = error
        self.share = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._owner.forget(self)
        unsent, self.written_by_next = self.written_by_next, []
        for done in unsent:
            done(error)
        self.wake()


class _Coordinator:
    """The writes to one coordinator."""

    __slots__ = ("dirty", "is_due", "writing")

    def __init__(self) -> None:
        self.dirty: dict[LivePartition, None] = {}
        self.writing: list[LivePartition] = []
        """Share-partitions of the command in flight."""
        self.is_due = False
        """True if the end of this turn writes."""


class LivePartitions:
    """All share-partitions of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._live: dict[ShareKey, LivePartition] = {}
        self._coordinators: dict[int, _Coordinator] = {}
        self._claims = 0
        self._refused: dict[ShareKey, tuple[LivePartition, int]] = {}
        """Claims that the coordinator refused, and the time until which none is made again."""
        self.full_until_ns: dict[int, int] = {}
        """Coordinator without room → time until which no records of its groups are delivered."""
        self.locks_expired = 0
        """Records whose lock ended before their member acknowledged them."""
        self.writes = 0
        """Commands that made changes durable."""

    def __len__(self) -> int:
        return len(self._live)

    def lives(self) -> list[LivePartition]:
        """Return all share-partitions here."""
        return list(self._live.values())

    def existing(self, key: ShareKey, stream: LogStream | None = None) -> LivePartition | None:
        """Return the share-partition if it is here. `stream`: the replica here, if known; it may
        have been replaced."""
        live = self._live.get(key)
        if live is None:
            return None
        if not live.is_current or stream not in (None, live.stream):
            live.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return None
        return live

    def get(self, key: ShareKey, stream: LogStream, settings: GroupSettings) -> LivePartition:
        """Return a share-partition whose partition is led here, with the group's present settings;
        it may be GONE at once."""
        live = self.existing(key, stream)
        if live is None:
            refused = self._refused.get(key)
            if refused is not None and refused[1] > self.server.clock.now_ns():
                return refused[0]
            self._refused.pop(key, None)
            self._claims += 1
            live = self._live[key] = LivePartition(self, key, stream, settings, self._claims)
            live.begin()
        elif live.settings != settings:
            live.settings = settings
            if live.share is not None:
                live.share.limits = settings.limits
        return live

    def refused(self, live: LivePartition) -> None:
        """Remember that the coordinator refused the claim, so that it is not repeated at once."""
        now_ns = self.server.clock.now_ns()
        if len(self._refused) >= REFUSED_MAX:
            self._refused = {k: one for k, one in self._refused.items() if one[1] > now_ns}
        if len(self._refused) < REFUSED_MAX:
            self._refused[live.key] = live, now_ns + CLAIM_AGAIN_NS

    def forget(self, live: LivePartition) -> None:
        """Remove a share-partition that is GONE or has no readers."""
        if self._live.get(live.key) is live:
            del self._live[live.key]
        coordinator = self._coordinators.get(live.coordinator)
        if coordinator is not None:
            coordinator.dirty.pop(live, None)

    def left(self, live: LivePartition, reader: tuple[str, str]) -> None:
        """Remove a session that no longer reads it."""
        live.readers.discard(reader)
        if not live.readers and live.phase is not Phase.GONE:
            self._end_if_idle(live)

    def _end_if_idle(self, live: LivePartition) -> None:
        """End it if it has no readers and everything is written, to free its memory."""
        share = live.share
        is_busy = bool(live.written or live.written_by_next)
        if live.readers or is_busy:
            return
        # A member may still acknowledge its locked records, even if it no longer reads.
        if share is not None and (share.has_changes or share.due_ns >= 0):
            return
        live.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def is_full(self, live: LivePartition) -> bool:
        """Return True if the coordinator had no room a moment ago."""
        return self.full_until_ns.get(live.coordinator, 0) > self.server.clock.now_ns()

    # --- writing -----------------------------------------------------------------------------
    def changed(self, live: LivePartition) -> None:
        """Note that it has changes to be written."""
        coordinator = self._coordinators.get(live.coordinator)
        if coordinator is None:
            coordinator = self._coordinators[live.coordinator] = _Coordinator()
        coordinator.dirty[live] = None
        self._write_later(coordinator)

    def _write_later(self, coordinator: _Coordinator) -> None:
        if not coordinator.is_due and not coordinator.writing and coordinator.dirty:
            coordinator.is_due = True
            self.server.defer(partial(self._write, coordinator))

    def _write(self, coordinator: _Coordinator) -> None:
        coordinator.is_due = False
        writes: list[ShareWrite] = []
        group = GroupId(-1)
        count = 0
        for live in list(coordinator.dirty):
            if len(writes) >= WRITES_MAX or count >= CHANGES_MAX:
                break
            del coordinator.dirty[live]
            share = live.share
            if share is None or not live.is_current:
                continue
            start_offset, changes = share.take_changes()
            live.is_checked = True
            live.number += 1
            count += len(changes)
            group = live.coordinator
            live.written, live.written_by_next = live.written_by_next, []
            coordinator.writing.append(live)
            writes.append(
                ShareWrite(
                    *live.key, live.state_epoch, live.term, live.claim, live.number, start_offset,
                    changes,
                )
            )  # fmt: skip
        if not writes:
            return
        self.writes += 1
        server = self.server
        server.host.command_group(
            group,
            encode_command(WriteShareState(writes)),
            deadline_ns=server.clock.now_ns() + server.config.read_timeout_ms * MS,
            done=partial(self._done, coordinator),
        )

    def _done(self, coordinator: _Coordinator, outcome: Outcome) -> None:
        writing, coordinator.writing = coordinator.writing, []
        for live, error in zip(writing, _errors(outcome, len(writing)), strict=True):
            if error is GROUP_IS_FULL:
                until_ns = self.server.clock.now_ns() + FULL_NS
                self.full_until_ns[live.coordinator] = until_ns
            if error is not ErrorCode.NONE:
                live.end(error)
            written, live.written = live.written, []
            for done in written:
                done(error)
            if live.phase is not Phase.GONE and not live.readers:
                self._end_if_idle(live)
        self._write_later(coordinator)

    def close(self) -> None:
        """Stop the server's share-partitions: no request is answered any more."""
        for live in self.lives():
            live.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _errors(outcome: Outcome, count: int) -> list[ErrorCode]:
    """Return the outcome of each write."""
    if outcome.kind is not OutcomeKind.APPLIED:
        full = outcome.kind is OutcomeKind.TOO_LARGE
        return [GROUP_IS_FULL if full else ErrorCode.COORDINATOR_NOT_AVAILABLE] * count
    answer: CommandAnswer = outcome.result
    if answer.error is not ErrorCode.NONE:
        return [answer.error] * count
    try:
        codes = decode_value(answer.data, WrittenShareStates).errors
    except msgspec.DecodeError:
        codes = []
    if len(codes) != count:
        return [ErrorCode.UNKNOWN_SERVER_ERROR] * count
    return [ERRORS_BY_CODE.get(code, ErrorCode.UNKNOWN_SERVER_ERROR) for code in codes]
