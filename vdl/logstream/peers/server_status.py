"""Status of servers that should not lead or cannot take entries, sent to all peers.

A server that serves no clients leads no groups that they need, for any reason: it starts and waits
for the catalog, or for its replicas to be replaced; its listeners are not open; it stops. It votes
and acknowledges as any other. A leader that no client reaches would be an endless outage, as its
peers hear it and do not campaign. So its replicas do not campaign, also when leadership is
transferred to them (`may_lead_group`). The catalog is the exception: no server serves before the
catalog has a leader, so a starting server may lead it, and transfers it once another server serves.
Another exception is a replica that alone has the last entries (`last_resort.py`). A replica that
loads a state does not campaign either.

A server that serves clients badly transfers its leaderships where it can, and keeps those that no
other server can take: all may be in its state. Either its disk is full: then it continues to read,
vote and follow as far as it can, and refuses new records. Or a flush hangs; or its loop has been
late for long.

Servers report this status themselves, so that leaderships do not move between servers that are all
full, and do not return to one that is about to stop. The same holds for single replicas with
damaged entries: one whose state waits for such an entry would not campaign, and each attempt to
transfer the leadership to it would cost its producers an election timeout.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ids import GroupId, ServerId
from rpc.condition import Condition, decode_condition, encode_condition
from rpc.hello import VERSION_OF_DAMAGE
from rpc.peer import FrameType
from vdl.logstream.state import CATALOG_GROUP, HostState


class ServerStatus:
    """Status of this server and its peers."""

    __slots__ = (
        "_alive",
        "_damaged",
        "_full",
        "_incomplete",
        "_is_late",
        "_loading",
        "_log",
        "_peers",
        "_sent",
        "_serves",
        "_stalled",
        "_stopping",
        "_store",
        "_transport",
        "_unable",
        "_unsent",
        "last_resorts",
    )

    def __init__(self, state: HostState) -> None:
        self._alive = state.alive
        self._full = state.full
        self._store = state.store
        self._transport = state.transport
        self._log = state.log
        self._serves = False
        self._stopping = False
        self._is_late = False
        self._stalled = False
        self._incomplete: tuple[GroupId, ...] = ()
        self._damaged: tuple[GroupId, ...] = ()
        self._loading: set[GroupId] = set()
        """Groups whose replicas here load a state: they cannot serve clients."""
        self._sent = Condition(unavailable=True)
        """Status last sent to the peers; a server begins without clients."""
        self._unsent: set[ServerId] = set()
        """Peers to which it could not be sent: it is tried again."""
        self._unable: set[ServerId] = set()
        """Peers that reported that they should not lead."""
        self._peers: dict[ServerId, tuple[frozenset[GroupId], frozenset[GroupId]]] = {}
        """By peer: groups of its replicas that cannot lead, and that should not."""
        self.last_resorts: set[GroupId] = set()
        """Groups that a replica here may lead although this server serves no clients."""

    @property
    def is_full(self) -> bool:
        """True if this server takes no new entries."""
        return not self._store.accepts_appends

    @property
    def is_stalled(self) -> bool:
        """True if a write to a segment hangs."""
        return self._stalled

    @property
    def is_late(self) -> bool:
        """True if this server should not lead for no other reason than that it is late."""
        return self.reason_not_to_lead == "late_for_long"

    @property
    def should_not_lead(self) -> bool:
        """True if this server's leaderships are better elsewhere, for as long as this lasts."""
        return not self._serves or self._is_late or self._stalled or self.is_full

    @property
    def reason_not_to_lead(self) -> str:
        """Reason of `should_not_lead`, empty if there is none."""
        if self._stopping:
            return "stopping"
        if self.is_full:
            return "disk_full"
        if self._stalled:
            return "flush_stalled"
        if not self._serves:
            return "not_serving"
        return "late_for_long" if self._is_late else ""

    def may_seek_group(self, group_id: GroupId) -> bool:
        """Return True if this server should campaign for a group as its preferred leader.

        Not for the catalog while a peer serves clients and this one does not: a server that fails
        whenever it opens its listeners, and is restarted repeatedly, would take it from its peers
        each time.
        """
        if not self.may_lead_group(group_id) or self._is_late or self._stalled or self.is_full:
            return False
        return self._serves or self._unable.issuperset(self._alive)

    def campaigners(self, own: ServerId) -> dict[ServerId, bool]:
        """Return `own` and the linked servers, True for those that should campaign first.

        As far as they have reported.
        """
        able = {server: server not in self._unable for server in self._alive}
        return {own: not self.should_not_lead, **able}

    def may_lead_group(self, group_id: GroupId) -> bool:
        """Return True if a replica here may lead its group at all."""
        is_allowed = self._serves or group_id == CATALOG_GROUP or group_id in self.last_resorts
        return is_allowed and not self._stopping and group_id not in self._loading

    @property
    def serves(self) -> bool:
        """True if clients are served."""
        return self._serves

    def serving(self) -> None:
        """Note that clients are served from now on."""
        self._serves = True
        self.look()

    def note_late(self, is_late: bool) -> None:
        """Note if this server's loop has been late for long."""
        if is_late is not self._is_late:
            self._is_late = is_late
            if is_late:
                self._log.warning(
                    "late_for_long", meaning="leaderships move to servers that answer in time"
                )
            else:
                self._log.info("in_time_again")

    def note_stalled(self, stalled: bool) -> None:
        """Note if a flush hangs."""
        if stalled is not self._stalled:
            self._stalled = stalled
            if stalled:
                self._log.warning("flush_stalled", unflushed=self._store.unflushed_bytes)
            else:
                self._log.info("flush_goes_on")

    def note_incomplete(self, group_id: GroupId) -> None:
        """Note a replica here whose state waits for a damaged entry, or to be loaded.

        Its group gets no leadership transfers in the second before all replicas are checked again.
        """
        if group_id not in self._incomplete:
            self._incomplete = (*self._incomplete, group_id)

    def note_loading(self, group_id: GroupId, *, is_loading: bool) -> None:
        """Note if a replica here loads a state: it may not lead until that is loaded.

        Peers receive that before they transfer the leadership to it.
        """
        if is_loading:
            self._loading.add(group_id)
            self.note_incomplete(group_id)
            self.look()
        else:
            self._loading.discard(group_id)

    def note_damage(self, incomplete: Iterable[GroupId], damaged: Iterable[GroupId]) -> None:
        """Set the groups whose replicas here cannot lead, and others that have damaged entries.

        Replaces the earlier ones.
        """
        self._incomplete, self._damaged = tuple(incomplete), tuple(damaged)

    def can_lead(self, server_id: ServerId, group_id: GroupId) -> bool:
        """Return True if a peer and its replica of this group could lead it.

        The peer is there, has space and will stay.
        """
        if server_id not in self._alive or server_id in self._unable:
            return False
        return server_id not in self._peers or group_id not in self._peers[server_id][0]

    def has_damage(self, server_id: ServerId, group_id: GroupId) -> bool:
        """Return True if a peer reported damaged entries in its replica of this group."""
        return server_id in self._peers and any(
            group_id in groups for groups in self._peers[server_id]
        )

    def look(self) -> None:
        """Send the status to all peers if it changed."""
        now = Condition(
            disk_full=self.is_full,
            unavailable=not self._serves or self._stopping or self._is_late,
            stalled=self._stalled,
            incomplete=self._incomplete,
            damaged=self._damaged,
        )
        if now != self._sent:
            if now.disk_full and not self._sent.disk_full:
                self._log.error(
                    "disk_full", meaning="new records are refused until the disk has room"
                )
            elif self._sent.disk_full and not now.disk_full:
                self._log.info("disk_has_room")
            self._sent = now
            self._unsent = set(self._alive)
        for server_id in sorted(self._unsent):
            self._send(server_id)

    def stopping(self) -> None:
        """Note that this server stops: it takes no leaderships any more, not even the catalog's."""
        self._stopping = True
        self.look()

    def link_up(self, server_id: ServerId) -> None:
        """Start a session: the peer does not know the status yet."""
        if self._sent != Condition():
            self._send(server_id)

    def link_down(self, server_id: ServerId) -> None:
        """Forget the status of a server whose link is lost."""
        self._unable.discard(server_id)
        self._full.discard(server_id)
        self._unsent.discard(server_id)
        self._peers.pop(server_id, None)

    def received(self, server_id: ServerId, payload: memoryview) -> None:
        """Take a peer's status. Raise MalformedFrame if it is malformed."""
        condition = decode_condition(payload)
        if condition.may_lead:
            self._unable.discard(server_id)
        else:
            self._unable.add(server_id)
        if condition.disk_full:
            self._full.add(server_id)
        else:
            self._full.discard(server_id)
        if condition.incomplete or condition.damaged:
            self._peers[server_id] = frozenset(condition.incomplete), frozenset(condition.damaged)
        else:
            self._peers.pop(server_id, None)

    def _send(self, server_id: ServerId) -> None:
        sent = self._sent
        if self._alive[server_id].version < VERSION_OF_DAMAGE:
            sent = replace(sent, incomplete=(), damaged=())
        frame = encode_condition(sent)
        if self._transport.send(server_id, FrameType.CONDITION, frame):
            self._unsent.discard(server_id)
        else:
            self._unsent.add(server_id)
