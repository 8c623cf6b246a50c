"""Random clusters: loss, repetition, reordering, crashes, elections, membership changes.

Safety is checked after every event; at the end everything heals and the group must agree.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from raft.errors import ProposalDropped
from raft.messages import MsgStorageAppendResp
from raft.node import RawNode
from raft.types import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    Entry,
)
from tests.unit.raft.network import ELECTION_TICKS, Network

EVENTS = 3_000
SETTINGS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "asynchronous": {"async_storage_writes": True, "durable_campaign": True},
    "production": {
        "async_storage_writes": True,
        "durable_campaign": True,
        "pre_vote": True,
        "check_quorum": True,
        "batch_appends": True,
        "commit_apart": True,
        "max_size_per_msg": 200,
        "max_inflight_msgs": 4,
        "max_committed_size_per_ready": 300,
        "max_uncommitted_entries_size": 2_000,
    },
}


class RandomRun:
    """One seeded run."""

    def __init__(self, seed: int, settings: dict[str, Any]) -> None:
        self.rng = Random(seed)
        self.network = Network(
            5, seed=seed, disable_proposal_forwarding=True, step_down_on_removal=True, **settings
        )
        self.ids = tuple(self.network.hosts)
        self.proposed = 0
        self.events = [
            (100, self.deliver),
            (60, self.collect),
            (60, self.complete),
            (10, self.tick),
            (15, self.propose),
            (4, self.drop),
            (4, self.repeat),
            (0.5, self.crash),
            (0.3, self.isolate),
            (1, self.change_membership),
            (3, self.compact),
            (0.3, self.transfer),
            (1, self.window),
            (10, self.tell_commit),
        ]

    def run(self) -> None:
        weights = [weight for weight, _ in self.events]
        for _ in range(EVENTS):
            _, event = self.rng.choices(self.events, weights)[0]
            event()

    def any_id(self) -> int:
        return self.rng.choice(self.ids)

    def any_leader(self) -> RawNode:
        """Return a node that leads, possibly in an old term; any node if none does."""
        nodes = [self.network.node(node) for node in self.ids]
        return self.rng.choice([node for node in nodes if node.is_leader] or nodes)

    def deliver(self) -> None:
        if self.network.messages:
            self.network.deliver(self.rng.randrange(min(len(self.network.messages), 20)))

    def drop(self) -> None:
        messages = self.network.messages
        if messages:
            message = messages.pop(self.rng.randrange(len(messages)))
            self.network.node(message.from_).report_snapshot(message.to, False)

    def repeat(self) -> None:
        messages = self.network.messages
        if messages and len(messages) < 500:
            messages.append(self.rng.choice(messages))

    def collect(self) -> None:
        node = self.any_id()
        if self.network.node(node).has_ready():
            self.network.collect(node)

    def complete(self) -> None:
        host = self.network.hosts[self.any_id()]
        if host.append_work and self.rng.random() < 0.7:
            host.complete_append()
        elif host.apply_work:
            host.complete_apply()
        if self.rng.random() < 0.7:
            self.network.deliver_to_self(host.node.id)

    def tick(self) -> None:
        self.network.tick(self.any_id())

    def propose(self) -> None:
        node = self.any_leader()
        self.proposed += 1
        payload = b"%d" % self.proposed * self.rng.randrange(1, 20)
        try:
            node.propose([Entry(data=payload, records=self.rng.randrange(1, 4))])
        except ProposalDropped:
            pass
        self.network.invariants.observe(node)

    def tell_commit(self) -> None:
        self.network.tell_commit(self.any_id())

    def crash(self) -> None:
        self.network.crash(self.any_id())

    def isolate(self) -> None:
        if self.rng.random() < 0.4:
            self.network.isolate(self.any_id())
        else:
            self.network.heal()

    def change_membership(self) -> None:
        node = self.any_leader()
        changes = tuple(
            ConfChangeSingle(
                self.rng.choice(
                    (
                        ConfChangeType.ADD_NODE,
                        ConfChangeType.ADD_LEARNER_NODE,
                        ConfChangeType.REMOVE_NODE,
                    )
                ),
                other,
            )
            # Nodes 1 and 2 stay: a change that removes all voters has no meaning.
            for other in self.rng.sample(self.ids[2:], self.rng.randrange(1, 3))
        )
        transition = self.rng.choice(
            (ConfChangeTransition.AUTO, ConfChangeTransition.JOINT_IMPLICIT)
        )
        try:
            node.propose_conf_change(ConfChange(changes, transition))
        except ProposalDropped:
            pass
        self.network.invariants.observe(node)

    def compact(self) -> None:
        host = self.network.hosts[self.any_id()]
        upto = min(host.node.applied, host.storage.last_index()) - self.rng.randrange(5)
        if upto >= host.storage.first_index():
            host.compact(upto)

    def window(self) -> None:
        storage = self.network.hosts[self.any_id()].storage
        storage.window(self.rng.randrange(storage.first_index(), storage.last_index() + 2))

    def transfer(self) -> None:
        self.any_leader().transfer_leader(self.any_id())

    def heal(self) -> None:
        """Check liveness: once all faults are repaired, the group elects, commits and agrees."""
        network = self.network
        network.heal()
        network.settle()
        for _ in range(20 * ELECTION_TICKS):
            for node in self.isolate_removed():
                network.tick(node)
            network.settle()
        leader = network.leader
        assert leader.own_term_committed
        [entry] = network.propose(b"after the storm")
        network.settle()
        assert leader.commit >= entry.index
        nodes = [network.node(node) for node in sorted(leader.membership.members())]
        assert [node.applied for node in nodes] == [leader.commit] * len(nodes)
        network.invariants.check_logs(nodes)

    def isolate_removed(self) -> list[int]:
        """Cut off removed servers and return the members.

        A server that missed its removal would continue to campaign until its host deletes it
        (thesis §4.2.3).
        """
        nodes = [self.network.node(node) for node in self.ids]
        newest = max(nodes, key=lambda node: node.applied)
        members = newest.membership.members()
        self.network.isolate(*(set(self.ids) - members))
        return sorted(members)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", range(12))
def test_random_cluster_under_faults_stays_safe_and_then_agrees(seed: int, settings: str) -> None:
    """Figure 3's properties hold after every event; after healing all members agree (§5.4)."""
    run = RandomRun(seed, SETTINGS[settings])
    run.run()
    run.heal()


@pytest.mark.parametrize("seed", range(3))
def test_random_cluster_run_twice_does_the_same(seed: int) -> None:
    """The injected source is the only randomness: equal seeds give equal messages and logs."""

    def trace() -> list[object]:
        run = RandomRun(seed, SETTINGS["production"])
        run.run()
        return [
            [host.node.status().hard_state for host in run.network.hosts.values()],
            [repr(message) for message in run.network.messages],
            [
                repr(response)
                for host in run.network.hosts.values()
                for work in host.append_work
                for response in work.responses
                if isinstance(response, MsgStorageAppendResp)
            ],
        ]

    assert trace() == trace()
