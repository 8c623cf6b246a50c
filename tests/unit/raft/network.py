"""Test harness: a few nodes, a pool of messages between them, and minimal hosts.

`Host` drives one node on a `MemoryStorage` that holds exactly what was made durable. In
asynchronous mode writes wait in a list until they are completed explicitly, and a crash loses
them. `Network` carries messages; a test delivers, drops, repeats or reorders them, or lets
everything `settle`.

Every event is followed by the invariants' `observe`.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from raft.config import Config
from raft.errors import StepPeerNotFound
from raft.invariants import ClusterInvariants
from raft.memory import MemoryStorage
from raft.messages import Message, MsgSnap, MsgStorageAppend, MsgStorageApply
from raft.node import RawNode
from raft.ready import Ready
from raft.types import (
    CONF_CHANGE_KINDS,
    ColdRead,
    ConfState,
    Entry,
    HardState,
    Index,
    NodeId,
    ReadState,
    Snapshot,
)

ELECTION_TICKS = 10
HEARTBEAT_TICKS = 1
FIRST_INDEX = 2
"""Groups begin after a snapshot at index 1, term 1."""


class Host:
    """One node with its storage and applier."""

    def __init__(self, config: Config, storage: MemoryStorage) -> None:
        self.config = config
        self.storage = storage
        self.node = RawNode(config)
        self.append_work: list[MsgStorageAppend] = []
        self.apply_work: list[MsgStorageApply] = []
        self.to_self: list[Message] = []
        """Answers of the storage, in order. They are never lost or reordered."""
        self.applied: list[Entry] = []
        self.conf_states: dict[Index, ConfState] = {}
        self.read_states: list[ReadState] = []
        self.readys: list[Ready] = []
        self.reads_held: list[ColdRead] | None = None
        """If a list, reads are appended to it for the test to answer."""

    def take_ready(self) -> list[Message]:
        """Take a Ready and return the messages to others."""
        ready = self.node.ready()
        self.readys.append(ready)
        self.read_states += ready.read_states
        outgoing: list[Message] = []
        for message in ready.messages:
            if isinstance(message, MsgStorageAppend):
                self.append_work.append(message)
            elif isinstance(message, MsgStorageApply):
                self.apply_work.append(message)
            else:
                outgoing.append(message)
        if not self.config.async_storage_writes:
            self._write(ready.hard_state, ready.entries, ready.snapshot)
            self._apply(ready.committed_entries)
            self.node.advance(ready)
        if self.reads_held is not None:
            self.reads_held += ready.cold_reads
            return outgoing
        for want in ready.cold_reads:
            self.read_cold(want)
        return outgoing

    def read_cold(self, want: ColdRead) -> None:
        """Answer a read of entries that are not in memory."""
        end = self.storage.last_index() + 1
        entries = self.storage.read_from_disk(want.first, end, want.bytes_max)
        self.node.entries_ready(want.peer, entries)

    def complete_append(self) -> None:
        """Complete the oldest write: it becomes durable."""
        work = self.append_work.pop(0)
        hard_state = HardState(work.term, work.vote, work.commit)
        self._write(hard_state if work.term else None, work.entries, work.snapshot)
        self.to_self += work.responses

    def complete_apply(self) -> None:
        """Complete the oldest application."""
        work = self.apply_work.pop(0)
        self._apply(work.entries)
        self.to_self += work.responses

    def _write(
        self, hard_state: HardState | None, entries: list[Entry], snapshot: Snapshot | None
    ) -> None:
        if hard_state is not None:
            self.storage.set_hard_state(hard_state)
        if snapshot is not None:
            self.storage.apply_snapshot(snapshot)
            self.conf_states = {snapshot.index: snapshot.conf_state}
        self.storage.append(list(entries))

    def _apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.kind in CONF_CHANGE_KINDS:
                self.conf_states[entry.index] = self.node.apply_conf_change(entry)
            self.applied.append(entry)

    def conf_state_at(self, index: Index) -> ConfState:
        """Return the membership after applying `index`."""
        known = [at for at in self.conf_states if at <= index]
        if known:
            return self.conf_states[max(known)]
        return self.storage.initial_state()[1]

    def compact(self, index: Index) -> None:
        """Drop the log up to `index`, which must be applied."""
        assert index <= self.node.applied
        self.storage.compact(index, conf_state=self.conf_state_at(index))


class Network:
    """The hosts of one group and the messages in flight."""

    def __init__(
        self,
        voters: int = 3,
        *,
        learners: int = 0,
        seed: int = 0,
        start: Snapshot | None = None,
        **settings: Any,  # fields of Config
    ) -> None:
        self.rng = Random(seed)
        self.settings: dict[str, Any] = {
            "election_ticks": ELECTION_TICKS,
            "heartbeat_ticks": HEARTBEAT_TICKS,
            **settings,
        }
        ids = range(1, voters + learners + 1)
        self.start = start or Snapshot(
            index=FIRST_INDEX - 1,
            term=1,
            conf_state=ConfState(voters=tuple(ids[:voters]), learners=tuple(ids[voters:])),
        )
        self.hosts: dict[NodeId, Host] = {}
        self.messages: list[Message] = []
        self.invariants = ClusterInvariants()
        self.cut: Callable[[Message], bool] = lambda _: False
        """Return True for a message that is lost."""
        self.reports_snapshots = True
        """True if hosts report the outcome of a snapshot to their leaders."""
        for node in ids:
            self.add(node, self.start)

    def add(self, node: NodeId, snapshot: Snapshot | None = None) -> Host:
        """Add a server; without a snapshot its log is empty."""
        storage = MemoryStorage(snapshot)
        host = self.hosts[node] = Host(self._config(node, storage), storage)
        self.invariants.observe(host.node)
        return host

    def _config(self, node: NodeId, storage: MemoryStorage) -> Config:
        return Config(
            id=node,
            storage=storage,
            rng=Random(self.rng.random()),
            applied=storage.first_index() - 1,
            **self.settings,
        )

    def crash(self, node: NodeId) -> None:
        """Lose everything that is not durable, and restart."""
        storage = self.hosts[node].storage
        durable, _ = storage.initial_state()
        host = Host(self._config(node, storage), storage)
        self.hosts[node] = host
        self.invariants.restarted(host.node, durable)

    def node(self, node: NodeId) -> RawNode:
        """Return a node by id."""
        return self.hosts[node].node

    @property
    def leader(self) -> RawNode:
        """Return the one leader of the highest term."""
        leaders = [host.node for host in self.hosts.values() if host.node.is_leader]
        return max(leaders, key=lambda node: node.term)

    def isolate(self, *nodes: NodeId) -> None:
        """Cut nodes off from all others."""
        self.cut = lambda message: message.to in nodes or message.from_ in nodes

    def heal(self) -> None:
        """Remove all cuts."""
        self.cut = lambda _: False

    # --- Progress ------------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Deliver one message."""
        host = self.hosts.get(message.to)
        if host is None:
            return
        try:
            host.node.step(message)
        except StepPeerNotFound:
            pass
        self.invariants.observe(host.node)

    def deliver(self, position: int = 0) -> None:
        """Deliver the message at a position of the pool, or lose it if it is cut."""
        message = self.messages.pop(position)
        lost = self.cut(message)
        if not lost:
            self.step(message)
        if isinstance(message, MsgSnap) and self.reports_snapshots:
            sender = self.hosts[message.from_].node
            sender.report_snapshot(message.to, not lost)

    def collect(self, node: NodeId) -> None:
        """Take a node's Ready and put its messages into the pool."""
        host = self.hosts[node]
        self.messages += host.take_ready()
        self.invariants.observe(host.node)

    def tell_commit(self, node: NodeId) -> None:
        """Put the MsgCommits that a node sends separately (`commit_apart`) into the pool."""
        self.messages += self.node(node).tell_commit()

    def storage_step(self, node: NodeId) -> bool:
        """Complete a node's storage work and deliver the answers. Return True if there was any."""
        host = self.hosts[node]
        moved = False
        if host.append_work:
            host.complete_append()
            moved = True
        if host.apply_work:
            host.complete_apply()
            moved = True
        return self.deliver_to_self(node) or moved

    def deliver_to_self(self, node: NodeId) -> bool:
        """Deliver the storage's answers: to the node itself at once, to others through the pool."""
        host = self.hosts[node]
        answers, host.to_self = host.to_self, []
        for message in answers:
            if message.to == node:
                self.step(message)
            else:
                self.messages.append(message)
        return bool(answers)

    def settle(self, *nodes: NodeId) -> None:
        """Run some nodes, or all, until nothing more happens."""
        chosen = nodes or tuple(self.hosts)
        moved = True
        rounds = 0
        while moved:
            rounds += 1
            assert rounds < 10_000, "the network does not settle"
            moved = False
            for node in chosen:
                if self.hosts[node].node.has_ready():
                    self.collect(node)
                    moved = True
                if self.node(node).commit_news_due:
                    self.tell_commit(node)
                    moved = True
            deliverable = [m for m in self.messages if m.to in chosen]
            if deliverable:
                moved = True
                self.messages = [m for m in self.messages if m.to not in chosen]
                for message in deliverable:
                    self.messages.insert(0, message)
                    self.deliver(0)
            for node in chosen:
                moved |= self.storage_step(node)

    def elect(self, node: NodeId) -> RawNode:
        """Make a node leader and deliver all messages."""
        self.node(node).campaign()
        self.settle()
        assert self.node(node).is_leader, f"{node} was not elected"
        return self.node(node)

    def tick(self, node: NodeId, ticks: int = 1) -> None:
        """Advance time for one node, tick by tick."""
        for _ in range(ticks):
            self.node(node).tick()
            self.invariants.observe(self.node(node))

    def propose(self, *payloads: bytes, records: int = 1) -> list[Entry]:
        """Propose at the leader and return the entries."""
        entries = [Entry(data=payload, records=records) for payload in payloads]
        self.leader.propose(entries)
        return entries
