"""Many Raft groups on one server, and the loop turn that serves all of them.

Requests, frames, disk completions and timers are stepped into their group and mark it dirty. Once
a turn `run_once` collects the output of all dirty groups, makes one journal append for all of them,
sends one frame per peer and lane, applies committed entries, and completes waiting requests.

Rules:

* Nothing here blocks, awaits or takes a lock; everything runs on the loop that owns the server.
* A response about a log leaves only when the journal token it depends on is durable.
* Messages of groups that are not in the catalog here yet are kept for a moment: a leader may
  have applied the catalog earlier than this server.

Does not depend on the Kafka protocol, sockets or files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from zlib import crc32

import segments.api as storage
from ids import GroupId, ServerId, Term
from raft.messages import (
    Message,
    MsgApp,
    MsgSnap,
    MsgStorageApply,
    MsgTimeoutNow,
)
from raft.types import StateType
from rpc.birth import decode_answer, encode_answer
from rpc.frames import EncodedFrame, decode_messages, encode_frames
from rpc.hello import VERSION_OF_LARGE_FRAMES, Hello, RejectReason
from rpc.lanes import in_lanes, let_pass
from rpc.peer import FrameType
from vdl.logstream.bootstrap import encode_record
from vdl.logstream.elections.timers import Timers
from vdl.logstream.front import Front
from vdl.logstream.group.durable_responses import DurableResponses, Responses
from vdl.logstream.group.group import Group
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.membership.added_servers import AddedServers, removed_text
from vdl.logstream.membership.known_servers import KnownServers, known_servers
from vdl.logstream.membership.leader_requests import LeaderRequests
from vdl.logstream.membership.move_limits import MoveLimits
from vdl.logstream.membership.open_replica import ReplicaOpener
from vdl.logstream.membership.replacement import Replacement
from vdl.logstream.membership.replicas import (
    CatalogObserver,
    Placement,
    Replicas,
    replica_id_set,
    replica_id_tuple,
)
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.changes import Changes
from vdl.logstream.peers.commit_propagation import CommitPropagation
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.dissent import Dissent
from vdl.logstream.peers.entry_repair import EntryRepair
from vdl.logstream.peers.follower_reads import FollowerReads
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.group_commands import GroupCommands
from vdl.logstream.peers.inbox import Inbox
from vdl.logstream.peers.journal_marks import JournalMarks
from vdl.logstream.peers.last_resort import LastResort
from vdl.logstream.peers.leader_proofs import LeaderProofs
from vdl.logstream.peers.liveness import Liveness
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.periodic import Periodic
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.state.catalog import GroupInfo
from vdl.state.partition import PartitionState

_OF_SOUNDNESS = (FrameType.JOURNAL, FrameType.REMEMBERED, FrameType.DISSENT)


class Host:
    """One server's log streams and state groups. Implements `rpc.streams.PeerHandler`."""

    def __init__(self, state: HostState) -> None:
        self.state = state
        self.server_id = state.server_id
        self._itself = (state.server_id,)
        self.cluster_id = state.record.cluster_id
        self.coordinator_count = state.record.coordinator_groups
        self.clock = state.clock
        self.store = state.store
        self.options = state.options
        self.stats = state.stats
        self.measures = state.measures
        self.catalog = state.catalog
        self.time = state.time
        self.loop_time = state.loop_time
        self._groups = state.groups
        self._alive = state.alive
        self._outbox = state.outbox
        self._renumbered = 0
        self.leader_lost_ns = 0
        """Time at which a group here last lost its leader together with the leader's server
        (monotonic ns); 0: never."""
        self._responses = DurableResponses(state.store, state.clock)
        contradictions = Contradictions(state)
        self.liveness = Liveness(state, contradictions)
        self._commits = CommitPropagation(state)
        self._proofs = LeaderProofs(state, self.liveness, contradictions)
        self.timers = Timers(state, self.liveness, self._proofs, self._commits)
        self.campaigns = self.timers.campaigns
        self._status = ServerStatus(state)
        self._changes = Changes(state)
        self._forwarding = Forwarding(state, self.liveness)
        self.commands = GroupCommands(state, self.liveness)
        self._follower_reads = FollowerReads(state, self.liveness, self._status)
        self._repair = EntryRepair(state, self._status)
        self._dissent = Dissent(state)
        last_resort = LastResort(state, self._status, self._proofs)
        self._inbox = Inbox(
            state,
            self._status,
            self._proofs,
            self._commits,
            contradictions,
            self._dissent,
            last_resort,
        )
        self._opener = ReplicaOpener(state, self.liveness, hosting=self)
        self._move_limits = MoveLimits(state, self._opener.throttle)
        self._replicas = Replicas(state, hosting=self)
        self._dissent.lost_log = self._replicas.lost_log
        self._marks = JournalMarks(state, lose=self._replicas.lose_all)
        self._transfers = Transfers(state, self._status, self.liveness)
        self._requests = LeaderRequests(state, self._transfers, self.liveness)
        self._replacement = Replacement(
            state, self._replicas, self.liveness, self._forwarding, self._transfers
        )
        self.added_servers = AddedServers(state, self.liveness, self._forwarding)
        self.in_sync = state.in_sync
        self.periodic = Periodic(
            state,
            self.timers,
            self._proofs,
            self._status,
            self._repair,
            self._transfers,
            self._replacement,
            self.added_servers,
            self._forwarding,
            self._requests.queries,
            self.commands,
            self._move_limits,
            self._marks,
            self._changes,
            last_resort,
        )
        self.overload = self.periodic.overload
        self.trimming = self.periodic.trimming
        self.compaction = self.periodic.compaction
        # Methods of the parts that the front end calls directly.
        self.leader_of = self.liveness.leader_of
        self.stream = state.streams.get
        """Returns this server's replica of a partition, None if it holds none."""
        self.state_group = state.state_groups.get
        """Returns this server's replica of the catalog or a coordinator, None if not running."""
        self.may_serve_reads = self._follower_reads.may_serve
        self.read_replica = self._follower_reads.replica_for
        self.disk_space = state.store.disk_space
        self.written_after = state.store.written_after
        self.propose_catalog = self._forwarding.propose
        self.command_group = self.commands.send
        self.elect_preferred = self._requests.elect_preferred
        self.describe_quorum = self._requests.describe_quorum
        self.agreed_ms = state.time.now_ms
        self.settled_ms = state.time.settled_ms
        self.confirm_links = self._proofs.confirm
        self.mark_dirty = state.outbox.mark_dirty
        state.outbox.run_turn = self.run_once
        state.catalog_group.observers.append(CatalogObserver(state.outbox))
        state.store.on_durable = self._durable
        state.store.collect_meta = self._collect_meta

    # --- start and stop -------------------------------------------------------------------
    def start(self, front: Front) -> None:
        """Open every replica of this server and start to take part in their groups.

        Replicas open once the data directory was compared with its peers' marks: it may be an older
        copy.
        """
        self.state.front = front
        self.state.gaps.unread_ns = self.state.transport.unread_ns
        self.loop_time.start(self.state.transport.unread_ns)
        for log in self.store.logs.values():
            # The replica may open later than this server confirms the leader lists of others.
            self.liveness.entered(log.group_id, log.hard_state.term)
        self.periodic.start()
        self._marks.compare_first(self._replicas.open_system, self.known.voters)

    @cached_property
    def known(self) -> KnownServers:
        """Servers that the directory knew when this process began. Read once, blocks."""
        return known_servers(self.store, self.state.record)

    def begin_serving(self) -> None:
        """Allow replicas here to lead their groups, not only the catalog.

        Clients are served from now on.
        """
        self._status.serving()
        self._judge_leading()

    def _judge_leading(self) -> None:
        """Allow or forbid leading, after this server began or ceased to serve clients."""
        for group in list(self._groups.values()):
            self._judge_group(group)

    def _judge_group(self, group: Group) -> None:
        group.catch_up(self.loop_time.tick())
        if not group.node.is_leader:
            # Uncounted ticks prove nothing about a leader that is alive.
            self._proofs.report_leader(group)
        group.node.allow_leading(allowed=self._status.may_lead_group(group.group_id))
        self._outbox.mark_dirty(group)
        self._campaign_if_preferred(group)

    @cached_property
    def _on_loading(self) -> Callable[[Group], None]:
        """`_loading_changed`. One for all groups: a bound method has 64 bytes."""
        return self._loading_changed

    @cached_property
    def _next_producer_id(self) -> Callable[[], int]:
        """Returns the least id that is not assigned yet. One for all log streams."""
        return lambda: self.catalog.next_producer_id

    @property
    def is_known(self) -> bool:
        """True if the catalog, as applied here, lists this server with its present data directory.

        A server that is not known waits for its replicas to be replaced.
        """
        return self._replicas.is_known and self.state.catalog_group.is_running

    @property
    def lost_groups(self) -> list[GroupId]:
        """Groups whose replica here lost durable data and takes no part until it is replaced."""
        return self._replacement.halted_groups

    def transfer_leaderships(self) -> int:
        """Transfer every leadership that another replica can take. Return how many remain to go."""
        if not self.periodic.is_stopping:
            self.periodic.stopping()
            self._judge_leading()
        return self._transfers.hand_over_all()

    def close(self) -> None:
        """Complete every waiting request. Nothing is sent or applied afterwards."""
        self._outbox.is_closed = True
        self._marks.note()
        self.loop_time.close()
        self._forwarding.close()
        self.commands.close()
        self._requests.queries.close()
        for stream in self.state.streams.values():
            stream.close()
        for state_group in self.state.state_groups.values():
            state_group.close()

    # --- what the front end uses ----------------------------------------------------------
    def in_sync_of(self, group_id: GroupId) -> tuple[ServerId, ...]:
        """Return the servers whose replicas of a group are in sync, as its leader last reported.

        Empty if no leader has reported any. Without a leader: those of them that are alive.
        """
        return self.in_sync_under(group_id, self.leader_of(group_id))

    def in_sync_under(self, group_id: GroupId, led: tuple[ServerId, Term]) -> tuple[ServerId, ...]:
        """As `in_sync_of`. `led`: the present result of `leader_of`."""
        own = self.in_sync.get(group_id)
        leader, term = led
        if own is not None and leader == self.server_id and own.term == term:
            return own.servers
        told = self.liveness.in_sync_of(group_id)
        if leader >= 0:
            return told
        return tuple(s for s in told if s == self.server_id or s in self._alive)

    @property
    def unled_ns(self) -> int:
        """Time at which a group was last left without a leader (monotonic ns); 0: never."""
        return self.state.unled_ns

    @property
    def coordinators(self) -> list[StateGroup]:
        """Coordinator replicas of this server, including those that are not running yet."""
        return [self.state.system_groups[GroupId(g)] for g in range(1, 1 + self.coordinator_count)]

    @property
    def is_flush_stalled(self) -> bool:
        """True if the disk writes the journal but a segment write hangs."""
        return self._status.is_stalled

    def alive_servers(self) -> list[ServerId]:
        """Return this server and those that are linked, ascending."""
        return sorted([self.server_id, *self._alive])

    def takes_large_batches(self) -> bool:
        """Return True if every server of the cluster is linked and takes large batches."""
        others = self.catalog.servers.keys() - {self.server_id}
        known = [self._alive.get(server) for server in others]
        return all(one is not None and one.version >= VERSION_OF_LARGE_FRAMES for one in known)

    @property
    def large_bytes(self) -> int:
        """Bytes of large batches here that are in no segment yet."""
        return self.state.large_room.bytes

    def silent_servers(self) -> set[ServerId]:
        """Return servers whose link was lost without a refused connection: they may be alive."""
        return self.state.silent

    def lost_leader(self, group_id: GroupId) -> tuple[int, ServerId]:
        """Return when the group lost its leader together with the leader's server, and that server.

        (monotonic ns, server id); (0, 0) if there was no recent loss.
        """
        group = self._groups.get(group_id)
        return (
            (0, ServerId(0))
            if group is None
            else group.campaigning.lately_lost_leader(self.clock.now_ns())
        )

    def coordinator_group(self, key: str) -> GroupId:
        """Return the coordinator group of a consumer group: always the same, on every server."""
        return GroupId(1 + crc32(key.encode()) % self.coordinator_count)

    # --- the turn -------------------------------------------------------------------------
    def run_once(self) -> None:
        """Run one turn: process everything that is dirty."""
        outbox = self._outbox
        if outbox.is_closed:
            return
        outbox.is_scheduled = True  # groups that become dirty from here on are part of this pass
        self.stats.turns += 1
        tick, front = self.loop_time.tick(), self.state.front
        touched: dict[GroupId, Group] = {}
        while outbox.dirty or outbox.catalog_changed:
            dirty, outbox.dirty = outbox.dirty, []
            for group in dirty:
                group.dirty = False
                if self._groups.get(group.group_id) is group:
                    if tick > group.last_tick:
                        group.catch_up(tick)
                    group.pump(outbox)
                    touched[group.group_id] = group
            if outbox.catalog_changed:
                self.catalog_applied()
            # The longest wait comes first: peers, clients, the disk, the state machines.
            if outbox.out or self.commands.out:
                self._send()
            front.send_answers()
            if ready := self._responses.submit(outbox):
                self._deliver(ready)
            if outbox.applies:
                self._apply()
        outbox.is_scheduled = False
        if outbox.out or self.commands.out:
            self._send()
        self.periodic.watch(touched)
        for group in touched.values():
            if self._groups.get(group.group_id) is group:  # otherwise it was deleted in this turn
                self._after_pump(group, tick)
        if self.campaigns.turn_ended():
            self.timers.admit()
        if outbox.to_wake:
            to_wake, outbox.to_wake = outbox.to_wake, {}
            for stream in to_wake.values():
                stream.wake()
        self.timers.arm()

    def _apply(self) -> None:
        applies, self._outbox.applies = self._outbox.applies, []
        for group, message in applies:
            if self._groups.get(group.group_id) is group:
                group.apply(message)
                self._commits.stepped(group)

    def _send(self) -> None:
        """Send one frame per peer and lane, or a few if there is much to send."""
        if self.commands.out:
            self.commands.flush()
        out, self._outbox.out = self._outbox.out, {}
        for server, messages in out.items():
            assert server != self.server_id, messages
            self.stats.messages_out += len(messages)
            transport = self.state.transport
            urgent, bulk = in_lanes(messages)
            for lane, is_urgent in ((urgent, True), (bulk, False)):
                frames: Sequence[EncodedFrame] = encode_frames(lane) if lane else ()
                if lane and not is_urgent:
                    behind = transport.behind(server)
                    if behind or frames[-1][0]:  # or several: the last begins later
                        piece_bytes = transport.piece_bytes(server)
                        lane, frames = let_pass(lane, frames, behind, piece_bytes)
                for start, end, buffers in frames:
                    self.stats.frames_out += 1
                    more, sent = end < len(lane), lane[start:end]
                    if not transport.send(
                        server, FrameType.RAFT, buffers, urgent=is_urgent, more=more, keyed=sent
                    ):
                        self._unreachable(sent)

    def _unreachable(self, messages: Sequence[tuple[GroupId, Message]]) -> None:
        """Have peers of unsent entries and snapshots probed again, and end unsent transfers."""
        for group_id, message in messages:
            group = self._groups.get(group_id)
            if group is not None and type(message) in (MsgApp, MsgSnap, MsgTimeoutNow):
                group.node.report_unreachable(message.to)
                if type(message) is MsgTimeoutNow:
                    self._outbox.mark_dirty(group)  # it may hold proposals

    def _after_pump(self, group: Group, tick: int) -> None:
        """Publish changes of leadership, and schedule the group's next due tick."""
        node = group.node
        raft = node.raft
        if group.group_id in self.campaigns.running:
            self.campaigns.noted(group, self.clock.now_ns())
        if raft.term != group.term_listed:
            group.term_listed = raft.term
            self.liveness.entered(group.group_id, raft.term)
            if not raft.lead:
                self.state.unled_ns = self.clock.now_ns()
        if raft.state is StateType.LEADER:
            if raft.commit_news_due:
                self._commits.due(group)
            if self.liveness.led.get(group.group_id) != raft.term:
                # Only this replica is known to be in sync yet.
                self.liveness.lead(group.group_id, raft.term, group.replica_id, self._itself)
                self.in_sync.lead(group, self.clock.now_ns())
                self._changes.leads(group.group_id)
                self.stats.elections += 1
        elif group.group_id in self.liveness.led:
            self.liveness.resign(group.group_id)
            self._changes.leads_no_more(group.group_id)
            self.in_sync.resign(group.group_id)
        due = node.ticks_until_due()
        if group.owes_tick and due > 1 and raft.state is StateType.LEADER:
            due = group.count_owed()
        self.timers.schedule(group, tick, due)

    # --- the path of an acknowledgement -----------------------------------------------------
    def _durable(self, token: int) -> None:
        """Deliver the responses that waited for the journal, which is durable up to `token`.

        A follower's acknowledgement goes to its leader (`_deliver`, `_send`). A leader's own
        goes into its node, where it counts like a follower's. When a majority has the entry,
        `run_once` pumps the group, which calls its owner (`LogStream.committed`), which completes
        its waiters. `Front.send_answers` sends the results.
        """
        if ready := self._responses.durable(token):
            self._deliver(ready)

    def _deliver(self, ready: Responses) -> None:
        """Deliver responses whose state is durable, unless the host is closed: a candidate whose
        own vote becomes durable only then must not become leader."""
        if self._outbox.is_closed:
            return
        for group, responses in ready:
            if self._groups.get(group.group_id) is not group:
                continue  # it was deleted in the meantime
            if group.node.raft.vote_pending:
                group.catch_up(self.loop_time.tick())  # the vote waited: count the disk's time
            for message in responses:
                if message.to == group.replica_id:
                    group.node.step(message)
                elif isinstance(message, MsgStorageApply):
                    self._apply()
                    group.apply_held(message)
                else:
                    self._outbox.send(group.group_id, message)
            self._commits.stepped(group)
            if self._outbox.out:
                self._outbox.schedule()
        if self._replicas.waits and self.remembers_catalog():
            self._outbox.note_catalog()

    # --- PeerHandler ----------------------------------------------------------------------
    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """Return why a link with this server is refused, None if it is admitted.

        Admitted: servers without a birth record, which may only request it, and servers of this
        cluster, also with a new directory. One that is no member may be one that was added since,
        or one that was emptied after its removal and was given the record by a server that had not
        applied that: it has no vote and no log, and waits to be added. Refused: a retired
        directory, a directory of another server, and a process in another directory than that of a
        linked server which the catalog lists.
        """
        if hello.cluster_id and self.catalog.is_removed(hello.server_id, hello.directory_id):
            return RejectReason.REMOVED, removed_text(hello.server_id)
        if not self._is_admitted(hello):
            return RejectReason.NOT_ADMITTED, ""
        return self._marks.refusal(hello)

    def _is_admitted(self, hello: Hello) -> bool:
        present = self._alive.get(hello.server_id)
        if (
            present is not None
            and present.directory_id != hello.directory_id
            and present.directory_id == self.catalog.directory_of(hello.server_id)
        ):
            return False
        return not hello.cluster_id or hello.directory_id not in self.catalog.retired

    def link_up(self, hello: Hello) -> None:
        """Start a session. A server without a birth record receives the record on request."""
        server = hello.server_id
        if not hello.cluster_id:
            self.state.newcomers[server] = hello
            self._marks.unborn(server)
            return
        self._alive[server] = hello
        self._marks.link_up(hello)
        self.state.silent.discard(server)
        if server in self.catalog.voters:
            self.time.linked(server)
        for group in self.in_sync.server_linked(server, hello.incarnation):
            self.liveness.in_sync_changed(group)
        for frame_type, buffers in self.liveness.link_up(server):
            self.state.transport.send(server, frame_type, buffers)
        tick = self.loop_time.tick()
        for group in list(self._groups.values()):
            if group.node.is_leader:
                group.catch_up(tick)
                self.timers.schedule(group, tick, group.node.ticks_until_due())
            else:
                self._campaign_if_preferred(group)
        self.timers.arm()
        self._status.link_up(server)
        self._replacement.request_number(server)
        self._forwarding.retry(self.clock.now_ns())

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        """End a session.

        A refused connection proves that the process is gone: its followers need not wait for the
        election timeout.
        """
        self.timers.wake_all()  # while the server's last list is still known
        self._alive.pop(server_id, None)
        self.state.newcomers.pop(server_id, None)
        self._marks.link_down(server_id)
        self._dissent.link_down(server_id)
        if refused:
            self.state.silent.discard(server_id)
        elif server_id in self.catalog.servers:
            self.state.silent.add(server_id)
        self.time.unlinked(server_id)
        self._status.link_down(server_id)
        self._replacement.link_down(server_id)
        self.liveness.link_down(server_id)
        self._requests.queries.link_down(server_id)
        self.commands.link_down(server_id)
        if refused:
            for group in self.in_sync.server_gone(server_id):
                self.liveness.in_sync_changed(group)
        groups = list(self._groups.values())
        lost = [g for g in groups if not g.node.is_leader and server_of(g.node.lead) == server_id]
        for group in groups:
            node = group.node
            if node.is_leader:
                for replica in group.members:
                    if server_of(replica) == server_id:
                        node.report_unreachable(replica)
                        self._outbox.mark_dirty(group)
            elif server_of(node.lead or node.vote) == server_id:
                if node.lead:
                    self.leader_lost_ns = self.clock.now_ns()
                    group.campaigning.lost_leader = (self.leader_lost_ns, server_id)
                if refused:
                    alive = self._status.campaigners(self.server_id)
                    tick = self.loop_time.tick()
                    group.catch_up(tick)
                    group.campaigning.take_turn(group.placement, alive, tick, leaderless=len(lost))
                    self._outbox.mark_dirty(group)

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """See `PeerHandler.frame`."""
        if server_id in self._marks.behind and frame_type is not FrameType.REMEMBERED:
            return
        if frame_type is FrameType.RAFT:
            tick = self.loop_time.tick()
            for group_id, message in decode_messages(payload):
                self._inbox.step(group_id, message, server_id, tick)
        elif frame_type is FrameType.HEARTBEAT or frame_type is FrameType.LEADERS:
            self._leader_frame(server_id, frame_type, payload)
        elif frame_type is FrameType.DENIALS:
            self._proofs.denied(server_id, payload)
        elif frame_type is FrameType.PROPOSE:
            self._forwarding.proposal_received(server_id, payload)
        elif frame_type is FrameType.PROPOSED:
            self._forwarding.answer_received(server_id, payload)
        elif frame_type is FrameType.CONDITION:
            self._status.received(server_id, payload)
            self._campaign_for_catalog()
        elif frame_type is FrameType.RANGE:
            self._repair.request_received(server_id, payload)
        elif frame_type is FrameType.ENTRIES:
            self._repair.answer_received(server_id, payload)
        elif frame_type is FrameType.QUERY:
            self._requests.queries.query_received(server_id, payload)
        elif frame_type is FrameType.REPLY:
            self._requests.queries.reply_received(server_id, payload)
        elif frame_type is FrameType.COMMANDS:
            self.commands.commands_received(server_id, payload)
        elif frame_type is FrameType.COMMANDS_DONE:
            self.commands.answers_received(server_id, payload)
        elif frame_type is FrameType.COMMAND:
            self.commands.command_received(server_id, payload)
        elif frame_type is FrameType.COMMAND_DONE:
            self.commands.answer_received(server_id, payload)
        elif frame_type is FrameType.COMPACTED:
            self.compaction.received(server_id, payload)
        elif frame_type in _OF_SOUNDNESS:
            self._soundness_frame(server_id, frame_type, payload)
        elif frame_type is FrameType.ASK:
            self._answer_newcomer(server_id)
        elif frame_type is FrameType.ANSWER:
            self._replacement.number_received(decode_answer(payload)[1])

    def _answer_newcomer(self, server_id: ServerId) -> None:
        """Answer a server that asks for the birth record, and for its number in the catalog."""
        number, record = self._replacement.number_for(server_id), self.state.record
        if not number and not self.catalog.is_member(server_id):
            # One of the first that was removed is a newcomer like any other.
            record = record.without(server_id)
        answer = encode_answer(encode_record(record), catalog_replica=number)
        self.state.transport.send(server_id, FrameType.ANSWER, answer)

    def _soundness_frame(
        self, server_id: ServerId, frame_type: FrameType, payload: memoryview
    ) -> None:
        """Handle frames about directories and replicas that lost what they had acknowledged."""
        if frame_type is FrameType.JOURNAL:
            self._marks.journal_received(server_id, payload)
        elif frame_type is FrameType.REMEMBERED:
            self._marks.remembered_received(server_id, payload)
        else:
            assert frame_type is FrameType.DISSENT, frame_type
            self._dissent.received(server_id, payload)

    def beat(self) -> None:
        """Send the heartbeats of the leader list, and check for servers that fell silent."""
        if self._outbox.is_closed:
            return
        self._look_at_links()
        for server in sorted(self._alive):
            self._proofs.answer_claims(server)
            for frame_type, buffers in self.liveness.beat(server):
                self.state.transport.send(server, frame_type, buffers)
            self._marks.beat(server)

    def _look_at_links(self) -> None:
        """Note servers silent for an election timeout, and notify leaders at once.

        A leader's own check runs once per election timeout and may just have passed; until the next
        one its clients would wait for entries that cannot be committed.
        """
        within_ns = self.options.election_ticks * TICK_NS
        links = self.state.transport.links()
        silent = {link.server_id for link in links if link.silent_ns >= within_ns}
        is_news = not silent <= self.state.unheard
        self.state.unheard = silent
        if not is_news:
            return
        for group in list(self._groups.values()):
            node = group.node
            if node.is_leader and node.peers_silent(
                [replica for replica in group.members if server_of(replica) in silent]
            ):
                self._outbox.mark_dirty(group)

    def _leader_frame(
        self, server_id: ServerId, frame_type: FrameType, payload: memoryview
    ) -> None:
        """Handle a heartbeat or a leader list. A listed group is a heartbeat of its leader."""
        tick = self.loop_time.tick()
        changed = self.liveness.received(server_id, frame_type, payload)
        if frame_type is FrameType.HEARTBEAT:
            self.time.received(server_id, *self.liveness.wall_received(server_id))
        for change in changed:
            if not change.replica:
                self.state.unled_ns = self.clock.now_ns()
            group = self._groups.get(change.group)
            if group is None:
                continue
            node = group.node
            if node.is_leader:
                if change.term > node.term:
                    group.catch_up(tick)
                    node.newer_term(change.term)
                    self._outbox.mark_dirty(group)
            elif change.replica:
                group.catch_up(tick)
                self._proofs.report_leader(group)
                self._outbox.mark_dirty(group)
            else:
                # That server does not lead the group any more.
                group.catch_up(tick)
                if change.term == node.term and server_of(node.lead) == server_id:
                    others = self._status.campaigners(self.server_id)
                    others.pop(server_id, None)
                    group.campaigning.leader_gave_up(group.placement, others, tick)
                    self._outbox.mark_dirty(group)
                else:
                    group.campaigning.leader_resigned()
                self.timers.schedule(group, tick, node.ticks_until_due())
                self.timers.arm()

    # --- Hosting: what `Replicas` calls ---------------------------------------------------
    def replica_lost(self, log: storage.Log) -> None:
        """See `Hosting`.

        A vote or acknowledgement of this replica could contradict an earlier one.
        """
        if self._replacement.replica_lost(log):
            self._inbox.forget(log.group_id)

    def start_state_group(self, log: storage.Log, placement: Placement) -> None:
        """See `Hosting`."""
        self._opener.open(log, placement, self.state.system_groups[log.group_id])

    def start_stream(self, log: storage.Log, info: GroupInfo, placement: Placement) -> None:
        """See `Hosting`."""
        stream = LogStream(
            topic=info.topic,
            partition=info.partition,
            state=PartitionState(),
            options=self.options,
            outbox=self._outbox,
            in_sync=self.in_sync,
            gaps=self.state.gaps,
            agreed_ms=self.agreed_ms,
            next_producer_id=self._next_producer_id,
            alive=self._alive,
            large_room=self.state.large_room,
            measures=self.state.measures,
        )
        self._opener.open(log, placement, stream)

    def is_wanted(self, log: storage.Log) -> bool:
        """See `Hosting`."""
        return not self._outbox.is_closed and self._replicas.holds(log)

    def remembers_catalog(self) -> bool:
        """See `Hosting`."""
        group = self._groups.get(CATALOG_GROUP)
        return group is None or group.is_remembered

    def opened(self, group: Group) -> None:
        """See `Hosting`.

        The state is used once it is whole, which is later if the log is damaged.
        """
        owner = group.owner
        if isinstance(owner, LogStream):
            owner.start()
            self.state.streams[group.group_id] = owner
            self.trimming.opened(owner)
        if group.is_whole:
            self._act_on_state(group)
        else:
            group.on_whole = partial(self.clock.call_soon, partial(self._became_whole, group))
            self._status.note_incomplete(group.group_id)
            self.state.log.warning(
                "state_incomplete",
                partition=self.state.told_of(group.group_id),
                applied=group.applied,
            )
        group.on_loading = self._on_loading
        self._run_group(group)

    def _loading_changed(self, group: Group) -> None:
        """Forbid leading while a received state is loaded: it counts as applied already."""
        if group.is_loading:
            self._status.note_loading(group.group_id, is_loading=True)
            group.node.allow_leading(allowed=False)
        else:
            self.clock.call_soon(partial(self._loaded, group))

    def _loaded(self, group: Group) -> None:
        if not self._outbox.is_closed and self.state.is_here(group) and not group.is_loading:
            self._status.note_loading(group.group_id, is_loading=False)
            self._judge_group(group)

    def _became_whole(self, group: Group) -> None:
        if not self._outbox.is_closed and self.state.is_here(group):
            self.state.log.info(
                "state_complete",
                partition=self.state.told_of(group.group_id),
                applied=group.applied,
            )
            self._act_on_state(group)

    def _act_on_state(self, group: Group) -> None:
        """Start to use the replica's state.

        It reflects all that an earlier process may have acted on.
        """
        if isinstance(group.owner, StateGroup):
            self.state.state_groups[group.group_id] = group.owner
            if group.group_id == CATALOG_GROUP:
                self.catalog_applied()

    def _run_group(self, group: Group) -> None:
        """Let a group take part, beginning with the early messages of its peers."""
        self._groups[group.group_id] = group
        self.liveness.entered(group.group_id, group.term_listed)
        group.node.allow_leading(allowed=self._status.may_lead_group(group.group_id))
        self._place(group)
        self._proofs.report_leader(group)
        self._inbox.begin(group, self.loop_time.tick())
        self._campaign_if_preferred(group)
        self._outbox.mark_dirty(group)

    def _campaign_if_preferred(self, group: Group) -> None:
        """Campaign if this is the preferred leader, can reach a majority and sees no leader."""
        is_first = group.preferred and self._status.may_seek_group(group.group_id)
        if is_first and group.campaigning.is_leaderless({self.server_id, *self._alive}):
            group.node.campaign_soon(1)
            self.timers.ask_to_campaign(group)

    def _campaign_for_catalog(self) -> None:
        """Campaign for the catalog after a peer reported whether it serves.

        Possibly no server serves clients, and this one has to lead the catalog so that they can.
        """
        group = self._groups.get(CATALOG_GROUP)
        if group is not None:
            self._campaign_if_preferred(group)

    def stop_group(self, group_id: GroupId, *, deleted: bool) -> None:
        """See `Hosting`."""
        group = self._groups.pop(group_id, None)
        stream = self.state.streams.pop(group_id, None)
        self._inbox.forget(group_id)
        self._replacement.has_successor(group_id)
        self.in_sync.resign(group_id)
        if deleted:
            self.liveness.forget(group_id)
        else:
            self.liveness.resign(group_id)  # the present leader still has to be known
        self.state.state_groups.pop(group_id, None)
        if stream is not None and deleted:
            name = f"{stream.topic}-{stream.partition}"
            self.state.log.note("partition_deleted", partition=name)
        if stream is not None:
            stream.close()
        if group is not None:
            self._status.note_loading(group_id, is_loading=False)
            self.timers.forget(group)
            group.reads.fail()
            group.withdraw()
            group.owner.stopped()
            group.serving = False

    def catalog_applied(self) -> None:
        """React to a change of the applied catalog."""
        self._outbox.catalog_changed = False
        self.time.remember(self.catalog.noted_ms)
        self.time.follow(self.catalog.voters, self.server_id, self._alive)
        self._replicas.reconcile()
        if self._renumbered != self.catalog.renumbered:
            self._renumbered = self.catalog.renumbered
            for group in self._groups.values():
                self._place(group)
        self._move_limits.look()
        self._inbox.catalog_changed()
        self.liveness.catalog_changed()
        self.state.front.catalog_changed()

    def _place(self, group: Group) -> None:
        """Pass the placement in the catalog to a group."""
        replicas = self.catalog.replicas(group.group_id)
        if not replicas:
            return  # its topic is deleted
        move = self.catalog.move(group.group_id)
        group.placement = replica_id_tuple(tuple(replicas))
        group.leaving = replica_id_tuple(tuple(move.leaving))
        group.adding = replica_id_set(
            tuple(r for r in replicas if move.origin and r.server_id not in move.origin)
        )
        group.observers = replica_id_set(tuple(self.catalog.observers(group.group_id)))
        group.wanted_revision = move.revision
        group.to_finish = move.is_open
        in_sync = self.in_sync.get(group.group_id)
        if in_sync is not None:
            in_sync.placed()
            self.liveness.in_sync_changed(group)

    def _collect_meta(self, logs: Sequence[storage.Log]) -> list[storage.MetaBatch]:
        """See `Store.collect_meta`."""
        batches: list[storage.MetaBatch] = []
        for log in logs:
            group = self._groups.get(log.group_id)
            if group is not None and group.log is log and (batch := group.collect_meta()):
                batches.append(batch)
        return batches

    # --- status -----------------------------------------------------------------------------
    @property
    def overloaded(self) -> bool:
        """True if appends should wait: memory holds more than the disk keeps up with."""
        return self.store.unflushed_bytes * 2 > self.state.cache_bytes_max

    @property
    def awaited_disk_ns(self) -> int:
        """Time at which responses last began to wait for the disk; 0: never."""
        return self._responses.awaited_ns

    @property
    def aborted_listed(self) -> int:
        """Largest number of aborted transactions that a partition here lists."""
        # Hardly any partition lists one, and to count them takes longer than to see that.
        lists = [stream.state.aborted for stream in self.state.streams.values()]
        return max([len(one) for one in lists if one], default=0)

    @property
    def partition_count(self) -> int:
        """Number of partition replicas that run here."""
        return len(self.state.streams)

    @property
    def groups(self) -> dict[GroupId, Group]:
        """Running replicas by group id; read only."""
        return self._groups
