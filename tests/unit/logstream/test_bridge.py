"""A leader deposed behind a bridge.

The leader is linked to a server that follows its successor, and not to the successor. The time for
which it continues to serve is bounded (vdl/logstream/README.md).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from raft.node import TERM_LEAP_MAX
from rpc.denials import Denial, encode_denials
from rpc.hello import PROTOCOL_VERSION, VERSION_OF_DENIALS
from rpc.leaders import LeaderLists
from rpc.peer import FrameType
from vdl.clock import MS
from vdl.logstream.options import TICK_NS

BOUND_MS = 2 * 60 * TICK_NS // MS
"""Two election timeouts."""
COORDINATORS = range(1, 9)


def bridge(cluster: Any, *ends: int, groups: Any = (), heir: int = 3) -> None:
    """Cut the links between server 1, the leader, and `ends`; server 2 keeps all its links.

    If server 2 does not hear the leader for an election timeout, `heir` campaigns first.
    """
    for end in ends:
        cluster.network.cut(1, end)
        cluster.network.cut(end, 1)
    cluster.run(10_000)
    for group_id in groups:
        for server, node in cluster.nodes.items():
            if server != 1:
                replica = node.host.groups[group_id].node
                replica.set_election_timeout(61 if server == heir else 119)


def leads(cluster: Any, server: int, group_id: int) -> bool:
    group = cluster.nodes[server].host.groups.get(group_id)
    return group is not None and bool(group.node.is_leader)


def serves(cluster: Any, server: int, group_id: int) -> bool:
    group = cluster.nodes[server].host.groups.get(group_id)
    return group is not None and bool(group.serving)


def until(cluster: Any, condition: Callable[[], bool], *, ms: int = 5_000) -> int:
    """Run until the condition holds. Return the milliseconds it took."""
    for passed in range(ms):
        if condition():
            return passed
        cluster.run(1)
    raise AssertionError(f"not within {ms} ms")


@pytest.mark.parametrize("phase_ms", range(0, 600, 150))
def test_deposed_leader_hears_of_it_from_who_follows_its_successor(
    cluster: Any, phase_ms: int
) -> None:
    """The leader is cut off until its successor is elected, and is then heard again by a follower.

    Its waiting readers are woken.
    """
    group_id = cluster.create_topic()
    cluster.run(1_000)
    assert cluster.leader(group_id).leader_server == 1
    bridge(cluster, 3, groups=[group_id])
    cluster.run(phase_ms)
    cluster.network.cut(1, 2)
    woken: list[int] = []
    cluster.nodes[1].host.stream(group_id).wait_for(1 << 20, lambda: woken.append(1))
    until(cluster, lambda: leads(cluster, 3, group_id))
    cluster.network.heal(1, 2)
    until(cluster, lambda: serves(cluster, 3, group_id))
    until(cluster, lambda: not serves(cluster, 1, group_id), ms=BOUND_MS)
    assert woken
    cluster.run(30_000)
    assert serves(cluster, 3, group_id)
    assert not leads(cluster, 1, group_id)


def test_deposed_leader_acknowledges_nothing_that_its_successor_does_not_have(cluster: Any) -> None:
    """Entries appended before or after its deposition are not acknowledged."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    bridge(cluster, 3, groups=[group_id])
    cluster.network.cut(1, 2)
    deposed = cluster.nodes[1].host.stream(group_id)
    fates = [cluster.append(deposed, ms=60_000)]
    until(cluster, lambda: leads(cluster, 3, group_id))
    fates.append(cluster.append(deposed, ms=60_000))
    cluster.network.heal(1, 2)
    until(cluster, lambda: not leads(cluster, 1, group_id), ms=BOUND_MS)
    cluster.run(30_000)
    assert [fate.error.name for (fate,) in fates] == ["REQUEST_TIMED_OUT"] * 2
    assert cluster.leader(group_id).high_watermark == 0


def test_deposed_leader_that_is_not_heard_at_all_hears_of_it(cluster: Any) -> None:
    """A link may be cut in one direction only."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    bridge(cluster, 3, groups=[group_id])
    cluster.network.cut(1, 2)
    until(cluster, lambda: serves(cluster, 3, group_id))
    until(cluster, lambda: not serves(cluster, 1, group_id), ms=BOUND_MS)


def test_two_servers_serve_one_coordinator_no_longer_than_that(cluster: Any) -> None:
    """Otherwise one could confirm an assignment that the other has given to another member."""
    cluster.run(3_000)
    bridge(cluster, 3, groups=range(9))
    led = [group_id for group_id in COORDINATORS if serves(cluster, 1, group_id)]
    assert led
    cluster.network.cut(1, 2)
    cluster.run(1_000)
    cluster.network.heal(1, 2)
    both = 0
    for _ in range(5_000):
        cluster.run(1)
        both += any(serves(cluster, 1, g) and serves(cluster, 3, g) for g in led)
    assert any(serves(cluster, 3, group_id) for group_id in led)
    assert both <= BOUND_MS


def test_bridge_of_five(make_cluster: Any) -> None:
    """Two of five are on each side of the bridge, so each side with it is a majority."""
    five = make_cluster((1, 2, 3, 4, 5))
    five.run(3_000)
    groups = [g for g in range(9) if serves(five, 1, g)]
    assert groups
    bridge(five, 3, 4, groups=groups)
    for other in (3, 4):
        five.network.cut(5, other)
        five.network.cut(other, 5)
    five.network.cut(1, 2)
    five.run(1_500)
    five.network.heal(1, 2)
    five.run(BOUND_MS)
    led_elsewhere = [g for g in groups if any(serves(five, n, g) for n in (2, 3, 4))]
    assert led_elsewhere
    assert [g for g in led_elsewhere if leads(five, 1, g)] == []


def test_claim_older_than_a_vote_is_denied_though_nobody_leads_the_newer_term(cluster: Any) -> None:
    """A voter that entered a newer term without a leader does not follow the old leader again.

    It denies the claim with its next heartbeat, before its own election timer is due.
    """
    group_id = cluster.create_topic()
    cluster.run(1_000)
    bridge(cluster, 3, groups=[group_id])
    voter = cluster.nodes[2].host.groups[group_id].node
    voter.newer_term(voter.term + 1)
    cluster.nodes[2].host.mark_dirty(cluster.nodes[2].host.groups[group_id])
    assert leads(cluster, 1, group_id)
    until(cluster, lambda: not leads(cluster, 1, group_id), ms=250)


def test_claim_is_denied_by_a_server_that_restarts_before_its_replicas_are_open(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terms on its disk are read before it confirms any leader list."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    bridge(cluster, 3, groups=[group_id])
    follower = cluster.nodes[2].host.groups[group_id]
    cluster.network.cut(2, 1)
    follower.node.newer_term(follower.node.term + 1)
    cluster.nodes[2].host.mark_dirty(follower)
    cluster.run(50)
    cluster.nodes[2].crash()
    monkeypatch.setattr("vdl.logstream.membership.replicas.Replicas.open_system", lambda self: None)
    cluster.network.heal(2, 1)
    cluster.nodes[2].start()
    assert leads(cluster, 1, group_id)
    until(cluster, lambda: not leads(cluster, 1, group_id), ms=400)
    assert not cluster.nodes[2].host.groups


def test_leader_gives_up_when_a_list_names_its_successor(cluster: Any) -> None:
    """It does not wait for a Raft message of its group."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    leader, other = cluster.nodes[1].host, LeaderLists(lambda _: None)
    term = leader.groups[group_id].node.term + 1
    other.connected(1)
    other.sender.set(group_id, term, cluster.nodes[3].host.groups[group_id].replica_id)
    assert leads(cluster, 1, group_id)
    for frame_type, buffers in other.frames(1, cluster.time.now_ns):
        if frame_type is FrameType.LEADERS:
            leader.frame(3, frame_type, memoryview(bytearray(b"".join(buffers))))
    assert not leads(cluster, 1, group_id)
    assert leader.groups[group_id].node.term == term


def test_denial_is_heard_from_members_about_the_present_term(cluster: Any) -> None:
    """As for a Raft message of a newer term: a removed replica may be in any term."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    leader = cluster.nodes[1].host
    term = leader.groups[group_id].node.term

    def deny(server: int, claimed: int, newer: int) -> bool:
        payload = encode_denials([Denial(group_id, claimed, newer, 0), Denial(99, 1, 2, 0)])
        leader.frame(server, FrameType.DENIALS, memoryview(bytearray(payload)))
        return not leads(cluster, 1, group_id)

    assert not deny(4, term, term + 1)
    assert not deny(2, term - 1, term + 1)
    assert not deny(2, term, term + TERM_LEAP_MAX + 1)
    assert deny(2, term, term + 1)
    assert leader.groups[group_id].node.term == term + 1
    cluster.run(5_000)
    assert cluster.leader(group_id).term > term + 1


@pytest.mark.parametrize("version", [VERSION_OF_DENIALS - 1, PROTOCOL_VERSION])
def test_servers_of_an_older_version_are_answered_in_messages_they_know(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """An unknown frame type would end the link, so denials are not sent to older servers."""
    group_id = cluster.create_topic()
    cluster.run(1_000)
    bridge(cluster, 3, groups=[group_id])
    host, links = cluster.nodes[2].host, cluster.nodes[2].links
    alive = host.state.alive
    alive[1] = replace(alive[1], version=version)
    sent: set[FrameType] = set()
    send = links.send

    def noted(server: int, frame_type: FrameType, *arguments: Any, **named: Any) -> bool:
        if server == 1:
            sent.add(frame_type)
        return bool(send(server, frame_type, *arguments, **named))

    monkeypatch.setattr(links, "send", noted)
    cluster.network.cut(1, 2)
    until(cluster, lambda: serves(cluster, 3, group_id))
    until(cluster, lambda: not serves(cluster, 1, group_id), ms=BOUND_MS)
    assert alive[1].version == version
    assert (FrameType.DENIALS in sent) is (version >= VERSION_OF_DENIALS)
