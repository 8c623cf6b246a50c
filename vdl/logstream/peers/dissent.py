"""Reports by replicas that cannot follow their leader, so that they do not count for it.

A leader stays in office while a majority of servers acknowledges its list. That proves nothing if
the replica on such a server has lost its data, or has other committed entries than the leader:
those two logs had a majority each, so one of the replicas that made them has lost what it
acknowledged. Neither can be repaired here. The replica does not follow the leader for the rest of
the term, and reports that. A leader that no majority follows steps down: it would serve clients
from a log that lacks acknowledged records. One that has a majority without that replica goes on.

Does not depend on elections, or on acknowledgements to clients.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import GroupId, Index, NodeId, Offset, ServerId, Term
from raft.messages import MsgApp, MsgAppResp, MsgCommit, MsgHeartbeat, MsgSnap, PeerMessage
from rpc.dissent import Dissenting, Reason, decode_dissent, encode_dissent
from rpc.hello import VERSION_OF_BOOTS
from rpc.peer import FrameType
from segments.api import Log, StorageError
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.state import HostState

SAY_NS = 1_000 * MS
"""Minimum interval of reports to a leader, per group."""


class Dissent:
    """Reports of one server's replicas, and those of its peers'."""

    __slots__ = ("_said_ns", "_state", "lost_log", "refused")

    def __init__(self, state: HostState) -> None:
        self._state = state
        self.refused: dict[GroupId, tuple[NodeId, Term, Dissenting]] = {}
        """By group: the leader and term that the replica here cannot follow, and the reason."""
        self.lost_log: Callable[[GroupId], Log | None] = _none_is
        """Returns the log of a group's replica here, if that is lost. Set once, when the host is
        created."""
        self._said_ns: dict[GroupId, int] = {}
        """By group: time of the last report to a leader."""

    # --- this server's replicas -----------------------------------------------------------------
    def lost(self, group_id: GroupId, message: PeerMessage, server_id: ServerId) -> None:
        """Report a lost replica, if a leader sent a message to a group that does not run here."""
        log = self.lost_log(group_id)
        if log is None:
            return
        replica = replica_id_of(self._state.server_id, log.replica_number)
        if message.to == replica and isinstance(message, MsgApp | MsgHeartbeat | MsgSnap):
            self._say(server_id, Dissenting(group_id, replica, Reason.LOST))

    def diverged(self, group: Group, message: PeerMessage, first: Index) -> None:
        """Report that a leader has another entry at `first` than the one that is committed here."""
        log = group.log
        try:
            first_offset = log.offset_after(first - 1)
            end_offset = log.offset_after(log.commit_index)
        except StorageError:
            first_offset = end_offset = Offset(0)  # an Idx is damaged
        dissenting = Dissenting(
            group.group_id, group.replica_id, Reason.DIVERGED, first_offset, end_offset
        )
        self.refused[group.group_id] = message.from_, group.node.term, dissenting
        self._say(server_of(message.from_), dissenting)

    def refuses(self, group: Group, message: PeerMessage, server_id: ServerId) -> bool:
        """Return True if the message is from a leader that the replica cannot follow in this term.

        Reports that to the leader. A response to the message would acknowledge the leader.
        """
        refused = self.refused.get(group.group_id)
        if refused is None:
            return False
        leader, term, dissenting = refused
        if group.node.term != term:
            del self.refused[group.group_id]
            return False
        if message.from_ != leader or message.term != term:
            return False
        if not isinstance(message, MsgApp | MsgHeartbeat | MsgCommit | MsgSnap):
            return False
        self._say(server_id, dissenting)
        return True

    def _say(self, server_id: ServerId, dissenting: Dissenting) -> None:
        state = self._state
        hello, now_ns = state.alive.get(server_id), state.clock.now_ns()
        if hello is None or hello.version < VERSION_OF_BOOTS:
            return
        if now_ns < self._said_ns.get(dissenting.group, -SAY_NS) + SAY_NS:
            return
        if state.transport.send(server_id, FrameType.DISSENT, encode_dissent(dissenting)):
            self._said_ns[dissenting.group] = now_ns

    # --- peers' replicas ------------------------------------------------------------------------
    def received(self, server_id: ServerId, payload: memoryview) -> None:
        """Take a DISSENT frame. Raise MalformedFrame if it is malformed."""
        found = decode_dissent(payload)
        group = self._state.groups.get(found.group)
        if group is None or server_of(found.replica) != server_id:
            return
        dissenting = self._state.dissenting.setdefault(found.group, set())
        if found.replica in dissenting:
            return
        dissenting.add(found.replica)
        if found.reason is Reason.DIVERGED:
            self._state.log.error(
                "log_diverged",
                partition=self._state.told_of(found.group),
                server=server_id,
                first_offset=found.first_offset,
                end_offset=found.end_offset,
                meaning=(
                    "records at these offsets were acknowledged and are committed on that "
                    "server; the local log lacks them or has other records there"
                ),
            )

    def followed(self, group_id: GroupId, message: PeerMessage) -> None:
        """Note that a replica acknowledged the leader here: it can follow it in this term."""
        dissenting = self._state.dissenting.get(group_id, set())
        if isinstance(message, MsgAppResp) and not message.reject:
            dissenting.discard(message.from_)
        if not dissenting:
            self._state.dissenting.pop(group_id, None)

    def link_down(self, server_id: ServerId) -> None:
        """Forget the server's reports.

        It repeats those that still hold; reports to it are repeated too.
        """
        for group_id, replicas in list(self._state.dissenting.items()):
            replicas -= {replica for replica in replicas if server_of(replica) == server_id}
            if not replicas:
                del self._state.dissenting[group_id]
        for group_id, (leader, _, _) in list(self.refused.items()):
            if server_of(leader) == server_id:
                self._said_ns.pop(group_id, None)


def _none_is(group_id: GroupId) -> Log | None:
    """Return None: no replica is known to be lost yet."""
    del group_id
    return None
