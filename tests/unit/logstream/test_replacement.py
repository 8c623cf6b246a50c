"""Lost replicas are replaced: removed, added under a new number, caught up, promoted."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raft.messages import MsgApp, MsgCommit, MsgHeartbeat, MsgSnap
from raft.types import Snapshot, StateType
from segments.api import CorruptRecord, EntriesDamaged, NotInMemory
from segments.memory import MemoryLog, MemoryStore
from tests.unit.logstream.conftest import Cluster
from vdl.errors import ErrorCode
from vdl.logstream.elections.quiescence import REST_TICKS
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.group.snapshots import DecodeError
from vdl.logstream.group.state_group import StateGroup
from vdl.logstream.membership.replacement import (
    PARTITIONS_MAX,
    SMALL_GROUPS_PATIENCE,
    groups_that_halt,
)
from vdl.logstream.peers.inbox import Inbox
from vdl.logstream.state import CATALOG_GROUP
from vdl.state.catalog import REPLICA_NUMBER_MAX, Catalog
from vdl.state.commands import (
    CreateTopics,
    DeleteTopics,
    LostReplica,
    NewTopic,
    RegisterServer,
    ReplaceReplicas,
    ReplaceServer,
)


def numbers(cluster: Any, server_id: int) -> dict[int, int]:
    """Return, by group, the numbers of the replicas that run on a server."""
    groups = cluster.nodes[server_id].host.groups
    return {group_id: group.log.replica_number for group_id, group in sorted(groups.items())}


def held(cluster: Any, server_id: int) -> set[int]:
    """Return the replica numbers in a server's directory, running or not."""
    store: MemoryStore = cluster.nodes[server_id].store
    return {log.replica_number for log in store.logs.values()}


def members(cluster: Any, group_id: int) -> set[frozenset[int]]:
    """Return the sets of voters of the group that the servers know."""
    found = [node.host.groups[group_id].node for node in cluster.nodes.values() if up(node)]
    assert not any(node.membership.learners for node in found)
    return {node.membership.incoming for node in found}


def up(node: Any) -> bool:
    return not node.clock.stopped


def wipe(cluster: Any, server_id: int) -> None:
    cluster.nodes[server_id].wipe()
    cluster.nodes[server_id].start()


def restart(cluster: Any, server_id: int) -> None:
    cluster.nodes[server_id].crash()
    cluster.nodes[server_id].start()


def lose(cluster: Any, server_id: int, *group_ids: int) -> None:
    """Restart a server so that it finds its replicas of these groups to have lost durable data."""
    node = cluster.nodes[server_id]
    node.crash()
    for state in node.store.image.logs.values():
        state.lost = state.group_id in group_ids
    node.start()


def rename(cluster: Any, times: int) -> None:
    """Propose some commands of the catalog."""
    for turn in range(times):
        directory = cluster.nodes[1].store.directory_id
        cluster.propose(RegisterServer(1, directory, f"rack-{turn}", {}, True))


def leave_behind(cluster: Any) -> None:
    """Stop server 3, and have the others cut their logs behind commands that it has not seen."""
    cluster.nodes[3].crash()
    rename(cluster, 30)
    for server_id in (1, 2):
        cluster.nodes[server_id].store.checkpoint()
    cluster.run(2_500)


def transfer(cluster: Any, group_id: int, server_id: int) -> Any:
    """Transfer the leadership to a server. Return its stream."""
    group = cluster.leader(group_id).group
    if server_of(group.replica_id) != server_id:
        transferee = next(r for r in group.members if server_of(r) == server_id)
        group.node.transfer_leader(transferee)
        cluster.nodes[server_of(group.replica_id)].host.mark_dirty(group)
        cluster.run(300)
    assert cluster.leader(group_id).leader_server == server_id
    return cluster.leader(group_id)


REPLACE_AFTER_MS = 2_400
"""Minimum wait: two of the longest election timeouts."""
THIRD_REPLACED = frozenset(replica_id_of(s, n) for s, n in ((1, 1), (2, 1), (3, 2)))
"""Members of a group after server 3 was given a successor."""


def test_wiped_server_takes_part_again_under_new_numbers(cluster: Any) -> None:
    """In every group, the catalog's included; all servers agree on the members."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(100)
    wipe(cluster, 3)
    cluster.run(8_000)
    assert set(numbers(cluster, 3).values()) == {2}
    assert numbers(cluster, 3).keys() == numbers(cluster, 1).keys()
    for group in numbers(cluster, 1):
        assert members(cluster, group) == {THIRD_REPLACED}
    assert held(cluster, 3) == {2}
    assert cluster.nodes[3].host.is_known
    # It counts again: with another one down it is the second of two.
    cluster.nodes[2].crash()
    cluster.run(2_000)
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(200)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]


def test_leader_that_dies_after_a_change_of_members_leaves_a_majority(cluster: Any) -> None:
    """The remaining replica must learn at once that the third replica votes again.

    If it learned so only with the delayed commit index, it would need the dead leader's vote, and
    could not be elected.
    """
    group_id = cluster.create_topic()
    old = transfer(cluster, group_id, 1)
    wipe(cluster, 3)
    for _ in range(8_000):
        cluster.run(1)
        if old.group.node.membership.incoming == THIRD_REPLACED:
            break
    else:
        raise AssertionError("server 3 was not replaced")
    cluster.run(2)
    cluster.nodes[1].crash()
    cluster.run(3_000)
    assert cluster.leader(group_id).leader_server in {2, 3}


def test_every_server_wiped_in_turn_keeps_the_records(cluster: Any) -> None:
    """In the end no initial directory is left, and nothing is lost."""
    group_id = cluster.create_topic()
    for server_id in (1, 2, 3):
        fates = cluster.append(cluster.leader(group_id))
        cluster.run(100)
        assert [fate.error for fate in fates] == [ErrorCode.NONE]
        wipe(cluster, server_id)
        cluster.run(12_000)
    assert {numbers(cluster, s)[group_id] for s in (1, 2, 3)} == {2}
    for server_id in (1, 2, 3):
        stream = cluster.nodes[server_id].host.stream(group_id)
        assert stream.read(0, 1 << 20).end_offset == 3


def test_wiped_server_without_a_majority_waits(cluster: Any) -> None:
    """With one of the other two down it is unknown what was acknowledged: nothing is replaced."""
    group_id = cluster.create_topic()
    cluster.nodes[2].crash()
    wipe(cluster, 3)
    cluster.run(5_000)
    assert numbers(cluster, 3) == {}
    assert not cluster.nodes[1].host.groups[group_id].serving
    cluster.nodes[2].start()
    cluster.run(8_000)
    assert set(numbers(cluster, 3).values()) == {2}


def test_wiped_again_while_it_is_replaced(cluster: Any) -> None:
    """Numbers assigned to a directory that is gone too are never reused."""
    group_id = cluster.create_topic()
    for _ in range(3):
        wipe(cluster, 3)
        cluster.run(REPLACE_AFTER_MS + 1_000)
    cluster.run(9_000)
    assert len(set(numbers(cluster, 3).values())) == 1
    assert numbers(cluster, 3)[group_id] > 2
    assert len(members(cluster, group_id)) == 1
    catalog = cluster.nodes[1].host.catalog
    assert cluster.nodes[3].store.directory_id not in catalog.retired
    assert set(catalog.retired.values()) == {3}


def test_leaders_that_die_at_any_step_are_carried_on_for(cluster: Any) -> None:
    """The next leader, of catalog or group, continues where the last one stopped."""
    group_id = cluster.create_topic()
    wipe(cluster, 3)
    for _ in range(4):
        for server_id in (1, 2):
            cluster.run(430)
            cluster.nodes[server_id].crash()
            cluster.run(20)
            cluster.nodes[server_id].start()
    cluster.run(9_000)
    assert set(numbers(cluster, 3).values()) == {2}
    assert len(members(cluster, group_id)) == 1


def test_directory_that_was_replaced_is_not_let_in_again(cluster: Any) -> None:
    """An old disk that turns up later holds retired replicas."""
    cluster.create_topic()
    old = cluster.nodes[3].store
    wipe(cluster, 3)
    cluster.run(8_000)
    cluster.nodes[3].crash()
    cluster.nodes[3].store = old
    cluster.nodes[3].start()
    cluster.run(3_000)
    assert 3 not in cluster.nodes[1].host.alive_servers()
    assert 3 not in cluster.nodes[2].host.alive_servers()


def test_lost_replica_is_replaced_in_its_own_directory(cluster: Any) -> None:
    """Damage to one replica costs only that one its number; the server's others are unchanged."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(200)
    lose(cluster, 3, group_id)
    cluster.run(8_000)
    assert numbers(cluster, 3) == {g: 1 + (g == group_id) for g in numbers(cluster, 1)}
    assert len(cluster.nodes[3].store.logs) == len(numbers(cluster, 3))
    assert cluster.nodes[3].host.lost_groups == []
    assert cluster.nodes[3].host.stream(group_id).high_watermark == 1


def last_indexes(cluster: Any, server_id: int, group_id: int) -> list[int]:
    """Return the last indexes of a group's logs in a server's directory, by replica number."""
    store: MemoryStore = cluster.nodes[server_id].store
    logs = [log for log in store.logs.values() if log.group_id == group_id]
    return [log.last_index for log in sorted(logs, key=lambda log: log.replica_number)]


def test_only_replica_that_is_lost_halts_its_group(cluster: Any) -> None:
    """No replica could feed a successor: the log is kept, and the halt is reported."""
    new = NewTopic("alone", b"alone".ljust(16), assignments=[[2]])
    (group_id,) = cluster.propose(CreateTopics([new])).topics[0].group_ids
    cluster.run(1_000)
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(50)
    (kept,) = last_indexes(cluster, 2, group_id)
    lose(cluster, 2, group_id)
    cluster.run(60_000)
    assert last_indexes(cluster, 2, group_id) == [kept]
    assert cluster.nodes[2].host.lost_groups == [group_id]
    assert cluster.nodes[2].log.errors == [("replica_lost", "alone-0"), ("group_halted", "alone-0")]


def test_majority_that_is_lost_halts_its_group(cluster: Any) -> None:
    """Two that acknowledged are lost, the third was down.

    Both keep their logs, over restarts, and the third is not elected.
    """
    group_id = cluster.create_topic()
    cluster.run(1_000)
    cluster.nodes[1].crash()
    cluster.run(3_000)
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(50)
    kept = {s: last_indexes(cluster, s, group_id) for s in (2, 3)}
    lose(cluster, 2, group_id)
    lose(cluster, 3, group_id)
    cluster.nodes[1].start()
    for _ in range(2):
        cluster.run(60_000)
        for server_id in (2, 3):
            assert last_indexes(cluster, server_id, group_id)[:1] == kept[server_id]
            assert cluster.nodes[server_id].host.lost_groups == [group_id]
            assert cluster.nodes[server_id].log.errors[-1] == ("group_halted", "events-0")
            restart(cluster, server_id)
    cluster.run(1_000)
    assert not any(node.host.groups[group_id].serving for node in cluster.nodes.values())


def test_leader_without_a_majority_is_no_reason_to_delete_what_is_kept(cluster: Any) -> None:
    """The peers' lists still name one that led when the others were lost; it feeds no successor."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    assert cluster.nodes[1].host.groups[group_id].node.is_leader
    for _ in range(5):
        cluster.append(cluster.leader(group_id))
        cluster.run(50)
    kept = last_indexes(cluster, 3, group_id)
    cluster.nodes[2].crash()
    lose(cluster, 3, group_id)
    cluster.run(40_000)
    assert last_indexes(cluster, 3, group_id) == [*kept, 0]
    assert cluster.nodes[3].host.lost_groups == [group_id]
    assert ("group_halted", "events-0") in cluster.nodes[3].log.errors
    cluster.delete_topic()
    cluster.run(3_000)
    assert last_indexes(cluster, 3, group_id) == []
    assert cluster.nodes[3].host.lost_groups == []
    assert cluster.nodes[3].host._replacement._unfed == {}


def test_lost_catalog_replica_is_replaced(cluster: Any) -> None:
    """Without it the server does not know its partitions: it requests the number from its peers."""
    group_id = cluster.create_topic()
    lose(cluster, 3, *cluster.nodes[3].host.groups)
    cluster.run(9_000)
    assert set(numbers(cluster, 3).values()) == {2}
    assert group_id in numbers(cluster, 3)


def test_replica_behind_the_logs_start_gets_windows_with_its_snapshot(cluster: Any) -> None:
    """A partition whose first records are deleted: the new replica has the remaining ones.

    It also has the producers' windows: a retried batch is answered as its original was.
    """
    group_id = cluster.create_topic()
    for sequence in range(20):
        cluster.append(
            cluster.leader(group_id), producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        cluster.run(20)
    cluster.run(100)  # until followers have the commit index
    for node in cluster.nodes.values():
        node.store.checkpoint()
    cluster.run(500)
    for node in cluster.nodes.values():
        group = node.host.groups[group_id]
        assert group.log.applied_index >= 21
        node.store.trim_log(group.log, first_index=12)
        node.store.submit()
    cluster.run(100)
    wipe(cluster, 3)
    cluster.run(8_000)
    stream = transfer(cluster, group_id, 3)
    assert stream.group.log.replica_number == 2
    assert stream.log_start_offset == cluster.nodes[1].host.stream(group_id).log_start_offset == 10
    assert stream.read(10, 1 << 20).end_offset == 20
    again = cluster.append(stream, producer_id=7, producer_epoch=0, base_sequence=17)
    more = cluster.append(stream, producer_id=7, producer_epoch=0, base_sequence=20)
    cluster.run(200)
    assert [(fate.error, fate.base_offset) for fate in again + more] == [
        (ErrorCode.NONE, 17),
        (ErrorCode.NONE, 20),
    ]
    # Also after a crash, when the snapshot's state is only in the journal or a checkpoint.
    cluster.nodes[3].crash()
    cluster.nodes[3].start()
    cluster.run(2_000)
    stream = transfer(cluster, group_id, 3)
    again = cluster.append(stream, producer_id=7, producer_epoch=0, base_sequence=18)
    cluster.run(200)
    assert [fate.base_offset for fate in again] == [18]


def test_command_logs_are_cut_and_followers_catch_up_by_snapshot(forgetful: Any) -> None:
    """The catalog's log stays short; a replica behind its start receives the state instead."""
    cluster = forgetful
    leave_behind(cluster)
    log = cluster.nodes[1].host.groups[0].log
    assert log.first_index > 10
    cluster.nodes[3].start()
    cluster.run(3_000)
    late = cluster.nodes[3].host
    assert late.catalog.items() == cluster.nodes[1].host.catalog.items()
    assert late.groups[0].log.first_index >= log.first_index
    # The snapshot's state is there after a crash, before any checkpoint has covered it.
    cluster.nodes[3].crash()
    cluster.nodes[3].start()
    cluster.run(1_000)
    assert cluster.nodes[3].host.catalog.items() == cluster.nodes[1].host.catalog.items()


def test_members_learnt_by_replay_outlive_the_next_restart(cluster: Any) -> None:
    """A change that was replayed at a start is in the next checkpoint, without a change since."""
    group_id = cluster.create_topic()
    wipe(cluster, 3)
    cluster.run(8_000)
    restart(cluster, 1)
    cluster.run(3_000)
    assert members(cluster, group_id) == {THIRD_REPLACED}
    cluster.append(cluster.leader(group_id))
    cluster.run(500)
    cluster.nodes[1].store.checkpoint()
    cluster.run(500)
    restart(cluster, 1)
    cluster.run(10)
    assert members(cluster, group_id) == {THIRD_REPLACED}


def test_group_of_successors_only_lives_after_restarts(cluster: Any) -> None:
    """No initial member is left; the members are known from checkpoints alone."""
    group_id = cluster.create_topic()
    for server_id in (1, 2, 3):
        wipe(cluster, server_id)
        cluster.run(8_000)
    for server_id in (1, 2, 3):
        restart(cluster, server_id)
        cluster.run(3_000)
    cluster.append(cluster.leader(group_id))
    cluster.run(500)
    for node in cluster.nodes.values():
        node.store.checkpoint()
    cluster.run(500)
    for server_id in (1, 2, 3):
        restart(cluster, server_id)
    cluster.run(5_000)
    fates = cluster.append(cluster.leader(group_id))
    cluster.run(200)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]


def test_catalog_does_not_wait_for_partitions(cluster: Any) -> None:
    """The server waits for the catalog, and more partitions than have places wait for the server.

    The catalog's own replica comes first.
    """
    topics = [
        NewTopic("a", b"a" * 16, assignments=[[2, 3, 1]] * 20),
        NewTopic("b", b"b" * 16, assignments=[[3, 2, 1]] * 20),
    ]
    cluster.propose(CreateTopics(topics))
    cluster.run(1_500)
    wipe(cluster, 1)
    other = cluster.nodes[2].host.catalog
    while other.directory_of(1) != cluster.nodes[1].store.directory_id:
        cluster.run(1)
    cluster.run(60)
    restart(cluster, 2)
    restart(cluster, 3)
    cluster.run(20_000)
    assert cluster.nodes[1].host.is_known
    assert set(numbers(cluster, 1).values()) == {2}
    assert all(group.is_settled for group in cluster.nodes[2].host.groups.values())


def test_installed_state_is_covered_by_the_next_checkpoint_after_a_crash(forgetful: Any) -> None:
    """Otherwise the log would never be cut again."""
    cluster = forgetful
    leave_behind(cluster)
    cluster.nodes[3].start()
    cluster.run(3_000)
    assert cluster.nodes[3].host.groups[0].log.installed_state
    restart(cluster, 3)
    cluster.run(1_000)
    for _ in range(3):
        rename(cluster, 10)
        cluster.nodes[3].store.checkpoint()
        cluster.run(500)
    cluster.run(2_500)
    log = cluster.nodes[3].host.groups[0].log
    assert not log.installed_state
    assert log.first_index > 40


def test_stranger_in_the_place_of_a_live_server_is_not_let_in(cluster: Any) -> None:
    """A second process with a server's id and an empty directory is refused; the real one stays."""
    cluster.create_topic()
    real = cluster.nodes[3]
    hello = cluster.nodes[1].host._alive[3]
    stranger = replace(hello, directory_id=b"?" * 16, cluster_id="")
    assert cluster.nodes[1].host.refusal(stranger)
    assert cluster.nodes[1].host.refusal(replace(stranger, cluster_id=hello.cluster_id))
    assert not cluster.nodes[1].host.refusal(hello)
    real.crash()
    cluster.run(500)
    assert not cluster.nodes[1].host.refusal(stranger)


def test_new_directory_is_given_time_before_the_old_one_is_given_up(patient: Any) -> None:
    """A volume that was mounted late returns unchanged."""
    cluster = patient
    group_id = cluster.create_topic()
    old = cluster.nodes[3].store
    wipe(cluster, 3)
    cluster.run(4_000)
    assert cluster.nodes[1].host.catalog.retired == {}
    cluster.nodes[3].crash()
    cluster.nodes[3].store = old
    cluster.nodes[3].start()
    cluster.run(8_000)
    assert cluster.nodes[1].host.catalog.retired == {}
    assert numbers(cluster, 3)[group_id] == 1
    wipe(cluster, 3)
    cluster.run(13_000)
    assert numbers(cluster, 3)[group_id] == 2


def test_directory_is_not_given_up_while_nobody_else_leads_its_groups() -> None:
    """The list of running servers is not enough: a new replica may not be a member yet."""
    servers = range(1, 6)
    catalog = Catalog(
        "c", coordinator_groups=1, initial_voters={s: bytes([s]) * 16 for s in servers}
    )
    placed = ([1, 2, 3], [3, 4, 5], [5, 1], [4])
    topics = [NewTopic(f"t{n}", bytes([n]) * 16, assignments=[p]) for n, p in enumerate(placed)]
    commands = [RegisterServer(s, bytes([s]) * 16, "", {}, True) for s in servers]
    for index, command in enumerate([*commands, CreateTopics(topics)], 1):
        catalog.apply(command, 0, index)
    leaders = {0: 1, 1: 2, 2: 1, 3: -1, 4: 1, 5: 4}
    leadership: Any = SimpleNamespace(leader_of=lambda group_id: (leaders[group_id], 1))
    assert groups_that_halt(catalog, 4, leadership) == [3, 5]
    assert groups_that_halt(catalog, 5, leadership) == [3]
    leaders[3] = 4
    assert groups_that_halt(catalog, 3, leadership) == []


def test_second_directory_waits_until_the_first_is_made_good(cluster: Any) -> None:
    """A volume is mounted late while another server is being replaced.

    Its groups need its data, and get them back.
    """
    groups = [cluster.create_topic(f"t{number}") for number in range(PARTITIONS_MAX + 8)]
    cluster.run(1_000)
    for group_id in groups:
        cluster.append(cluster.leader(group_id))
    cluster.run(500)
    wipe(cluster, 3)
    catalog = cluster.nodes[2].host.catalog
    old = cluster.nodes[1].store
    while catalog.directory_of(3) != cluster.nodes[3].store.directory_id:
        cluster.run(20)
    while not members_are_there(cluster, 0):
        cluster.run(5)
    assert not all(members_are_there(cluster, group_id) for group_id in groups)
    wipe(cluster, 1)
    cluster.run(5_000)
    assert catalog.directory_of(1) == old.directory_id
    cluster.nodes[1].crash()
    cluster.nodes[1].store = old
    cluster.nodes[1].start()
    cluster.run(15_000)
    assert all(members_are_there(cluster, group_id) for group_id in groups)


def members_are_there(cluster: Any, group_id: int) -> bool:
    """Return True if the successor on server 3 votes, as far as server 2 knows."""
    membership = cluster.nodes[2].host.groups[group_id].node.membership
    return membership.incoming == THIRD_REPLACED


def test_server_with_the_only_replica_of_a_group_is_waited_for_longer(cluster: Any) -> None:
    """A volume that is mounted late must still be listed."""
    new = NewTopic("alone", b"alone".ljust(16), assignments=[[3]])
    cluster.propose(CreateTopics([new]))
    old = cluster.nodes[3].store
    wipe(cluster, 3)
    cluster.run(SMALL_GROUPS_PATIENCE * REPLACE_AFTER_MS // 2)
    assert cluster.nodes[1].host.catalog.directory_of(3) == old.directory_id
    cluster.run(SMALL_GROUPS_PATIENCE * REPLACE_AFTER_MS)
    assert cluster.nodes[1].host.catalog.directory_of(3) == cluster.nodes[3].store.directory_id


def test_catalog_replica_that_was_given_up_makes_room_while_it_runs(cluster: Any) -> None:
    """Its own server took it for lost, and found it whole at the next start."""
    directory = cluster.nodes[3].store.directory_id
    cluster.propose(ReplaceReplicas(3, directory, [LostReplica(0, 1)]))
    cluster.run(8_000)
    assert numbers(cluster, 3)[0] == 2
    assert members(cluster, 0) == {THIRD_REPLACED}
    assert cluster.nodes[3].host.catalog.items() == cluster.nodes[1].host.catalog.items()


def test_numbers_that_have_run_out_are_refused() -> None:
    """A server that loses its disk at every start must not affect the cluster."""
    directory = bytes(16)
    catalog = Catalog("c", coordinator_groups=1, initial_voters={3: directory})
    for turn in range(REPLICA_NUMBER_MAX):
        new = (turn + 1).to_bytes(16)
        answer = catalog.apply(ReplaceServer(3, directory, new), 0, turn)
        if answer.error is ErrorCode.NONE:
            directory = new
    assert answer.error is ErrorCode.POLICY_VIOLATION
    assert catalog.replica_number(0, 3) == REPLICA_NUMBER_MAX
    assert catalog.directory_of(3) == directory


def test_successor_in_the_same_directory_knows_who_leads(cluster: Any) -> None:
    """The peers' lists named the leader before, and do not repeat it."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(200)
    lose(cluster, 3, group_id)
    cluster.run(20_000)
    assert cluster.nodes[3].host.leader_of(group_id) == cluster.nodes[2].host.leader_of(group_id)
    assert cluster.nodes[3].host.groups[group_id].node.lead


class Deaf:
    """An inbox that drops the first message by which a learner of a group becomes a voter."""

    def __init__(self, incoming: Inbox, group_id: int) -> None:
        self.incoming = incoming
        self.group_id = group_id
        self.missed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.incoming, name)

    def step(self, group_id: int, message: Any, server_id: int, tick: int) -> None:
        is_news = isinstance(message, MsgApp | MsgCommit | MsgHeartbeat) and message.commit >= 4
        if group_id == self.group_id and is_news and not self.missed:
            if not getattr(message, "entries", ()):
                self.missed += 1
                return
            message.commit = 3
        self.incoming.step(group_id, message, server_id, tick)


def test_learner_that_misses_the_news_of_its_promotion_asks(cluster: Any) -> None:
    """The last entry of a quiet group makes it a voter.

    If the commit index that covers the entry is lost, nothing else repeats it: a learner has no
    election timer.
    """
    group_id = cluster.create_topic()
    wipe(cluster, 3)
    host = cluster.nodes[3].host
    host._inbox = deaf = Deaf(host._inbox, group_id)
    cluster.run(10_000)
    assert deaf.missed
    replica, leader = host.groups[group_id], cluster.leader(group_id).group
    assert replica.node.commit == leader.node.commit == 4
    assert replica.node.raft.is_voter


def test_learner_that_has_become_a_voter_watches_its_leader(cluster: Any) -> None:
    """A learner has no election timer.

    The completed disk write that makes it a voter sends no message, but from then on it has a
    timer.
    """
    cluster.create_topic()
    wipe(cluster, 3)
    cluster.run(15_000)
    host = cluster.nodes[3].host
    tick = host.loop_time.tick()
    following = [group for group in host.groups.values() if not group.node.is_leader]
    assert following
    for group in following:
        assert group.node.raft.is_voter
        rests = group.group_id in host.timers.at_rest
        assert (
            0 < group.due_tick - tick <= (REST_TICKS if rests else 2 * host.options.election_ticks)
        )


def test_members_change_only_when_the_commit_that_says_so_is_durable(cluster: Any) -> None:
    """A quorum of the new members must not be forgotten.

    At every moment a crash leaves a commit index that covers the changes of members.
    """
    group_id = cluster.create_topic()
    wipe(cluster, 3)
    group = cluster.leader(group_id).group
    node = cluster.nodes[server_of(group.replica_id)]
    seen = set()
    for _ in range(9_000):
        cluster.run(1)
        membership = group.node.membership
        seen.add((membership.incoming, membership.learners))
        durable = node.store.image.logs[group.log.log_id].hard.commit
        assert group.node.raft.membership_index <= durable
    assert len(seen) == 4


def start_cold(
    cluster: Any, server_id: int, group_id: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Any, Any]]:
    """Start a server whose first replica of a group is not in memory, with a disk that hangs.

    Return (result of each read, its callback).
    """
    entries = MemoryLog.entries
    reads: list[tuple[Any, Any]] = []

    def from_memory(log: Any, first: int, end: int, bytes_max: int) -> Any:
        if log.group_id == group_id and log.replica_number == 1:
            raise NotInMemory(first, end)
        return entries(log, first, end, bytes_max)

    def from_disk(_store: Any, log: Any, first: int, end: int, bytes_max: int, done: Any) -> None:
        assert log.group_id == group_id
        reads.append((entries(log, first, end, bytes_max), done))

    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "entries", from_memory)
        patch.setattr(MemoryStore, "entries_cold", from_disk)
        cluster.nodes[server_id].start()
        cluster.run(20)  # it is compared with the others first
    return reads


def unreadable(monkeypatch: pytest.MonkeyPatch, group_id: int) -> Any:
    """Return a context in which a group's first replicas cannot read the entries to apply."""

    def nowhere(log: Any, first: int, end: int, _bytes_max: int) -> Any:
        raise NotInMemory(first, end)

    def damaged(_store: Any, _log: Any, first: int, end: int, _bytes_max: int, done: Any) -> None:
        done(EntriesDamaged(first, end, 0))

    entries, cold = MemoryLog.entries, MemoryStore.entries_cold
    patch = pytest.MonkeyPatch()
    patch.setattr(
        MemoryLog, "entries",
        lambda log, *range_: (nowhere if log.group_id == group_id else entries)(log, *range_),
    )  # fmt: skip
    patch.setattr(
        MemoryStore, "entries_cold",
        lambda store, log, *rest: (damaged if log.group_id == group_id else cold)(
            store, log, *rest
        ),
    )  # fmt: skip
    return patch


def test_replica_whose_replay_meets_a_hole_votes_and_does_not_campaign(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vote and log are intact: it is not a lost replica. Its state waits for the entries."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(200)
    for server in (1, 2, 3):
        cluster.nodes[server].crash()
    patch = unreadable(monkeypatch, group_id)
    cluster.nodes[2].start()
    cluster.nodes[3].start()
    cluster.run(5_150)
    groups = [cluster.nodes[server].host.groups[group_id] for server in (2, 3)]
    for server, group in zip((2, 3), groups, strict=True):
        assert cluster.nodes[server].host.lost_groups == []
        assert not group.is_whole
        assert group.node.state is StateType.FOLLOWER
        assert group.applied < group.commit
    # Two replicas that cannot lead elect the third, and acknowledge its entries.
    patch.undo()
    monkeypatch.setattr(Group, "retry_apply", lambda _group, _outbox: None)
    assert all(group.apply_stalled for group in groups)
    cluster.nodes[1].start()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    assert server_of(stream.group.replica_id) == 1
    fates = cluster.append(stream)
    cluster.run(500)
    assert [fate.error for fate in fates] == [ErrorCode.NONE]
    assert not any(group.is_whole for group in groups)
    monkeypatch.undo()
    cluster.run(2_000)
    assert all(group.is_whole for group in groups)
    assert all(group.applied == stream.group.commit for group in groups)
    assert numbers(cluster, 3)[group_id] == 1


def test_catalog_whose_replay_meets_a_hole_is_acted_on_only_when_it_is_whole(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state before the restart may have reflected more.

    For example, a replica that it had deleted would be created again, without memory of its votes.
    """
    group_id = cluster.create_topic()
    cluster.run(200)
    cluster.nodes[3].crash()
    patch = unreadable(monkeypatch, CATALOG_GROUP)
    cluster.nodes[3].start()
    cluster.run(3_000)
    host = cluster.nodes[3].host
    assert not host.is_known
    assert host.lost_groups == []
    assert host.state_group(CATALOG_GROUP) is None
    assert group_id not in host.groups, "nothing is made of what the catalog was"
    assert host.groups[CATALOG_GROUP].node.lead, "it follows, though"
    patch.undo()
    cluster.run(2_500)
    assert host.is_known
    assert host.groups[group_id].log.replica_number == 1


def test_read_for_a_replica_that_has_a_successor_by_then_reaches_nobody(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine belongs to the successor: entries that the old one replays must not reach it."""
    coordinator = 1
    cluster.run(500)
    cluster.nodes[3].crash()
    ((found, done),) = start_cold(cluster, 3, coordinator, monkeypatch)
    node = cluster.nodes[3]
    assert coordinator not in node.host.groups, "it waits for its disk"
    replicas = node.host._replicas
    replicas._create(coordinator, 2, replicas._system_created)
    cluster.run(50)
    successor = node.host.groups[coordinator]
    assert successor.log.replica_number == 2
    replayed: list[Any] = []
    monkeypatch.setattr(StateGroup, "replay", lambda _, entries: replayed.append(entries))
    done(found)
    assert replayed == []
    assert node.host.groups[coordinator] is successor


def test_state_of_the_past_that_was_taken_is_not_acted_on(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier process has deleted a replica.

    An older catalog, which another server gave in place of damaged entries, must not create it
    again: it would have no memory of its votes.
    """
    group_id = cluster.create_topic("doomed")
    cluster.run(200)
    past = cluster.nodes[1].host.groups[CATALOG_GROUP].snapshots.make()
    cluster.delete_topic("doomed")
    cluster.run(500)
    cluster.nodes[3].crash()
    patch = unreadable(monkeypatch, CATALOG_GROUP)
    cluster.nodes[3].start()
    cluster.run(1_000)
    host = cluster.nodes[3].host
    group = host.groups[CATALOG_GROUP]
    assert not group.is_whole
    assert group.take_state(past, lambda: group.retry_apply(host._outbox))
    host._outbox.note_staged(group)
    cluster.run(300)
    patch.undo()
    assert not group.is_whole
    assert all(log.group_id != group_id for log in host.store.logs.values())
    assert group_id not in host.groups


def test_state_that_comes_in_the_turn_of_a_snapshot_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot replaces the log, and so the entries that the state was made of."""
    cluster.create_topic("a")
    cluster.run(300)
    past = cluster.nodes[1].host.groups[CATALOG_GROUP].snapshots.make()
    cluster.create_topic("b")
    cluster.run(300)
    cluster.nodes[3].crash()
    patch = unreadable(monkeypatch, CATALOG_GROUP)
    cluster.nodes[3].start()
    cluster.run(1_000)
    patch.undo()
    group = cluster.nodes[3].host.groups[CATALOG_GROUP]
    node = group.node
    far = Snapshot(node.last_index + 50, node.term, past.conf_state, past.next_offset, past.data)
    node.step(MsgSnap(node.id, node.lead, node.term, far))
    assert node.raft.log.snapshot is not None
    assert not group.take_state(past, lambda: None)


def test_state_with_members_that_cannot_be_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty peer's state, in place of damaged entries, is refused before any of it is taken."""
    cluster.create_topic("a")
    cluster.run(300)
    present = cluster.nodes[1].host.groups[CATALOG_GROUP].snapshots.make()
    cluster.nodes[3].crash()
    patch = unreadable(monkeypatch, CATALOG_GROUP)
    cluster.nodes[3].start()
    cluster.run(1_000)
    patch.undo()
    host = cluster.nodes[3].host
    group = host.groups[CATALOG_GROUP]
    voters = present.conf_state.voters
    conf_state = replace(present.conf_state, learners=voters[:1])
    with pytest.raises(DecodeError):
        group.take_state(replace(present, conf_state=conf_state), lambda: None)
    host._outbox.note_staged(group)
    cluster.run(300)
    assert group.node.voters() == frozenset(voters)


def test_state_that_was_taken_is_acted_on_once_its_commit_index_is_durable(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut would lose how much was acted on.

    A replica that the taken catalog has deleted would be created again, without memory of its
    votes.
    """
    group_id = cluster.create_topic("doomed")
    cluster.run(300)
    node = cluster.nodes[3]
    log = node.host.groups[CATALOG_GROUP].log
    stored = node.store.image.logs[log.log_id]
    last = log.last_index
    cluster.nodes[1].host.propose_catalog(
        DeleteTopics(["doomed"]), deadline_ns=cluster.deadline(), done=lambda _: None
    )
    while stored.last_index == last:
        cluster.run(0.05)
    node.crash()
    assert stored.hard.commit < stored.last_index, "the entry is durable, not that it is committed"
    cluster.run(300)
    present = cluster.nodes[1].host.groups[CATALOG_GROUP].snapshots.make()
    for other in (1, 2):
        cluster.nodes[other].crash()
    patch = unreadable(monkeypatch, CATALOG_GROUP)
    node.start()
    cluster.run(1_000)  # it waits for the others, for an election timeout
    host = node.host
    group = host.groups[CATALOG_GROUP]
    assert not group.is_whole
    assert group.take_state(present, lambda: None)
    host._outbox.note_staged(group)
    while not group.is_whole:
        cluster.run(0.05)
    node.crash()
    assert stored.hard.commit >= present.index
    patch.undo()
    node.start()
    cluster.run(1_000)
    assert host is not node.host
    assert node.host.groups[CATALOG_GROUP].is_whole
    assert group_id not in node.host.groups


def note_logs_made(monkeypatch: pytest.MonkeyPatch, made: list[tuple[int, int]]) -> None:
    """Record (group, replica number) of each log that is created from now on."""
    create_log = MemoryStore.create_log

    def noted(store: Any, group_id: int, number: int, **rest: Any) -> None:
        made.append((group_id, number))
        create_log(store, group_id, number, **rest)

    monkeypatch.setattr(MemoryStore, "create_log", noted)


def test_catalog_rebuilt_from_its_logs_start_does_not_make_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its checkpoint is unreadable; its commit index shows how much was acted on."""
    cluster: Any = Cluster(apply_bytes_max=1, cold_read_bytes=1)
    doomed = cluster.create_topic("doomed")
    cluster.run(300)
    cluster.delete_topic("doomed")
    cluster.run(500)
    made: list[tuple[int, int]] = []
    note_logs_made(monkeypatch, made)
    node = cluster.nodes[3]
    node.store.checkpoint()
    cluster.run(500)
    load_meta = MemoryStore.load_meta

    def damaged(store: Any, log: Any) -> Any:
        if log.group_id == CATALOG_GROUP:
            raise CorruptRecord("a checkpoint", 0)
        return load_meta(store, log)

    monkeypatch.setattr(MemoryStore, "load_meta", damaged)
    restart(cluster, 3)
    cluster.run(2_000)
    assert node.host.is_known
    assert numbers(cluster, 3)[CATALOG_GROUP] == 1
    assert doomed not in node.host.groups
    assert made == []


def test_catalog_replica_made_anew_does_not_make_what_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It replays the whole past, in a directory that held replicas then and deleted them.

    A replica that is created again has no memory of its votes.
    """
    cluster: Any = Cluster(apply_bytes_max=1)
    doomed = cluster.create_topic("doomed")
    kept = cluster.create_topic("kept")
    cluster.run(300)
    cluster.delete_topic("doomed")
    cluster.run(500)
    made: list[tuple[int, int]] = []
    note_logs_made(monkeypatch, made)
    lose(cluster, 3, CATALOG_GROUP)
    cluster.run(8_000)
    assert numbers(cluster, 3)[CATALOG_GROUP] == 2
    assert numbers(cluster, 3)[kept] == 1
    assert cluster.nodes[3].host.is_known
    assert doomed not in {group_id for group_id, _ in made}
