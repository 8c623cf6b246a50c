"""After a gap in its loop a server reads nothing before a quorum has answered again (§8)."""

from functools import partial
from typing import Any

from vdl.clock import MS
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.sim.clock import NodeClock, VirtualTime

LIMIT_NS = 600 * MS


def test_time_without_a_look_is_a_gap_from_the_limit_on() -> None:
    """The next check finds each gap, once."""
    time = VirtualTime()
    gaps = LoopGaps(NodeClock(time), limit_ns=LIMIT_NS)
    for passed_ns, count in ((LIMIT_NS - 1, 0), (LIMIT_NS, 1), (0, 1), (100 * MS, 1), (1 << 40, 2)):
        time.now_ns += passed_ns
        assert gaps.look() == count


def test_sleep_of_the_machine_is_a_gap() -> None:
    """The monotonic clock stops in the meantime; a wall clock that is set back is no gap."""
    time = VirtualTime()
    clock = NodeClock(time)
    gaps = LoopGaps(clock, limit_ns=LIMIT_NS)
    clock.jump_wall(599)
    assert gaps.look() == 0
    clock.jump_wall(-10_000)
    assert gaps.look() == 0
    clock.jump_wall(600)
    assert gaps.look() == 1
    assert gaps.look() == 1


def test_what_lies_unread_for_the_limit_is_a_gap_again_and_again() -> None:
    """The unread data may show that another leader was elected, or hold a quorum's answer."""
    time = VirtualTime()
    gaps = LoopGaps(NodeClock(time), limit_ns=LIMIT_NS)
    counts = []
    for unread_ms in (0, 599, *[600] * 13, 900, 900, 0, *[900] * 15, 900):
        time.now_ns += 100 * MS
        gaps.unread_ns = partial(int, unread_ms * MS)
        counts.append(gaps.look())
    assert counts == [0, 0, *[1] * 12, *[2] * 18, 3, 3]


def test_leader_that_others_deposed_during_its_pause_does_not_read_when_it_wakes(
    cluster: Any,
) -> None:
    """Its first turn may begin with a client's request, while it still assumes that it leads."""
    group_id = cluster.create_topic()
    old = cluster.leader(group_id)
    assert old.is_proved
    node = cluster.nodes[old.leader_server]
    node.clock.pause()
    cluster.run(5_000)
    new = cluster.new_leader(group_id, old)
    fates = cluster.append(new)
    cluster.run(100)
    assert [fate.base_offset for fate in fates] == [0]
    assert old.serving
    assert old.high_watermark == 0
    assert not old.is_proved
    answers: list[bool] = []
    old.prove(deadline_ns=cluster.deadline(), done=answers.append)
    node.clock.resume()
    cluster.run(2_000)
    assert answers == [False]
    assert not old.is_leader


def test_leader_that_was_paused_alone_reads_once_a_quorum_has_answered(cluster: Any) -> None:
    """All servers were paused: it continues to lead."""
    group_id = cluster.create_topic()
    stream = cluster.leader(group_id)
    for node in cluster.nodes.values():
        node.clock.pause()
    cluster.run(700)
    assert not stream.is_proved
    for node in cluster.nodes.values():
        node.clock.resume()
    answers: list[bool] = []
    stream.prove(deadline_ns=cluster.deadline(), done=answers.append)
    assert not stream.is_proved
    cluster.run(100)
    assert answers == [True]
    assert stream.is_proved
