"""Scripted clusters: commands in, the whole message trace out.

A `Cluster` is a handful of nodes, one pool of messages between them, and for each node a storage in
memory with its two threads' work lists. The application is an "appender": its state is the
concatenation of all payloads. Directives are methods; their output is collected as lines.

Log lines (INFO, DEBUG, …) are the reference implementation's own wording; `without_log_lines` drops
them from the expected output, and nothing here prints any.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import msgspec

from raft import describe
from raft.config import Config
from raft.errors import RaftError
from raft.memory import MemoryStorage
from raft.messages import Message, MsgSnap, MsgStorageAppend, MsgStorageApply
from raft.node import RawNode
from raft.progress import Progress
from raft.types import (
    LOCAL_APPEND_THREAD,
    LOCAL_APPLY_THREAD,
    NO_LIMIT,
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfState,
    Entry,
    EntryKind,
    HardState,
    NodeId,
    ReadOnlyOption,
    Snapshot,
)
from tests.conformance.script import Block

ELECTION_TICKS = 3
HEARTBEAT_TICKS = 1

_LOG_LINE = re.compile(r"\s*(DEBUG|INFO|WARN|ERROR|FATAL|PANIC) ")
_CHANGE_TYPES = {
    "v": ConfChangeType.ADD_NODE,
    "l": ConfChangeType.ADD_LEARNER_NODE,
    "r": ConfChangeType.REMOVE_NODE,
    "u": ConfChangeType.UPDATE_NODE,
}
_TRANSITIONS = {
    "auto": ConfChangeTransition.AUTO,
    "implicit": ConfChangeTransition.JOINT_IMPLICIT,
    "explicit": ConfChangeTransition.JOINT_EXPLICIT,
}
_LOCAL = (LOCAL_APPEND_THREAD, LOCAL_APPLY_THREAD)


def without_log_lines(lines: list[str]) -> list[str]:
    """Drop log lines; an empty result reads `ok`."""
    return [line for line in lines if not _LOG_LINE.match(line)] or ["ok"]


def progress_of_all(members: Mapping[NodeId, Progress]) -> str:
    """Format the progress of all members, one per line."""
    return "".join(f"{node}: {describe.progress(p)}\n" for node, p in sorted(members.items()))


def parse_changes(text: str) -> tuple[ConfChangeSingle, ...]:
    """Parse changes such as `v1 l2 r3 u4`."""
    return tuple(ConfChangeSingle(_CHANGE_TYPES[one[0]], int(one[1:])) for one in text.split())


@dataclass(slots=True)
class Server:
    """A node, its state on disk, and the pending work of its two threads."""

    node: RawNode
    storage: MemoryStorage
    is_async: bool
    history: list[Snapshot]
    """The application's state after each applied entry."""
    append_work: list[MsgStorageAppend] = field(default_factory=list)
    apply_work: list[MsgStorageApply] = field(default_factory=list)


class Cluster:
    """The nodes of one script."""

    def __init__(self) -> None:
        self._servers: dict[NodeId, Server] = {}
        self._messages: list[Message] = []
        self._output: list[str] = []
        self._indent = ""
        self._is_quiet = False

    def run(self, block: Block) -> list[str]:
        """Run one directive; return its output, `ok` if there is none."""
        self._output = []
        was_quiet = self._is_quiet
        if block.command != "log-level":
            self._is_quiet = block.one("log-level", "none" if was_quiet else "") == "none"
        try:
            _DIRECTIVES[block.command](self, block)
        except RaftError as error:
            self._output += str(error).splitlines()
        if block.command != "log-level":
            self._is_quiet = was_quiet
        return self._output or ["ok"]

    # --- Output --------------------------------------------------------------------------------

    def _print(self, text: str) -> None:
        if not self._is_quiet:
            self._output += [self._indent + line for line in text.splitlines()]

    @contextmanager
    def _indented(self, header: str) -> Iterator[None]:
        self._print(header)
        self._indent += "  "
        yield
        self._indent = self._indent[:-2]

    def _for_each(self, ids: list[NodeId], verb: str, act: Callable[[NodeId], None]) -> None:
        """Apply `act` to nodes: a single one without a header, several with one each."""
        if len(ids) == 1:
            act(ids[0])
            return
        for node in ids:
            with self._indented(f"> {node} {verb}"):
                act(node)

    # --- Directives ----------------------------------------------------------------------------

    def log_level(self, block: Block) -> None:
        """Set the log level: `none` silences everything, other levels only concern log lines."""
        self._is_quiet = block.positional == ["none"]

    def add_nodes(self, block: Block) -> None:
        """Create nodes, bootstrapped by a snapshot if an index is given."""
        snapshot = Snapshot(
            index=int(block.one("index", "0")),
            conf_state=ConfState(
                voters=tuple(map(int, block.named.get("voters", ()))),
                learners=tuple(map(int, block.named.get("learners", ()))),
            ),
            data=block.one("content").encode(),
        )
        if snapshot.index:
            snapshot.term = 1
        for _ in range(int(block.positional[0])):
            self._add_node(len(self._servers) + 1, snapshot, block)

    def _add_node(self, node: NodeId, snapshot: Snapshot, block: Block) -> None:
        storage = MemoryStorage(snapshot if snapshot.index else None)
        config = Config(
            id=node,
            election_ticks=ELECTION_TICKS,
            heartbeat_ticks=HEARTBEAT_TICKS,
            storage=storage,
            rng=Random(node),
            applied=snapshot.index,
            pre_vote=block.flag("prevote"),
            check_quorum=block.flag("checkquorum"),
            async_storage_writes=block.flag("async-storage-writes"),
            read_only_option=ReadOnlyOption(block.one("read-only", "safe")),
            step_down_on_removal=block.flag("step-down-on-removal"),
            disable_conf_change_validation=block.flag("disable-conf-change-validation"),
            max_inflight_msgs=int(block.one("inflight", str(NO_LIMIT))),
            max_committed_size_per_ready=int(block.one("max-committed-size-per-ready", "0")),
        )
        self._servers[node] = Server(
            RawNode(config), storage, config.async_storage_writes, history=[snapshot]
        )

    def campaign(self, block: Block) -> None:
        """Campaign as a candidate."""
        self._node(block).campaign()

    def propose(self, block: Block) -> None:
        """Propose a payload."""
        node, payload = block.positional
        self._servers[int(node)].node.propose([Entry(data=payload.encode())])

    def propose_conf_change(self, block: Block) -> None:
        """Propose the membership change in the input."""
        change = ConfChange(
            changes=parse_changes(" ".join(block.input)),
            transition=_TRANSITIONS[block.one("transition", "auto")],
        )
        self._node(block).propose_conf_change(change, v1=block.flag("v1"))

    def tick_heartbeat(self, block: Block) -> None:
        """Tick for one heartbeat interval."""
        self._tick(block, HEARTBEAT_TICKS)

    def tick_election(self, block: Block) -> None:
        """Tick for one election timeout."""
        self._tick(block, ELECTION_TICKS)

    def _tick(self, block: Block, ticks: int) -> None:
        for _ in range(ticks):
            self._node(block).tick()

    def set_randomized_election_timeout(self, block: Block) -> None:
        """Replace the random election timeout."""
        self._node(block).set_election_timeout(int(block.one("timeout")))

    def forget_leader(self, block: Block) -> None:
        """Forget the leader."""
        self._node(block).forget_leader()

    def transfer_leadership(self, block: Block) -> None:
        """Transfer leadership."""
        self._servers[int(block.one("from"))].node.transfer_leader(int(block.one("to")))

    def report_unreachable(self, block: Block) -> None:
        """Report to the first node that the second is unreachable."""
        reporter, peer = block.ids()
        self._servers[reporter].node.report_unreachable(peer)

    def send_snapshot(self, block: Block) -> None:
        """Send an unsolicited snapshot."""
        sender, receiver = block.ids()
        server = self._servers[sender]
        message = MsgSnap(receiver, sender, server.node.term, server.storage.snapshot())
        self._messages.append(message)
        self._print(describe.message(message))

    def compact(self, block: Block) -> None:
        """Compact a node's log up to an index, and show the rest."""
        node, index = block.ids()
        server = self._servers[node]
        server.storage.compact(index, conf_state=server.history[-1].conf_state)
        self._show_log(server)

    def raft_log(self, block: Block) -> None:
        """Show a node's log on disk."""
        self._show_log(self._servers[block.ids()[0]])

    def _show_log(self, server: Server) -> None:
        storage = server.storage
        first, last = storage.first_index(), storage.last_index()
        if last < first:
            self._print(f"log is empty: first index={first}, last index={last}")
        else:
            self._print(describe.entries(storage.entries(first, last + 1, NO_LIMIT)))

    def raft_state(self, _: Block) -> None:
        """Show every node's role."""
        for server in self._servers.values():
            node = server.node
            kind = "Voter" if node.id in node.voters() else "Non-Voter"
            state = describe.state_name(node.state)
            self._print(f"{node.id}: {state} ({kind}) Term:{node.term} Lead:{node.lead}")

    def status(self, block: Block) -> None:
        """Show a leader's view of its members."""
        self._print(progress_of_all(self._node(block).status().progress))

    def deliver_msgs(self, block: Block) -> None:
        """Deliver, or drop, the messages to some nodes."""
        recipients = [(node, False) for node in block.ids()]
        recipients += [(int(node), True) for node in block.named.get("drop", ())]
        kind = block.one("type")
        count = sum(self._deliver(node, drop=drop, kind=kind) for node, drop in recipients)
        if count == 0:
            self._print("no messages")

    def process_ready(self, block: Block) -> None:
        """Take and process a Ready of each node."""
        self._for_each(block.ids(), "handling Ready", self._process_ready)

    def process_append_thread(self, block: Block) -> None:
        """Process one work item of each node's append thread."""
        self._for_each(block.ids(), "processing append thread", self._process_append)

    def process_apply_thread(self, block: Block) -> None:
        """Process one work item of each node's apply thread."""
        self._for_each(block.ids(), "processing apply thread", self._process_apply)

    def stabilize(self, block: Block) -> None:
        """Repeat everything on some or all nodes until nothing changes."""
        servers = [self._servers[node] for node in block.ids() or self._servers]
        moved = True
        while moved:
            moved = False
            for server in servers:
                if server.node.has_ready():
                    moved = True
                    with self._indented(f"> {server.node.id} handling Ready"):
                        self._process_ready(server.node.id)
            for server in servers:
                if any(message.to == server.node.id for message in self._messages):
                    moved = True
                    with self._indented(f"> {server.node.id} receiving messages"):
                        self._deliver(server.node.id)
            for server in servers:
                moved |= self._work_off(server, server.append_work, "append", self._process_append)
            for server in servers:
                moved |= self._work_off(server, server.apply_work, "apply", self._process_apply)

    def _work_off(
        self,
        server: Server,
        work: list[MsgStorageAppend] | list[MsgStorageApply],
        name: str,
        process: Callable[[NodeId], None],
    ) -> bool:
        if not work:
            return False
        with self._indented(f"> {server.node.id} processing {name} thread"):
            while work:
                process(server.node.id)
        return True

    # --- Processing ----------------------------------------------------------------------------

    def _node(self, block: Block) -> RawNode:
        return self._servers[int(block.positional[0])].node

    def _process_ready(self, node: NodeId) -> None:
        server = self._servers[node]
        ready = server.node.ready()
        self._print(describe.ready(ready))
        if not server.is_async:
            _write(server, ready.hard_state, ready.entries, ready.snapshot)
            _apply(server, ready.committed_entries)
        for message in ready.messages:
            if isinstance(message, MsgStorageAppend):
                server.append_work.append(message)
            elif isinstance(message, MsgStorageApply):
                server.apply_work.append(message)
            else:
                self._messages.append(message)
        if not server.is_async:
            server.node.advance(ready)

    def _deliver(self, node: NodeId, *, drop: bool = False, kind: str = "") -> int:
        """Deliver or drop messages under way to a node. Local messages are never dropped."""
        chosen = [
            message
            for message in self._messages
            if message.to == node
            and kind in ("", type(message).__name__)
            and not (drop and (message.from_ in _LOCAL or message.from_ == node))
        ]
        taken = {id(message) for message in chosen}
        self._messages = [message for message in self._messages if id(message) not in taken]
        for message in chosen:
            self._print(("dropped: " if drop else "") + describe.message(message))
            if not drop:
                try:
                    self._servers[node].node.step(message)
                except RaftError as error:
                    self._print(str(error))
        return len(chosen)

    def _process_append(self, node: NodeId) -> None:
        server = self._servers[node]
        if not server.append_work:
            self._print("no append work to perform")
            return
        work = server.append_work.pop(0)
        self._print("Processing:")
        self._print(describe.message(msgspec.structs.replace(work, responses=[])))
        hard_state = HardState(work.term, work.vote, work.commit)
        _write(
            server,
            hard_state if hard_state != HardState() else None,
            work.entries,
            work.snapshot,
        )
        self._respond(work.responses)

    def _process_apply(self, node: NodeId) -> None:
        server = self._servers[node]
        if not server.apply_work:
            self._print("no apply work to perform")
            return
        work = server.apply_work.pop(0)
        self._print("Processing:")
        self._print(describe.message(msgspec.structs.replace(work, responses=[])))
        _apply(server, work.entries)
        self._respond(work.responses)

    def _respond(self, responses: list[Message]) -> None:
        self._print("Responses:")
        for message in responses:
            self._print(describe.message(message))
        self._messages += responses


def _write(
    server: Server, hard_state: HardState | None, entries: list[Entry], snapshot: Snapshot | None
) -> None:
    if hard_state is not None:
        server.storage.set_hard_state(hard_state)
    if snapshot is not None:
        assert not entries, "a snapshot comes alone"
        server.storage.apply_snapshot(snapshot)
    server.storage.append(entries)


def _apply(server: Server, entries: list[Entry]) -> None:
    for entry in entries:
        last = server.history[-1]
        conf_state, update = last.conf_state, entry.data
        if entry.kind in (EntryKind.CONF_CHANGE, EntryKind.CONF_CHANGE_V2):
            conf_state, update = server.node.apply_conf_change(entry), b""
        state = Snapshot(entry.index, entry.term, conf_state, data=bytes(last.data) + bytes(update))
        server.history.append(state)
        server.storage.newest_snapshot = state


_DIRECTIVES: dict[str, Callable[[Cluster, Block], None]] = {
    "add-nodes": Cluster.add_nodes,
    "campaign": Cluster.campaign,
    "compact": Cluster.compact,
    "deliver-msgs": Cluster.deliver_msgs,
    "forget-leader": Cluster.forget_leader,
    "log-level": Cluster.log_level,
    "process-append-thread": Cluster.process_append_thread,
    "process-apply-thread": Cluster.process_apply_thread,
    "process-ready": Cluster.process_ready,
    "propose": Cluster.propose,
    "propose-conf-change": Cluster.propose_conf_change,
    "raft-log": Cluster.raft_log,
    "raft-state": Cluster.raft_state,
    "report-unreachable": Cluster.report_unreachable,
    "send-snapshot": Cluster.send_snapshot,
    "set-randomized-election-timeout": Cluster.set_randomized_election_timeout,
    "stabilize": Cluster.stabilize,
    "status": Cluster.status,
    "tick-election": Cluster.tick_election,
    "tick-heartbeat": Cluster.tick_heartbeat,
    "transfer-leadership": Cluster.transfer_leadership,
}
