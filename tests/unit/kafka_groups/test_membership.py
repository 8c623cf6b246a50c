"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup as clients of every version see them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka_groups.client import (
    GROUP,
    heartbeat,
    join,
    leave,
    new_member,
    stable_group,
    sync,
)
from tests.unit.kafka_groups.cluster import Cluster
from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.logstream.group.state_group import COMMAND_BYTES_MAX
from vdl.state.consumer_group import GroupState


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def state(cluster: Cluster) -> GroupState:
    group = cluster.machine(GROUP).group(GROUP)
    assert group is not None
    return group.state


# --- joining -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_lone_member_joins_and_leads(cluster: Cluster, version: int) -> None:
    """Every version: it leads generation 1 and receives all subscriptions, which are its own."""
    member_id = ""
    if version >= 4:
        asked = join(cluster, version=version).response
        assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
        member_id = asked.member_id
    response = join(cluster, member_id, version=version).response
    assert (response.error_code, response.generation_id) == (0, 1)
    assert response.leader == response.member_id
    assert response.member_id.startswith("client-")
    assert [member.metadata for member in response.members] == [b"r"]
    assert response.protocol_name == "range"
    if version >= 7:
        assert response.protocol_type == "consumer"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 6_000}, ErrorCode.MEMBER_ID_REQUIRED),
        ({"session_timeout_ms": 1_800_000}, ErrorCode.MEMBER_ID_REQUIRED),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": {"range": bytes(1_048_589)}}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"protocols": {"range": bytes(1_048_588)}}, ErrorCode.MEMBER_ID_REQUIRED),
    ],
)
def test_join_that_cannot_be_is_refused_at_once(
    cluster: Cluster, fields: dict[str, Any], error: ErrorCode
) -> None:
    """Errors 24, 26 at both bounds and one past them, 23, 25."""
    response = join(cluster, **fields).response
    assert response.error_code == error
    assert response.generation_id == -1


def test_second_member_waits_until_the_first_has_rejoined(cluster: Cluster) -> None:
    """No join is answered before the generation is set; then both are answered at once."""
    first, answer = new_member(cluster)
    sync(cluster, first, 1)
    second, waiting = new_member(cluster)
    assert not waiting.done
    assert heartbeat(cluster, first, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = join(cluster, first)
    assert answer.done
    assert (waiting.response.generation_id, rejoined.response.generation_id) == (2, 2)
    assert waiting.response.leader == rejoined.response.leader == first
    assert waiting.response.members == []
    assert [member.member_id for member in rejoined.response.members] == [first, second]


def test_member_that_does_not_rejoin_is_dropped_at_the_rebalance_timeout(cluster: Cluster) -> None:
    """The other members wait that long and no longer."""
    (first, second), generation = stable_group(cluster)
    rejoined = join(cluster, first, rebalance_timeout_ms=60_000)
    cluster.advance(9_000)
    assert heartbeat(cluster, second, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(6):
        assert not rejoined.done
        cluster.advance(8_500)
        if heartbeat(cluster, second, generation) is not ErrorCode.REBALANCE_IN_PROGRESS:
            break
    assert rejoined.response.generation_id == generation + 1
    assert heartbeat(cluster, second, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_asked_twice_answers_the_first_request_too(cluster: Cluster) -> None:
    """A client that timed out retries elsewhere; no request stays open."""
    (first, _), generation = stable_group(cluster)
    one = join(cluster, first)
    two = join(cluster, first)
    assert one.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert not two.done
    cluster.advance(61_000)
    assert two.response.generation_id == generation + 1


def test_first_rebalance_waits_for_members_that_start_together() -> None:
    """KIP-134: each new member prolongs the wait, and all of them are in one generation."""
    cluster = Cluster(group_initial_rebalance_delay_ms=3_000)
    _, one = new_member(cluster)
    cluster.advance(2_900)
    _, two = new_member(cluster)
    cluster.advance(200)
    assert not one.done
    cluster.advance(2_900)
    assert (one.response.generation_id, two.response.generation_id) == (1, 1)
    assert len(one.response.members) == 2


def test_group_never_has_more_members_than_its_limit() -> None:
    """Error 81, once for each that finds the group full, however their requests interleave."""
    cluster = Cluster(group_initial_rebalance_delay_ms=3_000, group_max_size=3)
    first = join(cluster).response.member_id
    calls = [join(cluster, first)]
    ids = [join(cluster).response.member_id for _ in range(3)]
    calls += [join(cluster, member_id) for member_id in ids]
    late = calls.pop()
    assert late.response.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert join(cluster).response.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    cluster.advance(6_000)
    assert [call.response.error_code for call in calls] == [0, 0, 0]
    group = cluster.machine(GROUP).group(GROUP)
    assert group is not None
    assert list(group.members) == [first, *ids[:-1]]
    cluster.assert_replicas_equal()


def test_member_that_waits_for_others_is_not_expelled(cluster: Cluster) -> None:
    """Its open request counts as a heartbeat, however long the rebalance takes."""
    (first, _), generation = stable_group(cluster)
    waiting = join(cluster, first, session_timeout_ms=6_000, rebalance_timeout_ms=60_000)
    cluster.advance(11_000)  # the other's session ends; it never rejoined
    assert waiting.response.generation_id == generation + 1


def test_member_whose_connection_is_gone_is_expelled_while_it_waits(cluster: Cluster) -> None:
    """An open request of a closed connection does not count as a heartbeat."""
    (first, second), generation = stable_group(cluster)
    join(cluster, first).hang_up()
    for _ in range(3):
        cluster.advance(4_000)
        heartbeat(cluster, second, generation)
    rejoined = join(cluster, second)
    assert rejoined.response.generation_id == generation + 1
    assert [member.member_id for member in rejoined.response.members] == [second]


# --- static members ----------------------------------------------------------------------------


@pytest.mark.parametrize("version", [5, 8, 9])
def test_static_leader_that_restarts_does_not_assign_again(cluster: Cluster, version: int) -> None:
    """KIP-345, KIP-814: v9 has a flag to skip it; older versions receive another leader's name."""
    old = join(cluster, version=version, group_instance_id="i").response.member_id
    assert old.startswith("i-")
    sync(cluster, old, 1, {old: b"mine"}, group_instance_id="i")
    back = join(cluster, version=version, group_instance_id="i").response
    assert (back.error_code, back.generation_id) == (0, 1)
    assert back.member_id != old
    if version >= 9:
        assert back.skip_assignment
        assert back.leader == back.member_id
        assert [member.member_id for member in back.members] == [back.member_id]
    else:
        assert back.leader == old
        assert back.members == []
    assigned = sync(cluster, back.member_id, 1, group_instance_id="i").response
    assert assigned.assignment == b"mine"
    fenced = heartbeat(cluster, old, 1, group_instance_id="i")
    assert fenced is ErrorCode.FENCED_INSTANCE_ID


def test_static_member_that_returns_too_late_for_its_answer_has_a_session(
    cluster: Cluster,
) -> None:
    """It may never send another request; its partitions go to others then."""
    old = join(cluster, group_instance_id="i").response.member_id
    sync(cluster, old, 1, {old: b"mine"}, group_instance_id="i")
    cluster.commits = False
    back = join(cluster, group_instance_id="i")
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.servers[1].state_groups[number].expire(1 << 62)
    assert back.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.commits = True
    cluster.pump()
    group = cluster.machine(GROUP).group(GROUP)
    assert group is not None
    assert list(group.members) != [old]
    cluster.advance(11_000)
    assert not group.members


def test_open_join_of_a_replaced_static_member_is_fenced(cluster: Cluster) -> None:
    """Error 82: of two processes with one instance id the newer one wins."""
    (first, _), _ = stable_group(cluster)
    old = join(cluster, group_instance_id="i")
    assert not old.done
    new = join(cluster, group_instance_id="i")
    assert old.response.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert not new.done
    join(cluster, first)
    cluster.advance(61_000)
    assert new.response.error_code == 0


# --- syncing -----------------------------------------------------------------------------------


def test_follower_waits_for_the_leaders_assignment(cluster: Cluster) -> None:
    """Covers syncs before the leader's, after it, and repeated ones."""
    (first, second), _ = stable_group(cluster)
    one = join(cluster, first)
    generation = join(cluster, second).response.generation_id
    assert one.response.generation_id == generation
    waiting = sync(cluster, second, generation)
    assert not waiting.done
    leader = sync(cluster, first, generation, {first: b"1", second: b"2"}).response
    assert (leader.error_code, leader.assignment) == (0, b"1")
    assert (leader.protocol_type, leader.protocol_name) == ("consumer", "range")
    assert waiting.response.assignment == b"2"
    assert sync(cluster, second, generation).response.assignment == b"2"


def test_waiting_sync_is_called_off_by_a_rebalance(cluster: Cluster) -> None:
    """Error 27: it must join again."""
    (first, second), _ = stable_group(cluster)
    join(cluster, first)
    generation = join(cluster, second).response.generation_id
    waiting = sync(cluster, second, generation)
    leave(cluster, (first, None))
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_leader_that_does_not_sync_is_removed_in_time(cluster: Cluster) -> None:
    """Heartbeats keep a session, but the assignment is required within the rebalance timeout."""
    (first, second), _ = stable_group(cluster)
    join(cluster, first)
    generation = join(cluster, second).response.generation_id
    waiting = sync(cluster, second, generation)
    for _ in range(13):
        cluster.advance(5_000)
        heartbeat(cluster, first, generation)
    assert waiting.response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert heartbeat(cluster, first, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert join(cluster, second).response.leader == second


def test_assignment_larger_than_a_batch_is_refused(cluster: Cluster) -> None:
    """Error 10: it would be one entry of the log."""
    member, _ = new_member(cluster)
    response = sync(cluster, member, 1, {member: bytes(1_048_589)}).response
    assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_sync_without_protocol_is_refused_from_v5(cluster: Cluster) -> None:
    """KIP-559: error 23; older versions do not send it."""
    (first, _), generation = stable_group(cluster)
    response = sync(cluster, first, generation, protocol_type=None).response
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(cluster, first, generation, version=4).response.error_code == 0


# --- sessions ------------------------------------------------------------------------------------


def test_silent_member_is_expelled_after_its_session_and_not_before(cluster: Cluster) -> None:
    """The other members rebalance without it."""
    (first, second), generation = stable_group(cluster)
    for _ in range(2):
        cluster.advance(4_900)
        assert heartbeat(cluster, first, generation) is ErrorCode.NONE
    cluster.advance(400)
    assert heartbeat(cluster, first, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert heartbeat(cluster, second, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert join(cluster, first).response.generation_id == generation + 1


def test_heartbeats_keep_a_member_for_ever(cluster: Cluster) -> None:
    """Holds also if each arrives just before the session timeout."""
    (first, second), generation = stable_group(cluster)
    for _ in range(20):
        cluster.advance(9_900)
        assert heartbeat(cluster, first, generation) is ErrorCode.NONE
        assert heartbeat(cluster, second, generation) is ErrorCode.NONE


def test_pending_member_that_never_joins_is_forgotten(cluster: Cluster) -> None:
    """Its id is invalid after a session timeout."""
    pending = join(cluster).response.member_id
    cluster.advance(10_100)
    assert join(cluster, pending).response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_server_that_stood_still_does_not_blame_its_clients(cluster: Cluster) -> None:
    """SIGSTOP for a minute: heartbeats sent meanwhile are read after the timers ran."""
    (first, second), generation = stable_group(cluster)
    clock = cluster.servers[1].clock
    clock.pause()
    cluster.advance(60_000)
    clock.resume()
    cluster.advance(10)
    assert heartbeat(cluster, first, generation) is ErrorCode.NONE
    assert heartbeat(cluster, second, generation) is ErrorCode.NONE
    cluster.advance(10_100)
    assert heartbeat(cluster, first, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_expiry_that_was_not_appended_is_proposed_again(cluster: Cluster) -> None:
    """A full log delays the expiry but does not drop it."""
    (first, _), generation = stable_group(cluster)
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.logs[number].refusing = True
    cluster.advance(20_000)
    cluster.logs[number].refusing = False
    cluster.advance(1_000)
    assert heartbeat(cluster, first, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert state(cluster) is GroupState.EMPTY


# --- leaving -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_member_leaves_in_every_version(cluster: Cluster, version: int) -> None:
    """Until v2 the response has one error for the one member, from v3 on one for each."""
    (first, second), generation = stable_group(cluster)
    response = leave(cluster, (second, None), version=version).response
    assert response.error_code == 0
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in response.members] == [(second, 0)]
    assert heartbeat(cluster, first, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    again = leave(cluster, (second, None), version=version).response
    error = again.members[0].error_code if version >= 3 else again.error_code
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


def test_open_join_of_a_member_that_is_removed_is_answered(cluster: Cluster) -> None:
    """Error 25: it may join again as a new member."""
    (first, _), _ = stable_group(cluster)
    waiting = join(cluster, first)
    leave(cluster, (first, None))
    assert waiting.response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- the coordinator moves -----------------------------------------------------------------------


@pytest.fixture
def three() -> Cluster:
    return Cluster(3)


def number_of(cluster: Cluster) -> int:
    return cluster.servers[1].coordinator_group(GROUP)


def test_group_survives_a_failover_without_a_rebalance(three: Cluster) -> None:
    """Same generation and assignments; every member gets a whole session timeout."""
    (first, second), generation = stable_group(three)
    three.advance(9_000)
    three.elect(number_of(three), 2)
    three.advance(9_000)
    for member in (first, second):
        assert heartbeat(three, member, generation, server=2) is ErrorCode.NONE
        assert heartbeat(three, member, generation, server=1) is ErrorCode.NOT_COORDINATOR
    assert sync(three, second, generation, server=2).response.assignment == second.encode()
    three.advance(10_100)
    assert state(three) is GroupState.EMPTY
    three.assert_replicas_equal()


def test_coordinator_that_loads_says_so(three: Cluster) -> None:
    """Error 14 where clients expect it. A heartbeat succeeds, a sync must rejoin."""
    (first, _), generation = stable_group(three)
    three.elect(number_of(three), 2, serve=False)
    assert join(three, server=2).response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert heartbeat(three, first, generation, server=2) is ErrorCode.NONE
    response = sync(three, first, generation, server=2).response
    assert response.error_code == ErrorCode.REBALANCE_IN_PROGRESS
    response = leave(three, (first, None), server=2).response
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    three.serve(number_of(three))
    assert heartbeat(three, first, generation, server=2) is ErrorCode.NONE


def test_open_requests_are_answered_when_the_coordinator_moves(three: Cluster) -> None:
    """Error 16 for waiting requests, 15 for those whose command has an unknown outcome."""
    (first, second), _ = stable_group(three)
    waiting = join(three, first)
    three.commits = False
    proposed = join(three, second)
    three.elect(number_of(three), 3)
    assert waiting.response.error_code == ErrorCode.NOT_COORDINATOR
    assert proposed.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_rebalance_goes_on_where_it_stood_at_the_new_coordinator(three: Cluster) -> None:
    """Joins are replicated: one of two members rejoins after the failover, and that is enough."""
    (first, second), generation = stable_group(three)
    join(three, first)
    three.elect(number_of(three), 2)
    answer = join(three, second, server=2).response
    assert answer.generation_id == generation + 1
    # The first lost its response with the old coordinator; its repeated request is answered now.
    again = join(three, first, server=2).response
    assert (again.generation_id, again.leader) == (generation + 1, first)
    assert len(again.members) == 2


def test_timers_run_at_the_new_coordinator(three: Cluster) -> None:
    """A rebalance in the preparing or completing state ends there in time."""
    (first, second), generation = stable_group(three)
    waiting = join(three, first)
    three.elect(number_of(three), 2)
    assert waiting.response.error_code == ErrorCode.NOT_COORDINATOR
    again = join(three, first, server=2)
    for _ in range(7):
        three.advance(9_000)
        heartbeat(three, second, generation, server=2)
    assert again.response.generation_id == generation + 1
    three.elect(number_of(three), 3)
    for _ in range(7):
        three.advance(9_000)
        heartbeat(three, first, generation + 1, server=3)
    assert state(three) is GroupState.EMPTY, "it never synced"
    three.assert_replicas_equal()


def test_command_the_old_leader_lost_is_done_again_by_the_client(three: Cluster) -> None:
    """A proposal that was not committed had no effect; the client's retry counts as new."""
    (first, second), generation = stable_group(three)
    three.commits = False
    lost = join(three, first)
    three.elect(number_of(three), 2, keep=False)
    three.commits = True
    assert lost.response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert heartbeat(three, second, generation, server=2) is ErrorCode.NONE
    join(three, first, server=2)
    assert heartbeat(three, second, generation, server=2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_two_servers_draw_different_member_ids(three: Cluster) -> None:
    """A member id identifies one member of one run of a server."""
    ids = {join(three).response.member_id for _ in range(10)}
    three.elect(number_of(three), 2)
    ids |= {join(three, server=2).response.member_id for _ in range(10)}
    assert len(ids) == 20


def test_session_timer_costs_nothing_per_heartbeat(cluster: Cluster) -> None:
    """A heartbeat stores a number; it does not move a timer."""
    (first, _), generation = stable_group(cluster)
    cluster.advance(1)
    scheduled = cluster.time._sequence
    for _ in range(100):
        heartbeat(cluster, first, generation)
    assert cluster.time._sequence == scheduled
    assert cluster.time.now_ns > 0 * MS


def test_assignment_no_command_can_hold_is_refused_for_good() -> None:
    """A client would retry a retriable error forever, for any message size limit."""
    cluster = Cluster(1, message_max_bytes=2 * COMMAND_BYTES_MAX)
    member_id, _ = new_member(cluster)
    joined = join(cluster, member_id).response
    assignments = {member_id: bytes(COMMAND_BYTES_MAX)}
    answer = sync(cluster, member_id, joined.generation_id, assignments).response
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
