"""Choice of transferees for leaderships, and number of transfers at a time."""

from collections import Counter
from typing import Any

from vdl.clock import MS
from vdl.logstream.elections.campaigns import Campaigns
from vdl.logstream.group.group import Group
from vdl.logstream.membership.transfers import HANDED_MIN, RETURN_WITHIN_ROUNDS, Transfers
from vdl.logstream.periodic import STUCK_ROUNDS
from vdl.state.commands import CreateTopics, NewTopic

TOPICS = 90


def create_topics(cluster: Any, count: int, *, first: int, name: str = "t") -> list[int]:
    """Create topics of one partition, placed on server `first` first. Return their group ids."""
    rest = [server for server in cluster.nodes if server != first]
    groups: list[int] = []
    for number in range(count):
        placement = [first, *(rest if number % 2 else rest[::-1])]
        topic_id = f"{name}{number}".encode().ljust(16)
        new = NewTopic(f"{name}{number}", topic_id, assignments=[placement])
        outcome: list[Any] = []
        cluster.nodes[1].host.propose_catalog(
            CreateTopics([new]), deadline_ns=cluster.deadline(), done=outcome.append
        )
        cluster.run(20)
        groups.append(int(outcome[0].result.topics[0].group_ids[0]))
    cluster.run(1_000)
    return groups


def led(cluster: Any, groups: list[int]) -> Counter[int]:
    """Return how many of the groups each server leads."""
    found: Counter[int] = Counter()
    for server_id, node in cluster.nodes.items():
        if not node.clock.stopped:
            found[server_id] = sum(node.host.groups[group].node.is_leader for group in groups)
    return found


def test_others_share_what_a_server_led_that_stops(cluster: Any) -> None:
    """They do not all go to the lowest id, though both others have all of each log."""
    groups = create_topics(cluster, TOPICS, first=1)
    assert led(cluster, groups) == {1: TOPICS, 2: 0, 3: 0}
    assert cluster.nodes[1].host.transfer_leaderships() >= TOPICS
    cluster.run(500)
    after = led(cluster, groups)
    assert after[1] == 0
    assert abs(after[2] - after[3]) <= 4, after


def test_server_that_leads_much_is_given_less(cluster: Any) -> None:
    """Existing leaderships of the others count, not only those in transfer."""
    create_topics(cluster, 30, first=2)
    more = create_topics(cluster, 30, first=1, name="more")
    cluster.nodes[1].host.transfer_leaderships()
    cluster.run(500)
    after = led(cluster, more)
    assert after[1] == 0
    assert after[3] >= 26, after


def test_many_leaderships_return_in_batches(cluster: Any, monkeypatch: Any) -> None:
    """A server that was away gets them back in a time that does not grow with their number.

    They do not all return in one second.
    """
    groups = create_topics(cluster, TOPICS, first=3)
    cluster.nodes[3].crash()
    cluster.run(3_000)
    assert led(cluster, groups).total() == TOPICS
    at: Counter[int] = Counter()
    hand_over = Transfers._hand_over

    def noted(self: Transfers, group: Group, transferee: int, reason: str) -> None:
        at[cluster.time.now_ns // 10**9] += 1
        hand_over(self, group, transferee, reason)

    monkeypatch.setattr(Transfers, "_hand_over", noted)
    cluster.nodes[3].start()
    cluster.run(RETURN_WITHIN_ROUNDS * 2_000)
    assert led(cluster, groups)[3] >= TOPICS * 9 // 10
    # Two servers return theirs, each a thirtieth of the rest or one.
    assert max(at.values()) <= 2 * -(-TOPICS // RETURN_WITHIN_ROUNDS)


def test_servers_know_since_when_a_moved_group_has_no_leader(make_cluster: Any) -> None:
    """Metadata awaits the next leader for a moment. Server 4 has no replica, but leader lists."""
    cluster = make_cluster((1, 2, 3, 4))
    group_id = cluster.create_topic()
    cluster.run(1_000)
    hosts = [node.host for node in cluster.nodes.values()]
    assert [host.leader_of(group_id)[0] for host in hosts] == [1, 1, 1, 1]
    for node in cluster.nodes.values():
        node.workers.sync_ns = 20 * MS
    began_ns = cluster.time.now_ns
    group = hosts[0].groups[group_id]
    group.node.transfer_leader(2 << 16 | 1)
    hosts[0].mark_dirty(group)
    unled = set()
    for _ in range(300):
        cluster.run(1)
        for host in hosts:
            if host.leader_of(group_id)[0] < 0:
                unled.add(host.server_id)
                assert host.unled_ns >= began_ns
    assert {1, 2, 3} <= unled
    assert [host.leader_of(group_id)[0] for host in hosts] == [2, 2, 2, 2]


def test_late_server_gives_its_leaderships_away_in_batches(cluster: Any, monkeypatch: Any) -> None:
    """The others may be nearly as late, and report it while it still has some."""
    groups = create_topics(cluster, TOPICS, first=1)
    host = cluster.nodes[1].host
    monkeypatch.setattr(
        type(host.overload), "is_late_for_long", property(lambda o: o is host.overload)
    )
    cluster.run(2_000)
    assert TOPICS - 3 * HANDED_MIN <= led(cluster, groups)[1] < TOPICS
    cluster.run(20_000)
    assert led(cluster, groups)[1] == 0


def away_from_home(cluster: Any, monkeypatch: Any) -> Any:
    """Return groups whose first server is back, while one group waits to be elected."""
    groups = create_topics(cluster, TOPICS, first=3)
    cluster.nodes[3].crash()
    cluster.run(3_000)
    monkeypatch.setattr(Campaigns, "waiting", 1)
    cluster.nodes[3].start()
    return groups


def test_leaderships_return_when_no_group_waits_to_be_elected(
    cluster: Any, monkeypatch: Any
) -> None:
    groups = away_from_home(cluster, monkeypatch)
    cluster.run(10_000)
    assert led(cluster, groups)[3] == 0
    monkeypatch.setattr(Campaigns, "waiting", 0)
    cluster.run(10_000)
    assert led(cluster, groups)[3] > 0


def test_leaderships_return_although_some_groups_never_get_a_leader(
    cluster: Any, monkeypatch: Any
) -> None:
    groups = away_from_home(cluster, monkeypatch)
    cluster.run(STUCK_ROUNDS * 2_000)
    assert led(cluster, groups)[3] > 0


def test_late_server_gives_away_what_can_go_if_some_transferees_never_take_over(
    cluster: Any, monkeypatch: Any
) -> None:
    groups = create_topics(cluster, TOPICS, first=1)
    host = cluster.nodes[1].host
    stuck = set(groups[: 2 * HANDED_MIN])
    hand_over = Transfers._hand_over

    def refused(self: Transfers, group: Group, transferee: int, reason: str) -> None:
        if group.group_id not in stuck:
            hand_over(self, group, transferee, reason)

    monkeypatch.setattr(Transfers, "_hand_over", refused)
    monkeypatch.setattr(
        type(host.overload), "is_late_for_long", property(lambda o: o is host.overload)
    )
    cluster.run(30_000)
    assert led(cluster, groups)[1] == len(stuck)
