"""One replica of a group whose entries are commands: the catalog, or a group coordinator.

Commands carry their preconditions; `apply` decides. A proposer on this server is answered when its
command is applied *here*, so it can read its own write. Otherwise the answer is the known outcome:
never appended, or unknown.

Does not depend on what commands mean, or who proposed them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from ids import NO_SERVER, NO_TERM, GroupId, Index, Offset, ServerId, Term
from raft.errors import ProposalDropped
from raft.types import Entry, EntryKind
from rpc.hello import Hello
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.pending import Pending
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.snapshots import Items
from vdl.logstream.group.spoken_version import members_speak
from vdl.logstream.time.cluster_time import ClusterTime
from vdl.state import commands
from vdl.state.table import LargeState, Scan

COMMAND_BYTES_MAX = 8 << 20
"""Maximum size of a command, which travels to the peers in one frame."""


class OutcomeKind(Enum):
    """Kinds of outcome of a proposal."""

    APPLIED = "applied"
    NOT_APPENDED = "not appended"
    """It will certainly never take effect."""
    TOO_LARGE = "too large"
    """It will certainly never take effect, and no leader will take it, ever."""
    UNKNOWN = "unknown"
    """It may or may not take effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command. `result` is the machine's own, None unless applied."""

    kind: OutcomeKind
    result: Any = None


NOT_APPENDED = Outcome(OutcomeKind.NOT_APPENDED)
TOO_LARGE = Outcome(OutcomeKind.TOO_LARGE)
UNKNOWN = Outcome(OutcomeKind.UNKNOWN)


class Machine(Protocol):
    """A deterministic state machine (see `vdl.state`)."""

    def understands(self, command: Any) -> bool: ...
    def apply(self, command: Any, now_ms: int, index: Index) -> Any: ...
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]: ...
    def load(self, items: list[tuple[bytes, bytes]]) -> None: ...
    @property
    def large(self) -> LargeState | None: ...
    def items(self) -> list[tuple[bytes, bytes]]: ...
    def scan(self) -> Scan | None: ...
    @property
    def item_count(self) -> int: ...


class StateObserver(Protocol):
    """Observer of commands that were applied, and of states that came with a snapshot."""

    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None: ...
    def on_installed(self, group: StateGroup) -> None: ...
    def on_serving(self, group: StateGroup) -> None: ...
    def on_stopped_serving(self, group: StateGroup) -> None: ...


class StateGroup:
    """One replica of a command group. The host sets `group` right after construction."""

    __slots__ = (
        "_alive",
        "_boot",
        "_group",
        "_outbox",
        "_pending",
        "_seq",
        "_server_id",
        "_time",
        "group_id",
        "is_essential",
        "machine",
        "observers",
    )

    held: Sized = ()
    """None: proposers retry."""

    def __init__(
        self,
        *,
        server_id: ServerId,
        boot: int,
        machine: Machine,
        time: ClusterTime,
        outbox: Outbox,
        alive: Mapping[ServerId, Hello],
        is_essential: bool = False,
    ) -> None:
        """Create the replica.

        `time`: stamps commands, see `AgreedTime.now_ms`. `alive`: the other servers linked now.
        `is_essential`: the catalog, on which this server's replicas depend. Its commands are taken
        also when the disk is full, and applied only when they are durable here.
        """
        self.machine = machine
        self.group_id: GroupId
        """Group id of the replica, set when it first runs."""
        self.is_essential = is_essential
        self._group: Group | None = None
        self.observers: list[StateObserver] = []
        self._server_id = server_id
        self._boot = boot
        """Random number drawn at start: distinguishes commands of this process from those of
        earlier ones."""
        self._seq = 0
        self._time = time
        self._alive = alive
        self._outbox = outbox
        self._pending: dict[int, Pending[Outcome]] = {}
        """Commands of this server that have not been applied here yet, by sequence number."""

    @property
    def group(self) -> Group:
        """The replica. Invariant: read only once it runs."""
        assert self._group is not None, "the replica has not opened yet"
        return self._group

    @group.setter
    def group(self, group: Group) -> None:
        self._group = group
        self.group_id = group.group_id

    @property
    def is_running(self) -> bool:
        """True if the replica has opened and its state is whole."""
        return self._group is not None and self._group.is_whole

    @property
    def is_leader(self) -> bool:
        return self.group.node.is_leader

    @property
    def serving(self) -> bool:
        """True if this replica leads, and has applied the first entry of its own term."""
        group = self._group
        return group is not None and group.serving and group.is_whole

    @property
    def term(self) -> Term:
        return self.group.node.term

    @property
    def leader_server(self) -> ServerId:
        """Server id of the leader known to this replica, 0 for none."""
        return server_of(self.group.node.lead) if self.is_running else NO_SERVER

    def members_speak(self, version: int) -> bool:
        """Return True if all members can apply commands of this protocol version."""
        return members_speak(version, self.group, self._alive, self._server_id)

    # --- proposing ---------------------------------------------------------------------------
    def propose(self, command: Any, *, deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        """Propose on this leader.

        `done` is called once: when the command is applied here, or when no more can be known of its
        outcome.
        """
        if not self.serving:
            done(NOT_APPENDED)
            return
        seq, data = self.envelope(command)
        if len(data) > COMMAND_BYTES_MAX:
            done(TOO_LARGE)
        elif self._append(data):
            self._pending[seq] = Pending(deadline_ns, done, term=self.term)
        else:
            done(NOT_APPENDED)

    def envelope(self, command: Any) -> tuple[int, bytes]:
        """Return a command with this server's next sequence number: (number, entry payload)."""
        assert self.machine.understands(command), (self.group_id, command)
        self._seq += 1
        return self._seq, commands.encode(
            commands.Envelope(
                server_id=self._server_id,
                boot=self._boot,
                seq=self._seq,
                now_ms=self._time.now_ms(),
                command=command,
            )
        )

    def accepts(self, data: bytes) -> bool:
        """Return True if this machine can apply a command received from another server."""
        try:
            return self.machine.understands(commands.decode(data).command)
        except commands.DecodeError:
            return False

    def append(self, data: bytes) -> bool:
        """Append an envelope of any server to the leader's log; return False if it was refused."""
        if not self.serving or len(data) > COMMAND_BYTES_MAX:
            return False
        return self._append(data)

    def _append(self, data: bytes) -> bool:
        group = self.group
        store = group.store
        if not (self.is_essential or group.accepts_appends):
            return False
        if not store.accepts_appends:
            # The store does not count what was appended in this turn yet.
            needed = len(data) + group.node.uncommitted_bytes
            if needed >= store.entry_room(is_essential=True):
                return False
        try:
            group.propose(Entry(data=data))
        except ProposalDropped:
            return False
        self._outbox.mark_dirty(group)
        return True

    def expect(
        self, seq: int, deadline_ns: int, done: Callable[[Outcome], None], *, term: Term = NO_TERM
    ) -> None:
        """Call `done` when this server's command `seq` is applied here."""
        self._pending[seq] = Pending(deadline_ns, done, term=term)

    def forget(self, seq: int) -> None:
        """Drop the pending request of `seq`."""
        self._pending.pop(seq, None)

    def read_index(self, *, deadline_ns: int, done: Callable[[bool], None]) -> None:
        """Start a read index (§8).

        True: `machine` reflects everything committed before this call.
        """
        if not self.group.node.is_leader:
            done(False)
            return
        self.group.reads.ask(deadline_ns, done)
        self._outbox.mark_dirty(self.group)

    # --- the group's owner -------------------------------------------------------------------
    @property
    def entries_are_state(self) -> bool:
        return False  # the state made of the commands counts

    @property
    def is_remembered(self) -> bool:
        """True for the catalog: it creates and deletes replicas, which a restart must not undo."""
        return self.is_essential

    def load(self, items: Items) -> None:
        """Load the stored state, before the replica runs."""
        self.machine.load(items)

    def install(self, items: Items) -> None:
        """Load a snapshot's state.

        Commands of this server that it reflects are answered at their deadline. Observers are not
        notified of a state older than the one an earlier process has acted on.
        """
        self.machine.load(items)
        self.installed()

    def installed(self) -> None:
        """Notify observers that the installed state is complete."""
        if self.group.is_whole:
            for observer in self.observers:
                observer.on_installed(self)

    def items(self) -> Items:
        return self.machine.items()

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items:
        return self.items()

    @property
    def snapshots_are_short(self) -> bool:
        return False

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Do nothing: a snapshot contains the effects of these entries."""

    def scan(self) -> Scan | None:
        return self.machine.scan()

    @property
    def item_count(self) -> int:
        return self.machine.item_count

    def apply(self, entries: Sequence[Entry]) -> None:
        if not self.group.is_whole:
            # An earlier process acted on a later state: observers must not see an older one.
            self.replay(entries)
            return
        for entry in entries:
            if len(entry.data):
                self._apply_one(entry)

    def replay(self, entries: Sequence[Entry]) -> None:
        """As `apply`, while the state is not whole: no observers and no pending requests."""
        for entry in entries:
            if len(entry.data):
                envelope = commands.decode(entry.data)
                self.machine.apply(envelope.command, envelope.now_ms, entry.index)

    def _apply_one(self, entry: Entry) -> None:
        envelope = commands.decode(entry.data)
        result = self.machine.apply(envelope.command, envelope.now_ms, entry.index)
        for observer in self.observers:
            observer.on_applied(self, result, envelope.now_ms, entry.index)
        if envelope.server_id == self._server_id and envelope.boot == self._boot:
            pending = self._pending.pop(envelope.seq, None)
            if pending is not None:
                pending.done(Outcome(OutcomeKind.APPLIED, result))

    def committed(self, commit: Index) -> None:
        """Do nothing: commands are answered when applied."""

    def serving_started(self) -> None:
        for observer in self.observers:
            observer.on_serving(self)

    def leadership_lost(self) -> None:
        """Answer UNKNOWN: commands of this leader may still commit under the next one."""
        for seq in [seq for seq, pending in self._pending.items() if pending.term]:
            self._pending.pop(seq).done(UNKNOWN)
        for observer in self.observers:
            observer.on_stopped_serving(self)

    def leader_changed(self) -> None:
        """Do nothing: forwarded commands keep waiting, because the new leader may have them."""

    def room_available(self) -> None:
        """Do nothing: no proposal is held."""

    def expire(self, now_ns: int) -> None:
        for seq in [s for s, pending in self._pending.items() if pending.deadline_ns <= now_ns]:
            self._pending.pop(seq).done(UNKNOWN)

    @property
    def busy(self) -> bool:
        """True if any request with a deadline waits here."""
        return bool(self._pending)

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Return True for Raft's own entries and the catalog's commands.

        The latter are few, and deleting a topic is one of them.
        """
        return self.is_essential or entry.kind is not EntryKind.NORMAL

    def stopped(self) -> None:
        """Give way to the replica's successor, which begins with an empty state."""
        if self.group.was_leader:
            self.leadership_lost()
        self._group = None

    def close(self) -> None:
        """Answer all pending commands: the server stops."""
        pending, self._pending = self._pending, {}
        for one in pending.values():
            one.done(UNKNOWN)

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        return self.machine.take_dirty()

    @property
    def large(self) -> LargeState | None:
        return self.machine.large
