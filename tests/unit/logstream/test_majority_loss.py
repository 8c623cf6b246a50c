"""A majority of the disks is gone for good: the survivor goes on alone, and the set gets whole."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest

from ids import GroupId
from raft.membership import Membership
from rpc.hello import RejectReason
from segments.io.inline_workers import InlineWorkers
from segments.memory import MemoryImage, MemoryStore
from tests.unit.logstream.conftest import SERVERS, Cluster
from tests.unit.logstream.test_partition_transactions import sent
from vdl.errors import ErrorCode
from vdl.logstream.bootstrap import decode_record, encode_record
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.majority_loss.survivor import Fate, NotRecoverable, Plan, Survivor
from vdl.logstream.majority_loss.take_over import (
    PRODUCER_IDS_SKIPPED,
    TERMS_SKIPPED,
    changes_to_alone,
    entries_of,
    take_over,
)
from vdl.state.commands import (
    AddToTransaction,
    Command,
    CommitOffsets,
    CommitTransactionOffsets,
    CompleteTransactions,
    CreateTopics,
    EndTransaction,
    InitTransactions,
    NewTopic,
    OffsetCommit,
)

RANDOM = bytes(range(16))


class Survived:
    """The directory of one server, opened without a server."""

    def __init__(self, cluster: Cluster, server_id: int) -> None:
        self.cluster = cluster
        self.node = cluster.nodes[server_id]
        assert self.node.store is not None
        self.workers = InlineWorkers()
        self.store = MemoryStore(
            self.workers, rng=random.Random(5), image=copy.deepcopy(self.node.store.image)
        )
        if not self.store.cluster_record():
            self.store.adopt_cluster(encode_record(cluster.record), lambda: None)
            self.store.adopt_server(server_id)
            self.workers.pump()

    def plan(self) -> Plan:
        return Survivor(self.store, self.workers).plan()

    def take_over(self) -> None:
        take_over(self.store, self.workers, self.plan(), random=RANDOM, now_ms=1)

    def put_back(self) -> None:
        """Use the directory for the server's next start, with the record that it has now."""
        assert self.node.store is not None
        self.node.store.image = self.store.image
        self.cluster.record = decode_record(self.store.cluster_record())


def fates(plan: Plan) -> dict[str, Fate]:
    return {row.name: row.fate for row in plan.groups}


def row_of(plan: Plan, name: str) -> Any:
    return next(row for row in plan.groups if row.name == name)


def fill(cluster: Cluster, group_id: int, count: int) -> None:
    for _ in range(count):
        cluster.append(cluster.leader(group_id))
    cluster.run(100)


def lose_all_but_first(cluster: Cluster) -> dict[int, MemoryImage]:
    """Stop all servers, and lose the disks of two. Return the lost disks."""
    for server in SERVERS:
        if not cluster.nodes[server].clock.stopped:
            cluster.nodes[server].crash()
    lost = {}
    for server in (2, 3):
        node = cluster.nodes[server]
        assert node.store is not None
        lost[server] = copy.deepcopy(node.store.image)
        node.store = None
        node.directories += 1
    return lost


def recover(cluster: Cluster) -> None:
    survived = Survived(cluster, 1)
    survived.take_over()
    survived.put_back()


def end_of(cluster: Cluster, group_id: int, server: int) -> int:
    return cluster.nodes[server].host.groups[group_id].log.next_offset


def voters(cluster: Cluster, group_id: int) -> frozenset[int]:
    membership: Membership = cluster.leader(group_id).group.node.membership
    assert not membership.learners
    return membership.incoming


def test_plan_tells_what_is_held(cluster: Cluster) -> None:
    """For each group the last entry and the one known committed; nothing is changed."""
    group_id = cluster.create_topic()
    fill(cluster, group_id, 3)
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    before = copy.deepcopy(survived.store.image.logs)
    plan = survived.plan()
    assert survived.store.image.logs == before
    assert set(fates(plan).values()) == {Fate.KEPT}
    row = row_of(plan, "events-0")
    assert (row.end_offset, row.voters, row.is_voter, row.last_ms) == (3, [1, 2, 3], True, 1_000)
    assert row.commit_index <= row.last_index


def test_survivor_leads_alone_and_wiped_servers_are_taken_in(cluster: Cluster) -> None:
    """Its records are all there; the others get copies by the ordinary replacement."""
    group_id = cluster.create_topic()
    fill(cluster, group_id, 5)
    term = cluster.leader(group_id).group.node.term
    lose_all_but_first(cluster)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    leader = cluster.leader(group_id)
    assert leader.high_watermark == 5
    assert leader.group.node.term > term + TERMS_SKIPPED
    assert cluster.nodes[1].host.catalog.next_producer_id >= PRODUCER_IDS_SKIPPED
    fill(cluster, group_id, 2)
    assert cluster.leader(group_id).high_watermark == 7
    for server in (2, 3):
        cluster.nodes[server].start()
    cluster.run(20_000)
    own = replica_id_of(1, 1)
    assert voters(cluster, group_id) == {own, replica_id_of(2, 2), replica_id_of(3, 2)}
    assert [end_of(cluster, group_id, server) for server in SERVERS] == [7, 7, 7]
    cluster.nodes[1].crash()
    cluster.run(5_000)
    assert cluster.leader(group_id).high_watermark == 7


def test_entry_that_was_perhaps_not_committed_is_kept(cluster: Cluster) -> None:
    """The survivor has it, and it may have been acknowledged."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id)
    if leader.leader_server != 1:
        pytest.skip("another server leads")
    for server in (2, 3):
        cluster.nodes[server].crash()
    cluster.append(leader)
    cluster.run(20)
    lose_all_but_first(cluster)
    row = row_of(Survived(cluster, 1).plan(), "events-0")
    assert (row.end_offset, row.committed_offset) == (1, 0)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    assert cluster.leader(group_id).high_watermark == 1


def test_server_with_an_old_disk_is_refused(cluster: Cluster) -> None:
    """It has another cluster id, so that nothing of its history can be mixed in."""
    group_id = cluster.create_topic()
    fill(cluster, group_id, 5)
    old_record = cluster.record
    lost = lose_all_but_first(cluster)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    recovered, cluster.record = cluster.record, old_record
    old = cluster.nodes[2]
    old.store = MemoryStore(old.workers, rng=random.Random(9), image=lost[2])
    old.start()
    cluster.record = recovered
    cluster.run(5_000)
    assert {reason for server, reason, _, by_peer in old.rejected if server == 1 and by_peer} == {
        RejectReason.RECOVERED
    }
    assert cluster.nodes[1].host.alive_servers() == [1]
    assert cluster.leader(group_id).high_watermark == 5


def test_transaction_without_a_coordinator_is_aborted(cluster: Cluster) -> None:
    """Its coordinator here does not know it: it would stay open."""
    group_id = cluster.create_topic()
    sent(cluster, cluster.leader(group_id))
    cluster.run(100)
    lose_all_but_first(cluster)
    row = row_of(Survived(cluster, 1).plan(), "events-0")
    assert (row.open_transactions, row.aborted_transactions) == (1, 1)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    leader = cluster.leader(group_id)
    assert leader.last_stable_offset == leader.high_watermark == 2
    assert len(leader.state.aborted) == 1
    assert leader.state.producers.get(7).epoch == 1


def test_transaction_in_a_group_that_is_alone_is_aborted(cluster: Cluster) -> None:
    """It has one voter as before, and a transaction that its coordinator here does not know."""
    new = NewTopic("single", b"single".ljust(16), assignments=[[1]])
    (group_id,) = cluster.propose(CreateTopics([new])).topics[0].group_ids
    cluster.run(1_000)
    sent(cluster, cluster.leader(group_id))
    cluster.run(100)
    lose_all_but_first(cluster)
    row = row_of(Survived(cluster, 1).plan(), "single-0")
    assert (row.fate, row.aborted_transactions) == (Fate.ALONE, 1)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    leader = cluster.leader(group_id)
    assert leader.last_stable_offset == leader.high_watermark == 2


def coordinate(cluster: Cluster, number: int, command: Command) -> None:
    """Have a coordinator apply a command."""
    led = [
        group
        for node in cluster.nodes.values()
        for group in node.host.coordinators
        if group.serving and group.group_id == number
    ]
    outcomes: list[Outcome] = []
    led[0].propose(command, deadline_ns=cluster.deadline(), done=outcomes.append)
    cluster.run(200)
    (outcome,) = outcomes
    assert (outcome.kind, outcome.result.error) == (OutcomeKind.APPLIED, ErrorCode.NONE)


def begin(cluster: Cluster, *participants: int, version: int = 2) -> None:
    """Begin a transaction, with one offset in the second coordinator."""
    coordinate(cluster, 1, InitTransactions("payer", 60_000, 7))
    coordinate(
        cluster, 1,
        AddToTransaction("payer", 7, 0, [GroupId(one) for one in participants], version=version),
    )  # fmt: skip
    offset = OffsetCommit("events", b"events".ljust(16), 0, 1, -1, "", GroupId(participants[-1]))
    coordinate(cluster, 2, CommitTransactionOffsets("billing", -1, "", None, 7, 0, 1, [offset]))


def complete(cluster: Cluster, *, version: int = 2) -> None:
    """Commit the transaction, with no word to its participants."""
    coordinate(cluster, 1, EndTransaction("payer", 7, 0, commits=True, version=version))
    coordinate(cluster, 1, CompleteTransactions([("payer", 7, 1)]))


@pytest.mark.parametrize("version", [1, 2])
def test_transaction_that_a_coordinator_here_has_committed(cluster: Cluster, version: int) -> None:
    """Its commit was acknowledged, and the lost servers had its marker. In the first version of the
    protocol a partition does not tell which transaction is open."""
    group_id = cluster.create_topic()
    begin(cluster, 2, group_id, version=version)
    sent(cluster, cluster.leader(group_id))
    complete(cluster, version=version)
    lose_all_but_first(cluster)
    plan = Survived(cluster, 1).plan()
    row = row_of(plan, "events-0")
    assert (row.aborted_transactions, row.committed_transactions) == (2 - version, version - 1)
    row = row_of(plan, "coordinator-2")
    assert (row.aborted_transactions, row.committed_transactions) == (0, 1)
    recover(cluster)
    cluster.nodes[1].start()
    cluster.run(3_000)
    leader = cluster.leader(group_id)
    assert leader.last_stable_offset == leader.high_watermark == 2
    assert len(leader.state.aborted) == 2 - version
    producer = leader.state.producers.get(7)
    assert (producer.epoch, producer.number) == (1, version - 1)
    rows = Survived(cluster, 1).plan()
    assert row_of(rows, "coordinator-2").consumer_groups == 1
    assert row_of(rows, "coordinator-2").committed_transactions == 0


def test_partition_elsewhere_is_lost(cluster: Cluster) -> None:
    """Its only replica was on a lost server."""
    cluster.propose(CreateTopics([NewTopic("far", b"far".ljust(16), assignments=[[2]])]))
    lose_all_but_first(cluster)
    plan = Survived(cluster, 1).plan()
    assert row_of(plan, "far-0").fate is Fate.LOST
    assert "no replica" in row_of(plan, "far-0").why


def test_log_of_an_unknown_topic_is_removed(cluster: Cluster) -> None:
    """Its group id will be given to another topic, which must not begin with these records."""
    group_id = cluster.create_topic()
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    for number in (1, 2):
        survived.store.create_log(group_id + 1, number, on_created=lambda log: None)
    survived.workers.pump()
    assert row_of(survived.plan(), f"group-{group_id + 1}").fate is Fate.UNKNOWN
    survived.take_over()
    assert group_id + 1 not in {log.group_id for log in survived.store.logs.values()}


def test_ids_of_unknown_topics_are_never_given_out(cluster: Cluster) -> None:
    """Coordinators here know of them, and the catalog here lags: their offsets would count for the
    next topics, and their transactions would wait for them."""
    group_id = cluster.create_topic()
    begin(cluster, 2, group_id + 3)
    offset = OffsetCommit("gone", b"gone".ljust(16), 0, 7, -1, "", GroupId(group_id + 1))
    coordinate(cluster, 3, CommitOffsets("readers", -1, "", None, [offset]))
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    assert survived.plan().ids_left_out == 3
    survived.take_over()
    assert survived.plan().ids_left_out == 0
    survived.put_back()
    cluster.nodes[1].start()
    cluster.run(3_000)
    host = cluster.nodes[1].host
    assert all(host.catalog.has_deleted(GroupId(group_id + n)) for n in (1, 2, 3))
    assert {log.group_id for log in cluster.nodes[1].store.logs.values()} <= {*range(group_id + 1)}
    new = NewTopic("next", b"next".ljust(16), assignments=[[1]])
    assert cluster.propose(CreateTopics([new])).topics[0].group_ids == [group_id + 4]
    assert set(host.catalog.topics) == {"events", "next"}


def test_lost_catalog_is_refused(cluster: Cluster) -> None:
    """Without the catalog it is not known what exists."""
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    for state in survived.node.store.image.logs.values():  # type: ignore[union-attr]
        state.lost = state.group_id == 0
    with pytest.raises(NotRecoverable, match="catalog"):
        Survived(cluster, 1).plan()


def test_recovery_is_done_once(cluster: Cluster) -> None:
    """A second run finds nothing to do; one cut off before the last step does the rest."""
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    image = copy.deepcopy(survived.store.image.logs)
    survived.take_over()
    assert set(fates(survived.plan()).values()) == {Fate.ALONE}
    with pytest.raises(NotRecoverable, match="already"):
        survived.take_over()
    survived.store.image.logs = image
    survived.put_back()
    again = Survived(cluster, 1)
    assert set(fates(again.plan()).values()) == {Fate.KEPT}
    again.take_over()
    record = decode_record(again.store.cluster_record())
    assert record.former_ids[0] == "cluster"
    assert len(record.former_ids) == 2


def test_changes_that_are_not_committed_do_not_count(cluster: Cluster) -> None:
    """A block that was cut in two may have left them without their hard state."""
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    plan = survived.plan()
    for replica in plan.replicas.values():
        survived.store.append(replica.log, entries_of(replica, server_id=1, now_ms=1))
    survived.store.submit()
    survived.workers.pump()
    assert set(fates(survived.plan()).values()) == {Fate.KEPT}
    survived.take_over()
    assert set(fates(survived.plan()).values()) == {Fate.ALONE}


def test_move_to_the_survivor_that_is_not_committed_does_not_count(cluster: Cluster) -> None:
    """A server would begin with both voters, and wait for the other one."""
    group_id = cluster.create_topic()
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    replica = survived.plan().replicas[GroupId(group_id)]
    log = replica.log
    removals = entries_of(replica, server_id=1, now_ms=1)
    for entry in removals:
        entry.term = log.hard_state.term
    survived.store.append(log, removals)
    survived.store.submit()
    survived.workers.pump()
    row = row_of(survived.plan(), "events-0")
    assert (row.fate, row.voters) == (Fate.KEPT, [1])
    survived.take_over()
    survived.put_back()
    cluster.nodes[1].start()
    cluster.run(3_000)
    assert cluster.leader(group_id).group.node.is_leader


def test_full_disk_is_refused_before_the_change(cluster: Cluster) -> None:
    """Nothing is written."""
    lose_all_but_first(cluster)
    survived = Survived(cluster, 1)
    plan = survived.plan()
    record = survived.store.cluster_record()
    survived.store.has_room_for = lambda size: False  # type: ignore[method-assign]
    with pytest.raises(NotRecoverable, match="full"):
        take_over(survived.store, survived.workers, plan, random=RANDOM, now_ms=1)
    assert survived.store.cluster_record() == record


@pytest.mark.parametrize(
    "membership",
    [
        Membership(incoming=frozenset([1, 2, 3])),
        Membership(incoming=frozenset([2, 3]), learners=frozenset([1, 4])),
        Membership(incoming=frozenset([1, 2]), outgoing=frozenset([2, 3]), auto_leave=True),
        Membership(
            incoming=frozenset([2, 3]), outgoing=frozenset([1, 2]), learners_next=frozenset([1])
        ),
    ],
)
def test_every_membership_leads_to_the_survivor_alone(
    cluster: Cluster, membership: Membership
) -> None:
    """By changes that are valid one after the other, as Raft applies them."""
    replica = next(iter(Survived(cluster, 1).plan().replicas.values()))
    assert changes_to_alone(replace(replica, replica_id=1, membership=membership))
