"""ConsumerGroupHeartbeat: joining, moving partitions, leaving, fencing (KIP-848)."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.unit.kafka_groups.client import GROUP
from tests.unit.kafka_groups.cluster import Cluster
from tests.unit.kafka_groups.consumer import Consumer, group_of, heartbeat, indexes, settle
from vdl.errors import ErrorCode
from vdl.kafka.groups import led_consumer_groups, target_computation
from vdl.kafka.groups.led_coordinator import LedCoordinator
from vdl.kafka.groups.target_computation import Request
from vdl.state import commands, coordinator


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(3)
    found.create_topic("t", partitions=4)
    return found


def test_first_member_is_answered_with_all_partitions(cluster: Cluster) -> None:
    """The response waits for the target, not for the next heartbeat; it never has epoch 0."""
    one = Consumer(cluster, "one", "t")
    one.join()
    assert (one.error, one.epoch, indexes(one)) == (ErrorCode.NONE, 1, [0, 1, 2, 3])
    cluster.assert_replicas_equal()


def test_second_member_gets_what_the_first_has_given_up(cluster: Cluster) -> None:
    """It gets them after a heartbeat of the first one shows that it revoked them."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    assert two.epoch == 2
    assert not two.owned
    one.send()
    one.take()
    assert (one.epoch, indexes(one)) == (1, [0, 1])
    two.beat()
    assert not two.owned, "the first one has not shown that it gave them up"
    one.send(topic_partitions=one.said())
    one.take()
    assert one.epoch == 2
    two.beat()
    assert indexes(two) == [2, 3]
    assert group_of(cluster).state.value == "Stable"


def test_heartbeat_that_changes_nothing_is_no_command(cluster: Cluster) -> None:
    """The response comes from the applied state."""
    one = Consumer(cluster, "one", "t")
    one.join()
    before = sum(len(log.committed) for log in cluster.logs.values())
    one.send()
    assert one.call is not None
    assert one.call.response.assignment is None
    one.send(**one.full())
    assert len(one.call.response.assignment.topic_partitions[0].partitions) == 4
    assert sum(len(log.committed) for log in cluster.logs.values()) == before


def test_member_that_leaves_frees_its_partitions_at_once(cluster: Cluster) -> None:
    """Epoch -1 removes the member."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    assert two.leave() is ErrorCode.NONE
    assert two.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    settle(cluster, one)
    assert indexes(one) == [0, 1, 2, 3]


def test_member_that_is_silent_is_expelled_after_its_session(cluster: Cluster) -> None:
    """The leader's timer proposes it after 45 s. The command decides."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    for _ in range(9):
        cluster.advance(5_000)
        one.beat()
    cluster.advance(1_000)
    assert set(group_of(cluster).members) == {"one"}
    two.send()
    two.take()
    assert two.error is ErrorCode.UNKNOWN_MEMBER_ID
    settle(cluster, one)
    assert indexes(one) == [0, 1, 2, 3]


def test_member_that_does_not_give_up_in_time_is_expelled(cluster: Cluster) -> None:
    """Its rebalance timeout applies although it sends heartbeats."""
    one = Consumer(cluster, "one", "t", rebalance_timeout_ms=20_000)
    two = Consumer(cluster, "two", "t")
    one.join()
    two.join()
    for _ in range(6):
        one.send()
        two.beat()
        cluster.advance(5_000)
    assert set(group_of(cluster).members) == {"two"}
    settle(cluster, two)
    assert indexes(two) == [0, 1, 2, 3]


def test_member_of_another_epoch_is_fenced(cluster: Cluster) -> None:
    """A greater epoch, or a smaller one except the last, whose response may have been lost."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    epoch = one.epoch
    for wrong, owned, error in (
        (epoch + 1, one.said(), ErrorCode.FENCED_MEMBER_EPOCH),
        (epoch - 1, one.said(), ErrorCode.NONE),
        (epoch - 1, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (epoch - 1, two.said(), ErrorCode.FENCED_MEMBER_EPOCH),
        (0, [], ErrorCode.FENCED_MEMBER_EPOCH),
    ):
        fields: dict[str, Any] = {"topic_partitions": owned}
        if not wrong:
            fields = one.full() | fields
        response = heartbeat(cluster, "one", wrong, **fields).response
        assert response.error_code == error, (wrong, owned)
        if error is ErrorCode.NONE:
            assert response.member_epoch == epoch
            assert response.assignment is not None, "it may not know it"


def test_old_heartbeat_shows_nothing_given_up(cluster: Cluster) -> None:
    """A heartbeat of an earlier epoch does not show a revocation.

    It may have been long in transit, and the member may have received the missing partitions since.
    """
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    one.send()
    one.take()
    assert (one.epoch, indexes(one)) == (1, [0, 1])
    late = heartbeat(cluster, "one", 0, **(one.full() | {"topic_partitions": []}))
    assert late.response.error_code == ErrorCode.NONE
    assert late.response.member_epoch == 1
    two.beat()
    assert not two.owned
    assert group_of(cluster).members["one"].revoking


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "best"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"subscribed_topic_regex": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"member_epoch": 5}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_unsound_request_is_refused(
    cluster: Cluster, fields: dict[str, Any], error: ErrorCode
) -> None:
    """The errors are Kafka's, and the group is not created."""
    whole = Consumer(cluster, "one", "t").full() | {"member_id": "one", "member_epoch": 0} | fields
    call = heartbeat(cluster, whole.pop("member_id"), whole.pop("member_epoch"), **whole)
    assert call.response.error_code == error
    assert call.response.error_message
    assert GROUP not in cluster.machine(GROUP).consumer


def test_version_0_draws_no_member_id(cluster: Cluster) -> None:
    """The coordinator generates it."""
    one = Consumer(cluster, "", "t")
    call = one.send(version=0, **one.full())
    cluster.advance(1)
    assert call.response.member_id
    assert call.response.member_epoch == 1


def test_static_member_comes_back_to_its_place(cluster: Cluster) -> None:
    """Epoch -2 keeps it for a session timeout, and no partition of others moves."""
    one = Consumer(cluster, "one", "t", instance_id="i")
    two = Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    had, epoch = set(one.owned), group_of(cluster).epoch
    again = Consumer(cluster, "again", "t", instance_id="i")
    again.join()
    assert again.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.leave(-2) is ErrorCode.NONE
    again.join()
    assert (again.error, again.owned) == (ErrorCode.NONE, had)
    assert group_of(cluster).epoch == epoch
    one.send(instance_id="i")
    one.take()
    assert one.error is ErrorCode.FENCED_INSTANCE_ID
    cluster.assert_replicas_equal()


def test_static_member_that_stays_away_loses_its_place(cluster: Cluster) -> None:
    """It loses its place after a session timeout."""
    one = Consumer(cluster, "one", "t", instance_id="i")
    two = Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    one.leave(-2)
    for _ in range(10):
        cluster.advance(5_000)
        two.beat()
    settle(cluster, two)
    assert indexes(two) == [0, 1, 2, 3]


def test_new_partitions_and_topics_are_given_out(cluster: Cluster) -> None:
    """A change of the catalog raises the group's epoch; a pattern is matched again."""
    one = Consumer(cluster, "one", subscribed_topic_regex="^u.*|t")
    one.join()
    assert len(one.owned) == 4
    cluster.create_topic("u1", partitions=2)
    settle(cluster, one)
    assert len(one.owned) == 6
    epoch = group_of(cluster).epoch
    cluster.create_topic("other", partitions=2)
    settle(cluster, one)
    assert group_of(cluster).epoch == epoch


@pytest.mark.parametrize("leader_changes", [False, True])
@pytest.mark.parametrize("room", [0, 30])
def test_targets_without_room_are_computed_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, *, room: int, leader_changes: bool
) -> None:
    """Otherwise the partitions of a member that left have no reader, whatever room there is."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    two.leave()
    bytes_max = cluster.machine(GROUP).shared_bytes + room
    with monkeypatch.context() as full:
        full.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
        cluster.advance(10_000)
        one.beat()
    assert indexes(one) == [0, 1]
    number = cluster.servers[1].coordinator_group(GROUP)
    if leader_changes:
        cluster.elect(number, 2)
        one.server = 2
    committed = cluster.logs[number].committed
    for _ in range(6):
        cluster.advance(10_000)
        one.beat()
    assert indexes(one) == [0, 1, 2, 3]
    settled = len(committed)
    cluster.advance(40_000)
    one.beat()
    assert len(committed) == settled, "nothing is left to compute"


def test_targets_that_still_have_no_room_are_not_proposed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each proposal would be an entry of a log whose coordinator is full."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    two.leave()
    bytes_max = cluster.machine(GROUP).shared_bytes
    monkeypatch.setattr(coordinator, "COORDINATOR_BYTES_MAX", bytes_max)
    committed = cluster.logs[cluster.servers[1].coordinator_group(GROUP)].committed
    cluster.advance(10_000)
    one.beat()
    after = len(committed)
    for _ in range(10):
        cluster.advance(10_000)
        one.beat()
    assert len(committed) == after
    monkeypatch.undo()
    cluster.advance(40_000)
    one.beat()
    assert indexes(one) == [0, 1, 2, 3]


def test_next_leader_goes_on_where_the_last_one_was(cluster: Cluster) -> None:
    """Members, epochs and targets stay, and every member gets a whole session timeout."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    number = cluster.servers[1].coordinator_group(GROUP)
    cluster.elect(number, 2)
    one.server = two.server = 2
    settle(cluster, one, two)
    assert sorted(indexes(one) + indexes(two)) == [0, 1, 2, 3]
    cluster.advance(40_000)
    cluster.elect(number, 3)
    cluster.advance(40_000)
    assert set(group_of(cluster).members) == {"one", "two"}
    cluster.assert_replicas_equal()


def test_old_leader_fences_nobody(cluster: Cluster) -> None:
    """Its epochs are old: errors are sent only after a quorum confirmed its leadership."""
    one = Consumer(cluster, "one", "t")
    one.join()
    cluster.commits = False
    call = heartbeat(cluster, "one", one.epoch + 1)
    assert not call.done
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    assert call.response.error_code == ErrorCode.NOT_COORDINATOR


def test_old_leader_assigns_nothing_to_a_member_that_missed_its_epoch(cluster: Cluster) -> None:
    """The response carries the assignment, and other members may have these partitions by now."""
    one, two = Consumer(cluster, "one", "t"), Consumer(cluster, "two", "t")
    one.join()
    two.join()
    settle(cluster, one, two)
    two.leave()
    settle(cluster, one)
    member = group_of(cluster).members["one"]
    assert 0 < member.previous_epoch < member.epoch
    cluster.commits = False
    call = heartbeat(cluster, "one", member.previous_epoch, topic_partitions=[])
    assert not call.done
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    assert call.response.error_code == ErrorCode.NOT_COORDINATOR


def test_member_that_missed_an_assignment_gets_it_before_it_has_to_give_up(
    cluster: Cluster,
) -> None:
    """It reports its partitions only when they change, as Kafka's consumers do.

    So it can only revoke partitions that it was assigned before.
    """
    one, two, three = (Consumer(cluster, name, "t") for name in ("one", "two", "three"))
    one.join()
    two.join()
    settle(cluster, one, two)
    two.leave()
    cluster.advance(1_100)
    one.send()  # the answer, with all four partitions, is lost
    three.join()
    one.send(**one.full())
    one.take()
    said = {(topic_id, index) for topic_id, index in one.owned if index < 2}
    for _ in range(6):
        cluster.advance(1_100)
        changed = said != one.owned
        said = set(one.owned)
        one.send(topic_partitions=one.said() if changed else None)
        one.take()
        three.beat()
    assert group_of(cluster).state.value == "Stable"
    assert (indexes(one), indexes(three)) == ([0, 1], [2, 3])


def test_protocol_that_is_not_finalised_is_refused(cluster: Cluster) -> None:
    """While any server may not know its commands."""
    for server in cluster.servers.values():
        server.catalog.features.levels.pop("group.version")
    one = Consumer(cluster, "one", "t")
    one.send(**one.full())
    one.take()
    assert one.error is ErrorCode.UNSUPPORTED_VERSION


# --- patterns and permission ---------------------------------------------------------------------


def allow(cluster: Cluster, user: str, topic: str, *, gone: bool = False) -> None:
    """Allow DESCRIBE on one topic, or remove the permission."""
    topics, literal, describe, allows = 2, 3, 8, 3
    who = f"User:{user}"
    if gone:
        one = commands.AclFilter(topics, topic, literal, who, "*", describe, allows)
        cluster.apply_catalog(commands.DeleteAcls([one]))
    else:
        binding = commands.AclBinding(topics, topic, literal, who, "*", describe, allows)
        cluster.apply_catalog(commands.CreateAcls([binding]))


def topics_of(consumer: Consumer) -> set[str]:
    return {topic_id.rstrip().decode() for topic_id, _ in consumer.owned}


def test_pattern_does_not_stand_for_topics_its_member_may_not_see() -> None:
    """A topic that one member may see is assigned to such members only.

    A member without permission receives neither the topic's name nor its partitions, also under the
    next leader. A changed permission changes its target.
    """
    cluster = Cluster(3, authorizer=True)
    for name in ("tall", "tsecret"):
        cluster.create_topic(name, partitions=4)
    for user, topic in (("alice", "tall"), ("alice", "tsecret"), ("eve", "tall")):
        allow(cluster, user, topic)
    alice = Consumer(cluster, "one", subscribed_topic_regex="t.*", user="alice")
    eve = Consumer(cluster, "two", subscribed_topic_regex="t.*", user="eve")
    alice.join()
    eve.join()
    settle(cluster, alice, eve)
    assert topics_of(eve) == {"tall"}
    assert len([place for place in alice.owned if place[0] == b"tsecret".ljust(16)]) == 4
    assert len(alice.owned | eve.owned) == 8
    epoch = group_of(cluster).epoch
    settle(cluster, alice, eve)
    assert group_of(cluster).epoch == epoch
    cluster.elect(cluster.servers[1].coordinator_group(GROUP), 2)
    alice.server = eve.server = 2
    settle(cluster, alice, eve)
    assert topics_of(eve) == {"tall"}
    assert len(alice.owned | eve.owned) == 8
    allow(cluster, "eve", "tsecret")
    alice.leave()
    settle(cluster, eve)
    assert len(eve.owned) == 8
    allow(cluster, "eve", "tsecret", gone=True)
    settle(cluster, eve)
    assert topics_of(eve) == {"tall"}
    cluster.assert_replicas_equal()


def test_topic_that_no_member_may_see_is_not_the_groups() -> None:
    cluster = Cluster(3, authorizer=True)
    for name in ("tall", "tsecret"):
        cluster.create_topic(name, partitions=4)
    allow(cluster, "eve", "tall")
    eve = Consumer(cluster, "two", subscribed_topic_regex="t.*", user="eve")
    eve.join()
    settle(cluster, eve)
    assert topics_of(eve) == {"tall"}
    assert set(group_of(cluster).topics) == {"tall"}


def test_joiners_that_are_late_at_once_cost_the_same_each() -> None:
    """Joiners whose targets cannot be appended get a retriable error.

    The cost of each does not grow with their number.
    """
    few, many = (_instructions_of_late_joiners(count) for count in (20, 160))
    assert many / 160 < 1.5 * few / 20, (few, many)


def _instructions_of_late_joiners(count: int) -> int:
    """Return the number of instructions of the led groups' code when this many joiners are late."""
    cluster = Cluster()
    cluster.create_topic("t", partitions=4)
    consumers = [Consumer(cluster, f"member-{number}", "t") for number in range(count)]
    for consumer in consumers:
        consumer.send(**consumer.full())
    for log in cluster.logs.values():
        log.refusing = True
    cluster.advance(2_900)
    assert not any(_is_answered(consumer) for consumer in consumers)
    instructions = _instructions(led_consumer_groups.__file__, lambda: cluster.advance(200))
    for consumer in consumers:
        consumer.take()
    assert {consumer.error for consumer in consumers} == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    return instructions


def _is_answered(consumer: Consumer) -> bool:
    assert consumer.call is not None
    return consumer.call.done


def _instructions(path: str, run: Callable[[], None]) -> int:
    """Return the number of instructions of this file that `run` executes."""
    count = 0

    def in_frame(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return in_frame

    def entered(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code.co_filename != path:
            return None
        frame.f_trace_opcodes = True
        return in_frame

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def test_topic_that_comes_does_not_have_all_groups_computed_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator may have thousands of groups, and a new topic concerns all of them.

    No group looks at topics that none of its members names.
    """
    for number in range(30):
        cluster.create_topic(f"other{number}", partitions=1)
    groups = [f"g{number}" for number in range(60)]
    members = {name: Consumer(cluster, "one", "t", group_id=name) for name in groups}
    for one in members.values():
        one.send(**one.full())
    cluster.advance(1_100)
    for one in members.values():
        one.take()
        assert indexes(one) == [0, 1, 2, 3]
    computed: list[tuple[int, int]] = []

    def request_of(*args: Any, **named: Any) -> Request:
        request = target_computation.request_of(*args, **named)
        computed.append((cluster.time.now_ns, len(request.topics)))
        return request

    monkeypatch.setattr(led_consumer_groups, "request_of", request_of)
    cluster.advance(2_000)
    computed.clear()
    grown = commands.NewPartitions("t", 5)
    cluster.apply_catalog(commands.CreatePartitions([grown], False, [1], 0))
    cluster.advance(2_000)
    assert len(computed) == len(groups)
    at_once = Counter(now_ns for now_ns, _ in computed)
    # One server leads both coordinators.
    assert max(at_once.values()) <= 2 * led_consumer_groups.LOOKED_MAX
    assert {topics for _, topics in computed} == {1}
    for group_id, one in members.items():
        one.send(group_id=group_id, topic_partitions=one.said())
        one.take()
        assert indexes(one) == [0, 1, 2, 3, 4]


def test_nothing_is_known_of_patterns_that_nobody_uses(cluster: Cluster) -> None:
    one = Consumer(cluster, "one", subscribed_topic_regex="t.*")
    one.join()
    led = cluster.servers[1].groups.find(GROUP)
    assert isinstance(led, LedCoordinator)
    assert len(led.consumer._patterns) == 1
    one.send(subscribed_topic_names=["t"], subscribed_topic_regex="")
    cluster.advance(1_100)
    assert len(led.consumer._patterns) == 0
