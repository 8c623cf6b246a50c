"""Elections, failover, forwarding, and creation and removal of replicas, over three real hosts."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from raft.messages import MsgHeartbeat, MsgSnap
from rpc.commands import SentCommand, encode_command
from rpc.peer import FrameType
from segments.memory import MemoryStore
from tests.unit.logstream.conftest import SERVERS, Cluster
from tests.unit.logstream.damage import Damage
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group.group import Group
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.replica_ids import server_of
from vdl.logstream.group.state_group import COMMAND_BYTES_MAX, Outcome, OutcomeKind
from vdl.logstream.membership.transfers import Transfers
from vdl.logstream.options import TICK_NS
from vdl.state.commands import (
    AllocateProducerIds,
    CompleteJoin,
    CreateTopics,
    DeleteTopics,
    Envelope,
    NewTopic,
    RegisterServer,
    encode,
)


def leaders_seen(cluster: Any, group_id: int) -> set[tuple[int, int]]:
    return {
        node.host.leader_of(group_id) for node in cluster.nodes.values() if not node.clock.stopped
    }


def test_first_replica_leads_after_start(cluster: Any) -> None:
    """There is no wait for an election timeout when all servers are there."""
    assert leaders_seen(cluster, 0) == {(1, 1)}
    assert [cluster.nodes[1].host.leader_of(group)[0] for group in range(1, 4)] == [2, 3, 1]


def test_count_of_groups_without_a_leader_is_that_of_each_one(cluster: Any) -> None:
    """At every step of a failover, and while the leader is cut off."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id).leader_server
    for server in (1, 2, 3):
        if server != leader:
            cluster.network.cut(leader, server)
            cluster.network.cut(server, leader)
    counted = set()
    for _ in range(400):
        cluster.run(10)
        for node in cluster.nodes.values():
            groups = list(node.host.groups.values())
            each = [node.host.leader_of(group.group_id)[0] < 0 for group in groups]
            assert node.host.liveness.leaderless(groups) == sum(each)
            counted.add((sum(each), len(each)))
    assert len(counted) > 2, counted


def test_refused_link_fails_over_within_an_election_timeout(cluster: Any) -> None:
    """A process that is gone is not waited for."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id).leader_server
    cluster.nodes[leader].crash()
    crashed_ns = cluster.time.now_ns
    while {server for server, _ in leaders_seen(cluster, group_id)} & {leader, -1}:
        cluster.run(1)
    assert cluster.time.now_ns - crashed_ns < 200 * MS


def test_silent_leader_is_deposed_by_the_election_timeout(cluster: Any) -> None:
    """A cut leader sends nothing, and no connection is refused: timeouts decide (§5.2)."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id).leader_server
    for server in (1, 2, 3):
        if server != leader:
            cluster.network.cut(leader, server)
            cluster.network.cut(server, leader)
    cluster.run(4_000)
    others = [node.host for node in cluster.nodes.values() if node.id != leader]
    assert len({host.leader_of(group_id) for host in others}) == 1
    assert others[0].leader_of(group_id)[0] not in (leader, -1)
    assert not cluster.nodes[leader].host.stream(group_id).is_leader


def test_idle_cluster_keeps_its_leaders_and_terms(cluster: Any) -> None:
    """List heartbeats alone keep every follower quiet and every leader in office."""
    group_id = cluster.create_topic()
    before = [leaders_seen(cluster, group) for group in (0, 1, 2, group_id)]
    cluster.run(30_000)
    assert [leaders_seen(cluster, group) for group in (0, 1, 2, group_id)] == before


def test_group_that_rested_sends_no_heartbeats_after_its_entry(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand groups with an entry a second would otherwise send heartbeats on slow disks.

    These would make every disk and every loop slower still.
    """
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    beats: list[int] = []
    send = Outbox.send

    def watched(self: Outbox, of: int, message: Any) -> None:
        if of == group_id and isinstance(message, MsgHeartbeat):
            beats.append(cluster.time.now_ns)
        send(self, of, message)

    monkeypatch.setattr(Outbox, "send", watched)
    for rest_ms in (300, 395, 403, 500):
        cluster.run(rest_ms)
        for node in cluster.nodes.values():
            node.workers.hold()
        cluster.append(stream)
        cluster.run(80)
        assert beats == []
        for node in cluster.nodes.values():
            node.workers.release()


def test_closed_host_wins_no_election(cluster: Any) -> None:
    """The last block of a server that stops becomes durable after its host is closed.

    With it a candidate's own vote, which is the only one that a single voter needs.
    """
    alone = NewTopic("alone", b"alone".ljust(16), assignments=[[2]])
    group_id = int(cluster.propose(CreateTopics([alone]), via=1).topics[0].group_ids[0])
    node = cluster.nodes[2]
    node.crash()
    node.start()

    def is_vote_written() -> bool:
        group = node.host.groups.get(group_id)
        return group is not None and group.node.raft.vote_pending and not group.dirty

    while not is_vote_written():
        cluster.time.step()
    voter = node.host.groups[group_id].node
    node.host.close()
    cluster.run(20)
    assert not voter.is_leader


def test_restarted_server_catches_up(cluster: Any) -> None:
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    behind = next(server for server in (1, 2, 3) if server != stream.leader_server)
    cluster.nodes[behind].crash()
    cluster.run(50)
    for _ in range(20):
        cluster.append(stream)
        cluster.run(2)
    cluster.nodes[behind].start()
    cluster.run(1_000)
    assert cluster.nodes[behind].host.stream(group_id).high_watermark == 20


def test_whole_cluster_killed_keeps_what_was_acknowledged(cluster: Any) -> None:
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    fates = [cluster.append(stream, bytes([n])) for n in range(10)]
    cluster.run(1)
    acknowledged = sum(1 for one in fates if one)
    for node in cluster.nodes.values():
        node.crash()
    for node in cluster.nodes.values():
        node.start()
    cluster.run(3_000)
    assert cluster.leader(group_id).high_watermark >= acknowledged


def test_catalog_command_is_forwarded_to_its_leader(cluster: Any) -> None:
    """Any server takes a command; it is answered when applied on that server."""
    group_id = cluster.create_topic(via=3)
    assert cluster.nodes[3].host.catalog.groups[group_id].topic == "events"


def test_deleted_topic_leaves_no_replica_and_does_not_come_back(cluster: Any) -> None:
    """A server that was down during the deletion deletes its replica when it learns of that."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    away = next(server for server in (2, 3) if server != stream.leader_server)
    cluster.nodes[away].crash()
    cluster.run(50)
    cluster.delete_topic()
    cluster.nodes[away].start()
    cluster.run(3_000)
    for node in cluster.nodes.values():
        assert node.host.stream(group_id) is None
        assert all(log.group_id != group_id for log in node.store.logs.values())


def test_recreated_topic_has_a_new_group(cluster: Any) -> None:
    """Group ids are never reused: the new topic starts at offset 0."""
    first = cluster.create_topic()
    cluster.append(cluster.leader(first))
    cluster.run(10)
    cluster.delete_topic()
    second = cluster.create_topic()
    assert second > first
    assert cluster.leader(second).high_watermark == 0


def test_stopping_server_hands_its_leaderships_over(cluster: Any) -> None:
    """Thesis §3.10: a planned stop causes no election timeout."""
    group_id = cluster.create_topic()
    leader = cluster.leader(group_id).leader_server
    host = cluster.nodes[leader].host
    for _ in range(40):
        if host.transfer_leaderships() == 0:
            break
        cluster.run(5)
    assert all(not group.node.is_leader for group in host.groups.values())
    assert cluster.leader(group_id).leader_server != leader


def test_stopping_server_is_given_no_leadership_back(cluster: Any) -> None:
    """Its peers know that it stops: they keep its leaderships until it is gone."""
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    cluster.nodes[first].host.transfer_leaderships()
    for _ in range(40):
        cluster.run(100)
        assert cluster.leader(group_id).leader_server != first
    cluster.nodes[first].crash()
    cluster.nodes[first].start()
    cluster.run(8_000)
    assert cluster.leader(group_id).leader_server == first


def test_leadership_that_does_not_return_is_offered_ever_more_rarely(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt makes producers wait for an election timeout."""
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    cluster.nodes[first].crash()
    cluster.run(2_000)
    offers: list[int] = []

    hand_over = Transfers._hand_over

    def lost(self: Transfers, group: Group, transferee: int, reason: str) -> None:
        if group.group_id == group_id:
            offers.append(cluster.time.now_ns)
        else:
            hand_over(self, group, transferee, reason)

    with monkeypatch.context() as patched:
        patched.setattr(Transfers, "_hand_over", lost)
        cluster.nodes[first].start()
        cluster.run(40_000)
    gaps = [round((later - earlier) / 1e9) for earlier, later in pairwise(offers)]
    assert gaps[:4] == [2, 4, 8, 16]
    cluster.run(40_000)
    assert cluster.leader(group_id).leader_server == first


def test_leader_whose_flush_hangs_leads_elsewhere_until_it_goes_on(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journal still writes, so only this check detects it; unflushed data pile up in memory.

    A flush that is slow but progresses does not count as hung.
    """
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    node = cluster.nodes[first]
    work = [0]
    file_work = MemoryStore.file_work

    def seen(store: MemoryStore) -> Any:
        return work[0] if store is node.store else file_work.__get__(store)

    monkeypatch.setattr(MemoryStore, "file_work", property(seen))
    for _ in range(80):
        work[0] += 1
        cluster.run(100)
    assert cluster.leader(group_id).leader_server == first
    cluster.run(6_000)
    assert not any(group.node.is_leader for group in node.host.groups.values())
    cluster.run(20_000)
    assert cluster.leader(group_id).leader_server != first
    work[0] += 1
    for _ in range(150):
        work[0] += 1
        cluster.run(100)
    assert cluster.leader(group_id).leader_server == first


@pytest.mark.parametrize("is_whole", [True, False])
def test_replica_with_damage_is_offered_the_leadership_once_it_is_healed(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """It would not campaign, or could not serve the damaged entries to consumers.

    Each transfer to a replica that does not campaign costs producers an election timeout.
    """
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    node = cluster.nodes[first]
    node.crash()
    cluster.run(2_000)
    damage = Damage(monkeypatch)
    offers: list[int] = []
    hand_over = Transfers._hand_over

    def offered(self: Transfers, group: Group, transferee: int, reason: str) -> None:
        if group.group_id == group_id:
            offers.append(server_of(transferee))
        hand_over(self, group, transferee, reason)

    monkeypatch.setattr(Transfers, "_hand_over", offered)
    leader = cluster.leader(group_id).group
    damage.replica = group_id, leader.placement[0]
    damage.damaged, damage.is_whole = ((1, 2),), is_whole
    node.start()
    while group_id not in node.host.groups:
        cluster.run(1)
    damage.log = node.host.groups[group_id].log
    if is_whole:
        node.host._repair.look_around()  # it runs once a second
    cluster.run(300)
    peers = cluster.nodes[server_of(leader.replica_id)].host._status
    assert first in peers._alive
    assert peers.has_damage(first, group_id)
    assert peers.can_lead(first, group_id) is is_whole
    cluster.run(20_000)
    assert offers == []
    assert cluster.leader(group_id).leader_server != first
    damage.damaged, damage.is_whole = (), True
    cluster.run(5_000)
    assert offers == [first]
    assert cluster.leader(group_id).leader_server == first


def test_stopping_server_hands_over_to_a_replica_without_damage_if_there_is_one(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica with damaged entries leads if it must; one without its whole state cannot."""
    group_id = cluster.create_topic()
    group = cluster.leader(group_id).group
    transfers = cluster.nodes[server_of(group.replica_id)].host._transfers
    first, second = sorted(set(group.placement) - {group.replica_id})
    damage = Damage(monkeypatch)
    offers: list[int] = []
    monkeypatch.setattr(
        Transfers,
        "_hand_over",
        lambda _self, _group, transferee, _reason: offers.append(transferee),
    )
    for damaged, other in ((first, second), (second, first)):
        node = cluster.nodes[server_of(damaged)]
        damage.log, damage.replica = node.host.groups[group_id].log, (group_id, damaged)
        for is_whole in (True, False):
            damage.damaged, damage.is_whole = ((1, 2),), is_whole
            cluster.run(1_500)
            offers.clear()
            transfers._hand_out([group], "stopping")
            assert offers == [other]
            with monkeypatch.context() as patched:
                patched.delitem(transfers._status._alive, server_of(other))
                offers.clear()
                transfers._hand_out([group], "stopping")
            assert offers == ([damaged] if is_whole else [])


def test_leadership_returns_to_first_replica_one_a_second(cluster: Any) -> None:
    """A server that comes back leads its placements again, without a flood of clients."""
    group_id = cluster.create_topic()
    first = cluster.leader(group_id).leader_server
    cluster.nodes[first].crash()
    cluster.run(2_000)
    assert cluster.leader(group_id).leader_server != first
    cluster.nodes[first].start()
    cluster.run(500)
    host = cluster.nodes[first].host
    counts = []
    for _ in range(8):
        counts.append(sum(group.node.is_leader for group in host.groups.values()))
        cluster.run(1_000)
    assert all(later - earlier <= 2 for earlier, later in pairwise(counts))
    assert cluster.leader(group_id).leader_server == first


def test_busy_leader_that_lost_its_majority_is_deposed(cluster: Any) -> None:
    """Thesis §6.2: requests that arrive continually must not starve check-quorum."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = cluster.nodes[stream.leader_server]
    for server in (1, 2, 3):
        if server != leader.id:
            cluster.network.cut(leader.id, server)
            cluster.network.cut(server, leader.id)
    group = leader.host.groups[group_id]
    next_tick = cluster.time.now_ns // TICK_NS + 1
    for tick in range(next_tick, next_tick + 400):
        leader.clock.call_later(
            tick * TICK_NS - cluster.time.now_ns, lambda tick=tick: group.catch_up(tick)
        )
    cluster.run(4_000)
    assert not stream.is_leader


def test_command_nobody_knows_is_refused_before_it_is_appended(cluster: Any) -> None:
    """In the log it would stop every replica, again at each start."""
    host = cluster.nodes[1].host
    assert host.leader_of(0)[0] == 1
    before = host.groups[0].node.last_index
    for command in (b"\x01garbage", encode(Envelope(2, 1, 1, 0, CompleteJoin("g", 1)))):
        frame = b"".join(bytes(part) for part in encode_command(SentCommand(7, 0, 0, command)))
        host.frame(2, FrameType.PROPOSE, memoryview(frame))
    cluster.run(100)
    assert host.groups[0].node.last_index == before


def test_group_deleted_in_the_turn_that_pumps_it_leaves_the_leader_list(cluster: Any) -> None:
    group_id = cluster.create_topic()
    host = cluster.nodes[cluster.leader(group_id).leader_server].host
    pump = host._outbox.run_turn

    def busy_turn() -> None:
        group = host.groups.get(group_id)
        if group is not None and not group.dirty:
            group.dirty = True
            host._outbox.dirty.insert(0, group)
        pump()

    host._outbox.run_turn = busy_turn
    cluster.delete_topic()
    cluster.run(500)
    leaders = {node.host.leader_of(group_id)[0] for node in cluster.nodes.values()}
    assert leaders == {-1}


def test_link_cut_to_the_leader_alone_deposes_nobody(cluster: Any) -> None:
    """§6: a voter that hears the leader on its own link does not help to depose it."""
    group_id = cluster.create_topic()
    cluster.run(2_000)
    leader = cluster.leader(group_id).leader_server
    lonely = next(server for server in (1, 2, 3) if server != leader)
    terms = {g: group.node.term for g, group in cluster.nodes[leader].host.groups.items()}
    cluster.network.cut(leader, lonely)
    cluster.network.cut(lonely, leader)
    cluster.run(5_000)
    groups = cluster.nodes[leader].host.groups
    led = [g for g in terms if groups[g].node.is_leader]
    assert group_id in led
    assert all(groups[g].node.term == terms[g] for g in led)


def test_command_that_arrives_before_the_catalog_is_open_is_refused(cluster: Any) -> None:
    """A peer may still assume that this server leads; it then sends to the next leader."""
    catalog = cluster.nodes[2].host.state_group(0)
    catalog._group = None
    command = encode(Envelope(1, 1, 1, 0, AllocateProducerIds(1)))
    frame = b"".join(bytes(part) for part in encode_command(SentCommand(7, 0, 0, command)))
    cluster.nodes[2].host.frame(1, FrameType.PROPOSE, memoryview(frame))
    assert not catalog.serving


def test_quiet_follower_vouches_only_for_what_its_disk_holds(cluster: Any) -> None:
    """Acknowledgements wait for the disk, also in a request for the commit index."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = cluster.nodes[stream.leader_server].host.groups[group_id].node
    slow = next(server for server in (1, 2, 3) if server != stream.leader_server)
    follower = cluster.nodes[slow].host.groups[group_id]
    cluster.append(stream)
    cluster.run(300)
    cluster.nodes[slow].workers.hold()
    for pause_ms in (3, 3, 0.45):  # the last one's commit index is lost
        cluster.append(stream)
        cluster.run(pause_ms)
    cluster.network.cut(stream.leader_server, slow)
    assert follower.node.stable < follower.node.commit < follower.node.last_index
    for _ in range(200):
        cluster.run(10)
        progress = leader.progress(follower.replica_id)
        assert progress is None or progress.match <= follower.node.stable


def test_leader_whose_disk_hangs_makes_room(cluster: Any) -> None:
    """Its links are alive, so no other server would ever depose it."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = cluster.nodes[stream.leader_server]
    leader.workers.hold()
    assert cluster.append(stream) == []
    cluster.run(5_000)
    assert cluster.leader(group_id).leader_server != leader.id


def test_oversized_command_is_refused_and_ends_nobody(cluster: Any) -> None:
    """A command that does not fit a frame must not get into a log."""
    outcomes: list[Outcome] = []
    command = DeleteTopics(["x" * (COMMAND_BYTES_MAX + 1)])
    for via in (1, 2):
        cluster.nodes[via].host.propose_catalog(
            command, deadline_ns=cluster.deadline(), done=outcomes.append
        )
    cluster.run(100)
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.TOO_LARGE] * 2


def test_snapshot_overtakes_commands_that_wait_for_the_disk(cluster: Any) -> None:
    """The snapshot contains the held entries: they are not applied to it again (§7)."""
    cluster.run(2_000)  # the leader has noted the time
    node = cluster.nodes[2]
    group, leading = node.host.groups[0], cluster.nodes[1].host.groups[0]

    def propose() -> None:
        directory_id = cluster.record.directory_of(1)
        command = RegisterServer(1, directory_id, "rack", {}, True)
        cluster.nodes[1].host.propose_catalog(
            command, deadline_ns=cluster.deadline(), done=lambda outcome: None
        )

    last = group.applied + 1
    propose()
    while group.node.stable < last:
        cluster.run(0.01)
    node.workers.hold()
    cluster.run(5)
    assert (group.applied, group.commit) == (last - 1, last)
    cluster.network.cut(1, 2)
    for _ in range(2):
        propose()
        cluster.run(20)
    snapshot = leading.snapshots.make()
    assert snapshot.index == last + 2
    group.node.step(MsgSnap(group.replica_id, leading.replica_id, leading.node.term, snapshot))
    node.host.mark_dirty(group)
    cluster.run(1)
    node.workers.release()
    cluster.run(50)
    assert group.applied == group.node.applied == snapshot.index
    cluster.network.heal(1, 2)
    propose()
    cluster.run(500)
    assert group.applied == leading.applied == snapshot.index + 1


def test_candidate_whose_disk_hangs_asks_nobody(cluster: Any) -> None:
    """Figure 2: the others stay in their term until the candidate's term and vote are durable."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    cluster.run(500)
    leader, term = stream.leader_server, stream.term
    transferee = cluster.nodes[leader % 3 + 1]
    group = transferee.host.groups[group_id]
    transferee.workers.hold()
    stream.group.node.transfer_leader(group.replica_id)
    cluster.nodes[leader].host.mark_dirty(stream.group)
    cluster.run(100)
    terms = {node.id: node.host.groups[group_id].node.term for node in cluster.nodes.values()}
    assert terms == dict.fromkeys((1, 2, 3), term) | {transferee.id: term + 1}
    transferee.workers.release()
    cluster.run(100)
    assert cluster.leader(group_id).leader_server == transferee.id
    assert cluster.leader(group_id).term == term + 1


class Told:
    """An observer that records the notifications it received, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.told.append(name)


def test_leader_that_is_sent_a_snapshot_stops_leading_before_it_is_installed(cluster: Any) -> None:
    """It is deposed and behind in one turn: a leader's waiters do not see the new state."""
    node = cluster.nodes[1]
    group, observer = node.host.groups[0], Told()
    assert group.serving
    group.owner.observers.append(observer)
    term = group.node.term + 1
    newer = replace(group.snapshots.make(), index=group.log.last_index + 3, term=term)
    sender = cluster.nodes[2].host.groups[0].replica_id
    group.node.step(MsgSnap(group.replica_id, sender, term, newer))
    node.host.mark_dirty(group)
    cluster.run(1)
    assert observer.told == ["on_stopped_serving", "on_installed"]


def test_deletion_that_was_acted_on_is_not_forgotten(cluster: Any) -> None:
    """Power fails right after a replica was deleted: the restart knows of the deletion.

    Otherwise the replica would be created again, without memory of its votes.
    """
    group_id = cluster.create_topic()
    cluster.run(500)
    node = cluster.nodes[3]
    log_id = node.host.groups[group_id].log.log_id
    outcomes: list[Outcome] = []
    cluster.nodes[1].host.propose_catalog(
        DeleteTopics(["events"]), deadline_ns=cluster.deadline(), done=outcomes.append
    )
    while log_id in node.store.image.logs:
        cluster.run(0.1)
    node.crash()
    for other in (1, 2):
        cluster.network.cut(other, 3)
        cluster.network.cut(3, other)
    node.start()
    cluster.run(500)
    assert group_id not in node.host.groups
    assert group_id not in {log.group_id for log in node.store.logs.values()}


def test_hand_over_that_did_not_leave_is_over(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proposals do not wait for it until the election timeout, or the next heartbeat."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    leader = cluster.nodes[stream.leader_server]
    cluster.run(500)
    transferee = next(number for number in cluster.nodes if number != leader.id)
    before = stream.group.node.raft.log.last_index
    monkeypatch.setattr(type(leader.links), "send", lambda *_, **__: False)
    stream.group.node.transfer_leader(cluster.nodes[transferee].host.groups[group_id].replica_id)
    leader.host.mark_dirty(stream.group)
    assert stream.group.node.raft.lead_transferee
    fates = cluster.append(stream)
    assert stream.group.node.raft.log.last_index == before, "it is held"
    cluster.run(5)
    assert not stream.group.node.raft.lead_transferee
    assert stream.group.node.raft.log.last_index == before + 1
    monkeypatch.undo()
    cluster.run(500)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]


DAY_MS = 86_400_000


def late_ms(cluster: Any, server_id: int) -> int:
    """Return the lag of a server's stamps behind the right clocks."""
    node = cluster.nodes[server_id]
    return int(cluster.true_ms() - node.host.agreed_ms())


@pytest.mark.parametrize("error_ms", [-8 * DAY_MS, 8 * DAY_MS])
def test_wrong_clock_beside_a_server_that_is_away_is_not_noted(error_ms: int) -> None:
    """The note is the minimum of all stamps for a hold after a start.

    With the third server back it would be days too late.
    """
    cluster: Any = Cluster(clock_hold_ms=3_000)
    cluster.run(2_000)
    for node in cluster.nodes.values():
        node.crash()
    cluster.nodes[2].wall_base_ms += error_ms
    for server_id in (1, 2):
        cluster.nodes[server_id].start()
    cluster.run(9_000)
    assert abs(cluster.nodes[1].host.catalog.noted_ms - cluster.true_ms()) < 20_000
    assert max(late_ms(cluster, 1), late_ms(cluster, 2)) <= 1, "too new is the smaller mistake"
    cluster.nodes[3].start()
    cluster.run(1_000)
    assert [abs(late_ms(cluster, i)) <= 1 for i in SERVERS] == [True] * 3


def test_time_that_all_slept_is_noted_at_once(cluster: Any) -> None:
    """A server that starts next with a clock that is behind stamps nothing that old."""
    cluster.run(2_000)
    for node in cluster.nodes.values():
        node.clock.jump_wall(8 * DAY_MS)
    cluster.run(2_500)
    assert cluster.nodes[1].host.catalog.noted_ms >= cluster.true_ms() + 8 * DAY_MS - 2_500
