"""Members that subscribe by a pattern (KIP-848): cost of a hostile one, and who bears it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kafka_groups.client import GROUP
from tests.unit.kafka_groups.cluster import Cluster
from tests.unit.kafka_groups.consumer import Consumer, group_of, settle
from vdl.errors import ErrorCode
from vdl.kafka.groups.led_consumer_groups import PATTERNS_WAIT_NS
from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC, OFFSETS_TOPIC_ID
from vdl.kafka.views.transactions_topic import TRANSACTIONS_TOPIC_ID
from vdl.patterns import BadPattern, compile_pattern
from vdl.state import commands
from vdl.state.coordinator import Coordinator

POISON = "[" + "".join(map(chr, range(0x4E00, 0x5D3C))) + "a-z0-9-]{0,490}"
"""The former regex engine accepted it, and needed 20 seconds of each leader's event loop."""
BEYOND_MEMORY = r"\pL{0,1000}"
"""Short, but larger than the limit once compiled."""


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster(3)
    found.create_topic("t", partitions=4)
    return found


def work(cluster: Cluster, server: int = 1) -> Any:
    return cluster.servers[server].pattern_work


def committed(cluster: Cluster) -> int:
    return sum(len(log.committed) for log in cluster.logs.values())


# --- before it is replicated ---------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [POISON, BEYOND_MEMORY, "(", "(?=a)", r"(a)\1"])
def test_pattern_that_cannot_be_compiled_never_comes_into_the_log(
    cluster: Cluster, pattern: str
) -> None:
    """Returns Kafka's error; sending it again costs nothing."""
    before = committed(cluster)
    one = Consumer(cluster, "one", subscribed_topic_regex=pattern)
    for _ in range(3):
        one.join()
        assert one.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert committed(cluster) == before
    assert work(cluster).compiles <= 1
    assert GROUP not in cluster.machine(GROUP).consumer.groups


def test_pattern_is_neither_compiled_nor_matched_on_the_loop(cluster: Cluster) -> None:
    """Its own heartbeat waits for the thread; those of other members do not."""
    cluster.computing = []
    one = Consumer(cluster, "one", subscribed_topic_regex="t.*")
    one.send(**one.full())
    other = Consumer(cluster, "other", "t", group_id="other")
    other.send(**other.full())
    cluster.advance(1_100)
    assert one.call is not None
    assert not one.call.done
    assert work(cluster).compiles == 0
    other.take()
    assert (other.error, len(other.owned)) == (ErrorCode.NONE, 4)
    cluster.compute_one()
    cluster.advance(100)
    assert (work(cluster).compiles, work(cluster).matches) == (1, 0)


def test_patterns_that_wait_are_bounded(cluster: Cluster) -> None:
    """Beyond the bound a client gets a retriable error."""
    cluster.computing = []
    calls = []
    for number in range(150):
        one = Consumer(cluster, f"m{number}", subscribed_topic_regex=f"t{number}.*")
        calls.append(one.send(**one.full()))
    refused = [call for call in calls if call.done]
    codes = {call.response.error_code for call in refused}
    assert codes == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert len(refused) == 49


# --- afterwards ----------------------------------------------------------------------------------


def test_member_is_answered_while_its_pattern_is_matched(cluster: Cluster) -> None:
    """Matching topics are assigned once they are known, at a later heartbeat."""
    cluster.computing = []
    one = Consumer(cluster, "one", subscribed_topic_regex="t.*|u.*")
    one.send(**one.full())
    cluster.compute_one()
    cluster.advance(PATTERNS_WAIT_NS // 1_000_000 + 100)
    one.take()
    assert (one.error, one.epoch, one.owned) == (ErrorCode.NONE, 1, set())
    while cluster.computing:
        cluster.compute_one()
    settle(cluster, one)
    assert len(one.owned) == 4


def test_names_are_matched_once_and_new_ones_only(cluster: Cluster) -> None:
    """Each leader matches them for all groups with the pattern."""
    for number in range(10):
        cluster.create_topic(f"t{number}", partitions=1)
    names = 11 + 2
    one = Consumer(cluster, "one", subscribed_topic_regex="t.*")
    one.join()
    settle(cluster, one)
    assert work(cluster).matches == names
    two = Consumer(cluster, "two", subscribed_topic_regex="t.*")
    two.join()
    settle(cluster, one, two)
    assert work(cluster).matches == names
    cluster.create_topic("tnew", partitions=1)
    settle(cluster, one, two)
    assert work(cluster).matches == names + 1
    assert len(one.owned | two.owned) == 15
    cluster.apply_catalog(commands.DeleteTopics(["tnew"], []))
    settle(cluster, one, two)
    assert work(cluster).matches == names + 1
    assert len(one.owned | two.owned) == 14


def test_group_whose_pattern_takes_long_keeps_no_other_waiting(cluster: Cluster) -> None:
    """A member of the same group that joined by topic name has its partitions, too."""
    cluster.computing = []
    slow = Consumer(cluster, "slow", subscribed_topic_regex="x.*")
    slow.send(**slow.full())
    cluster.compute_one()
    cluster.advance(1)
    named = Consumer(cluster, "named", "t")
    named.send(**named.full())
    other = Consumer(cluster, "other", "t", group_id="other")
    other.send(**other.full())
    cluster.advance(2_100)
    for one in (slow, named, other):
        one.take()
        assert one.error is ErrorCode.NONE
    assert (len(named.owned), len(other.owned)) == (4, 4)
    assert work(cluster).matches == 0


def test_hidden_names_are_not_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The duration of a match reveals nothing about topics that the client may not see."""
    cluster = Cluster(3, authorizer=True)
    for name in ("tall", "tsecret"):
        cluster.create_topic(name, partitions=1)
    binding = commands.AclBinding(2, "tall", 3, "User:eve", "*", 8, 3)
    cluster.apply_catalog(commands.CreateAcls([binding]))
    eve = Consumer(cluster, "two", subscribed_topic_regex="t.*", user="eve")
    eve.join()
    settle(cluster, eve)
    assert work(cluster).matches == 1
    assert group_of(cluster).patterns == {"t.*": ["tall"]}


def test_pattern_stands_for_kafkas_own_topics(cluster: Cluster) -> None:
    """As in Kafka; they can be subscribed to by name too."""
    one = Consumer(cluster, "one", subscribed_topic_regex="__.*")
    one.join()
    settle(cluster, one)
    assert {topic_id for topic_id, _ in one.owned} == {OFFSETS_TOPIC_ID, TRANSACTIONS_TOPIC_ID}
    two = Consumer(cluster, "two", OFFSETS_TOPIC, group_id="other")
    two.join()
    assert {topic_id for topic_id, _ in two.owned} == {OFFSETS_TOPIC_ID}
    cluster.assert_replicas_equal()


# --- a pattern that an earlier version accepted ---------------------------------------------------


def let_in(cluster: Cluster, member_id: str, pattern: str) -> None:
    """Append the pattern without a check, as a server of an earlier version did."""
    number = cluster.servers[1].coordinator_group(GROUP)
    log = cluster.logs[number]
    command = commands.ConsumerHeartbeat(
        group_id=GROUP,
        member_id=member_id,
        member_epoch=0,
        instance_id=None,
        rack_id=None,
        client_id="client",
        client_host="/127.0.0.1",
        rebalance_timeout_ms=60_000,
        topics=None,
        pattern=pattern,
        assignor=None,
        owned=(),
        members_max=100,
    )
    leader = cluster.servers[log.leader].state_groups[number]
    leader.propose(command, deadline_ns=1 << 62, done=lambda _: None)
    cluster.pump()


@pytest.mark.parametrize("pattern", [POISON, BEYOND_MEMORY, "("])
def test_set_that_holds_a_poisoned_pattern_serves(cluster: Cluster, pattern: str) -> None:
    """Its member matches nothing and gets an error; other members of its group are served.

    Each leader reads the log and the snapshot unchanged.
    """
    with pytest.raises(BadPattern):
        compile_pattern(pattern)
    let_in(cluster, "poisoned", pattern)
    one = Consumer(cluster, "one", subscribed_topic_regex="t.*")
    one.join()
    assert len(one.owned) == 4
    let_in(cluster, "poisoned", pattern)  # it has a target by now, and reaches its first epoch
    number = cluster.servers[1].coordinator_group(GROUP)
    for leader in (2, 3):
        cluster.elect(number, leader)
        one.server = leader
        cluster.advance(2_000)
        one.beat()
        assert (one.error, len(one.owned)) == (ErrorCode.NONE, 4)
        assert work(cluster, leader).compiles <= 2
    group = group_of(cluster)
    assert group.members["poisoned"].pattern == pattern
    assert group.patterns[pattern] == []
    poisoned = Consumer(cluster, "poisoned", server=3)
    poisoned.epoch = group.members["poisoned"].epoch
    poisoned.send()
    poisoned.take()
    assert poisoned.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    poisoned.send(subscribed_topic_regex="", subscribed_topic_names=["t"])
    settle(cluster, one, poisoned)
    assert len(poisoned.owned) == 2
    cluster.assert_replicas_equal()


def test_member_with_a_poisoned_pattern_may_leave(cluster: Cluster) -> None:
    let_in(cluster, "poisoned", BEYOND_MEMORY)
    cluster.advance(2_000)
    poisoned = Consumer(cluster, "poisoned")
    assert poisoned.leave() is ErrorCode.NONE
    assert not group_of(cluster).members


def test_snapshot_with_a_poisoned_pattern_is_read(cluster: Cluster) -> None:
    """State does not depend on which patterns can be compiled."""
    let_in(cluster, "poisoned", POISON)
    cluster.advance(2_000)
    machine = cluster.machine(GROUP)
    copy = Coordinator()
    copy.load(machine.items())
    assert copy.consumer.groups[GROUP].stored() == machine.consumer.groups[GROUP].stored()
