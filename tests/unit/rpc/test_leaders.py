"""Leader lists: O(1) heartbeats, whole list on connect, changes afterwards, confirmation."""

from __future__ import annotations

import random
from collections.abc import Callable
from struct import pack

import pytest

from ids import TERM_MAX
from rpc.denials import DENIALS_MAX, decode_denials
from rpc.errors import MalformedFrame
from rpc.leaders import (
    CHANGES_KEPT,
    Leader,
    LeaderChange,
    LeaderConflict,
    LeaderLists,
    LeaderListSender,
    OutFrame,
)
from rpc.peer import FrameType

ONE, TWO, THREE = 1, 2, 3


def replica(server: int, number: int = 1) -> int:
    return server << 16 | number


def deliver(
    target: LeaderLists, source: int, frames: list[OutFrame], now_ns: int
) -> list[LeaderChange]:
    changes: list[LeaderChange] = []
    for frame_type, buffers in frames:
        if frame_type is FrameType.DENIALS:
            continue  # handled by the host
        changes += target.received(source, frame_type, memoryview(b"".join(buffers)), now_ns)
    return changes


def no_conflict(conflict: LeaderConflict) -> None:
    raise AssertionError(conflict)


def linked(
    *servers: int, on_conflict: Callable[[LeaderConflict], None] = no_conflict
) -> dict[int, LeaderLists]:
    """Return the lists of servers that are all linked to one another."""
    lists = {server: LeaderLists(on_conflict) for server in servers}
    for server in servers:
        for other in servers:
            if other != server:
                lists[server].connected(other)
    return lists


def test_leaders_unchanged_list_costs_one_small_frame() -> None:
    """A heartbeat names the version, independent of the number of groups."""
    lists = linked(ONE, TWO)
    for group in range(10_000):
        lists[ONE].sender.set(group, 5, replica(ONE))
    first = lists[ONE].frames(TWO, 100)
    assert [frame_type for frame_type, _ in first] == [FrameType.LEADERS, FrameType.HEARTBEAT]
    assert len(deliver(lists[TWO], ONE, first, 101)) == 10_000
    second = lists[ONE].frames(TWO, 200)
    assert [frame_type for frame_type, _ in second] == [FrameType.HEARTBEAT]
    assert sum(map(len, second[0][1])) == 40
    assert deliver(lists[TWO], ONE, second, 203) == []
    assert lists[TWO].receiver.confirmed_ns(ONE) == 203


def test_leaders_changes_follow_the_whole() -> None:
    """Changes follow the whole list: each group once, in its last state."""
    lists = linked(ONE, TWO)
    sender = lists[ONE].sender
    for group in (10, 11, 12):
        sender.set(group, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    sender.set(11, 6, replica(ONE))
    sender.set(11, 7, replica(ONE))
    sender.drop(12)
    sender.drop(99)
    changes = deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 2), 2)
    assert changes == [LeaderChange(11, 7, replica(ONE)), LeaderChange(12, 5, 0)]
    assert lists[TWO].receiver.leader(10) == Leader(5, replica(ONE))
    assert lists[TWO].receiver.leader(11) == Leader(7, replica(ONE))
    assert lists[TWO].receiver.leader(12) == Leader(5, 0)
    assert lists[TWO].receiver.leader(99) is None


def test_leaders_setting_the_same_again_changes_nothing() -> None:
    """The version changes only with the list."""
    sender = LeaderListSender()
    sender.set(1, 2, replica(ONE))
    version = sender.version
    sender.set(1, 2, replica(ONE))
    sender.drop(7)
    assert sender.version == version


def test_leaders_highest_term_wins_whoever_speaks_last() -> None:
    """A deposed leader that does not know it yet does not return to the table (§5.1)."""
    lists = linked(ONE, TWO, THREE)
    lists[ONE].sender.set(9, 4, replica(ONE))
    lists[THREE].sender.set(9, 5, replica(THREE))
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 1), 1)
    assert deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 2), 2) == []
    receiver = lists[TWO].receiver
    assert receiver.leader(9) == Leader(5, replica(THREE))
    lists[THREE].sender.drop(9)
    assert deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 3), 3) == [LeaderChange(9, 5, 0)]
    assert receiver.leader(9) == Leader(5, 0)
    # The old leader's drop changes nothing.
    lists[ONE].sender.drop(9)
    assert deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 4), 4) == []


def test_leaders_second_leader_of_a_term_costs_its_row_only() -> None:
    """Election safety (§5.2) is checked where the lists meet.

    The leader known first stays; the rest of the list is accepted, and confirmed by heartbeats.
    """
    found: list[LeaderConflict] = []
    lists = linked(ONE, TWO, THREE, on_conflict=found.append)
    lists[ONE].sender.set(9, 4, replica(ONE))
    for group in (8, 9, 10):
        lists[THREE].sender.set(group, 4, replica(THREE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    changes = deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 1), 1)
    assert found == [LeaderConflict(9, 4, replica(ONE), replica(THREE))]
    assert changes == [LeaderChange(group, 4, replica(THREE)) for group in (8, 10)]
    receiver = lists[TWO].receiver
    assert receiver.leader(9) == Leader(4, replica(ONE))
    assert receiver.confirmed(10) == (Leader(4, replica(THREE)), 1)
    assert receiver.count(THREE) == 3
    # A later term is no contradiction, from any server.
    lists[THREE].sender.set(9, 5, replica(THREE))
    assert deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 2), 2) == [
        LeaderChange(9, 5, replica(THREE))
    ]
    assert len(found) == 1


def test_leaders_row_that_was_not_taken_takes_nothing_away() -> None:
    """The other leader stays when the refused row's server drops that claim, or an older one."""
    found: list[LeaderConflict] = []
    lists = linked(ONE, TWO, THREE, on_conflict=found.append)
    lists[THREE].sender.set(9, 3, replica(THREE))
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 1), 1)
    lists[ONE].sender.set(9, 4, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 2), 2)
    lists[THREE].sender.set(9, 4, replica(THREE))
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 3), 3)
    lists[THREE].sender.drop(9)
    assert deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 4), 4) == []
    assert lists[TWO].receiver.leader(9) == Leader(4, replica(ONE))
    assert len(found) == 1


def test_leaders_acknowledgement_counts_from_when_the_heartbeat_was_sent() -> None:
    """Check-quorum may count the sending time of an acknowledged heartbeat, not its arrival."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    one.sender.set(9, 4, replica(ONE))
    assert one.sender.heard_ns(TWO, 9) == -1
    deliver(two, ONE, one.frames(TWO, 100), 150)
    assert one.sender.heard_ns(TWO, 9) == -1
    deliver(one, TWO, two.frames(ONE, 180), 230)
    assert one.sender.heard_ns(TWO, 9) == 100
    assert one.sender.acked_ns(TWO) == 100
    # A heartbeat under way counts for nothing.
    one.frames(TWO, 200)
    deliver(one, TWO, two.frames(ONE, 280), 330)
    assert one.sender.heard_ns(TWO, 9) == 100


def test_leaders_acknowledgement_does_not_count_for_a_newer_term() -> None:
    """A peer that acknowledged the list before a group was on it has not seen that term."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    one.sender.set(8, 4, replica(ONE))
    deliver(two, ONE, one.frames(TWO, 100), 100)
    one.sender.set(9, 4, replica(ONE))
    deliver(one, TWO, two.frames(ONE, 110), 110)
    assert one.sender.heard_ns(TWO, 8) == 100
    assert one.sender.heard_ns(TWO, 9) == -1
    deliver(two, ONE, one.frames(TWO, 200), 200)
    deliver(one, TWO, two.frames(ONE, 210), 210)
    assert one.sender.heard_ns(TWO, 9) == 200


def test_leaders_disconnect_ends_confirmation_but_not_knowledge() -> None:
    """A lost link confirms nothing any more; the last known leader is still the best answer."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    one.sender.set(9, 4, replica(ONE))
    deliver(two, ONE, one.frames(TWO, 1), 1)
    deliver(one, TWO, two.frames(ONE, 2), 2)
    two.disconnected(ONE)
    one.disconnected(TWO)
    assert two.receiver.confirmed_ns(ONE) == -1
    assert two.receiver.leader(9) == Leader(4, replica(ONE))
    assert one.sender.heard_ns(TWO, 9) == -1
    # A group absent from the next session's list is dropped.
    one.sender.drop(9)
    one.connected(TWO)
    two.connected(ONE)
    assert deliver(two, ONE, one.frames(TWO, 3), 3) == [LeaderChange(9, 4, 0)]


def test_leaders_list_frame_that_was_not_sent_is_made_good() -> None:
    """A receiver of an unknown version confirms nothing, and gets the whole list."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    one.sender.set(8, 4, replica(ONE))
    deliver(two, ONE, one.frames(TWO, 100), 100)
    one.sender.set(9, 4, replica(ONE))
    lost = one.frames(TWO, 200)
    deliver(two, ONE, lost[1:], 200)  # only the heartbeat: the link was full
    assert two.receiver.confirmed_ns(ONE) == 100
    assert deliver(one, TWO, two.frames(ONE, 210), 210) == []
    assert one.sender.heard_ns(TWO, 8) == -1
    again = one.frames(TWO, 300)
    assert deliver(two, ONE, again, 300) == [LeaderChange(9, 4, replica(ONE))]
    assert two.receiver.confirmed_ns(ONE) == 300
    deliver(one, TWO, two.frames(ONE, 310), 310)
    assert one.sender.heard_ns(TWO, 9) == 300


@pytest.mark.parametrize("changes", [CHANGES_KEPT, CHANGES_KEPT + 1])
def test_leaders_far_behind_gets_the_whole_list(changes: int) -> None:
    """Changes are kept up to a bound; beyond it the whole list is sent."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    deliver(two, ONE, one.frames(TWO, 1), 1)
    for group in range(changes):
        one.sender.set(group, 1, replica(ONE))
    frames = one.frames(TWO, 2)
    is_whole = frames[0][1][0][0] == 1
    assert is_whole is (changes > CHANGES_KEPT)
    assert len(deliver(two, ONE, frames, 2)) == changes


def test_leaders_acknowledging_the_future_is_malformed() -> None:
    """A version that was never sent cannot be acknowledged."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    deliver(two, ONE, one.frames(TWO, 100), 100)
    answer = two.frames(ONE, 110)
    fresh = linked(ONE, TWO)[ONE]
    with pytest.raises(MalformedFrame):
        deliver(fresh, TWO, answer, 120)


def test_leaders_listing_another_servers_replica_is_malformed() -> None:
    """A server lists its own replicas only."""
    lists = linked(ONE, TWO)
    lists[ONE].sender.set(9, 4, replica(THREE))
    with pytest.raises(MalformedFrame):
        deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)


def test_leaders_listing_a_leader_of_no_term_is_malformed() -> None:
    """A leader of no term is refused.

    It would be taken for a heartbeat that is not bound to a term.
    """
    lists = linked(ONE, TWO)
    lists[ONE].sender.set(9, 0, replica(ONE))
    with pytest.raises(MalformedFrame):
        deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)


def test_leaders_cut_frames_are_malformed() -> None:
    """Every truncation is detected."""
    lists = linked(ONE, TWO)
    lists[ONE].sender.set(9, 4, replica(ONE))
    for frame_type, buffers in lists[ONE].frames(TWO, 1):
        payload = memoryview(b"".join(buffers))
        for end in range(len(payload)):
            with pytest.raises(MalformedFrame):
                lists[TWO].received(ONE, frame_type, payload[:end], 1)


def test_leaders_forgotten_group_leaves_no_trace() -> None:
    """A deleted group is unknown."""
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    for group in (8, 9):
        one.sender.set(group, 4, replica(ONE))
    deliver(two, ONE, one.frames(TWO, 1), 1)
    two.receiver.forget_group(8)
    assert two.receiver.leader(8) is None


@pytest.mark.parametrize("seed", range(30))
def test_leaders_random_changes_losses_and_reconnects_converge(seed: int) -> None:
    """A confirmed list always equals the sender's, whatever is dropped on the way."""
    rng = random.Random(seed)
    servers = (ONE, TWO, THREE)
    lists = linked(*servers)
    term_of: dict[int, int] = dict.fromkeys(range(20), 0)
    led: dict[int, dict[int, int]] = {server: {} for server in servers}
    news: dict[int, dict[int, tuple[int, int]]] = {server: {} for server in servers}
    now_ns = 0

    def beat(source: int, target: int, *, loss: float) -> None:
        frames = [frame for frame in lists[source].frames(target, now_ns) if rng.random() >= loss]
        for change in deliver(lists[target], source, frames, now_ns):
            news[target][change.group] = (change.term, change.replica)
        held = lists[target].receiver._held[source]
        if held.confirmed_ns == now_ns:
            assert {group: term for group, (term, _) in held.listed.items()} == led[source]

    for _ in range(300):
        now_ns += rng.randrange(3)  # sometimes the same nanosecond, as on virtual time
        server, other = rng.sample(servers, 2)
        group = rng.randrange(20)
        action = rng.randrange(5)
        if action == 0:
            term_of[group] += 1
            led[server][group] = term_of[group]
            lists[server].sender.set(group, term_of[group], replica(server))
        elif action == 1:
            led[server].pop(group, None)
            lists[server].sender.drop(group)
        elif action == 2 and rng.random() < 0.3:
            for a, b in ((server, other), (other, server)):
                lists[a].disconnected(b)
                lists[a].connected(b)
        else:
            beat(server, other, loss=0.3)
    for _ in range(4):
        now_ns += 1
        for server in servers:
            for other in servers:
                if other != server:
                    beat(server, other, loss=0)
    for target in servers:
        receiver = lists[target].receiver
        for source in servers:
            if source != target:
                assert receiver.confirmed_ns(source) == now_ns
        for group in range(20):
            claims = [
                (led[source][group], replica(source))
                for source in servers
                if source != target and group in led[source]
            ]
            known = receiver.leader(group)
            if known is not None:
                assert news[target][group] == (known.term, known.replica)
            if claims and known is not None and known.replica:
                assert (known.term, known.replica) == max(claims)
            elif claims:
                # Dropped in a later term than any remaining claim.
                assert known is not None
                assert known.term > max(claims)[0]
    for server in servers:
        for other in servers:
            for group in led[server]:
                if other != server:
                    assert lists[server].sender.heard_ns(other, group) >= now_ns - 1


def denials(frames: list[OutFrame]) -> list[tuple[int, int, int]]:
    """Return (group, claimed term, newer term) of the denials among frames, which are in order."""
    kinds = [frame_type for frame_type, _ in frames]
    assert kinds == sorted(
        kinds, key=[FrameType.LEADERS, FrameType.DENIALS, FrameType.HEARTBEAT].index
    )
    found = [b"".join(buffers) for kind, buffers in frames if kind is FrameType.DENIALS]
    return [row for payload in found for row in decode_denials(memoryview(payload))]


def test_claims_that_are_older_than_another_servers_are_denied_at_each_beat() -> None:
    """An older claim is denied before each heartbeat that would confirm it, until it is dropped."""
    lists = linked(ONE, TWO, THREE)
    for group in (10, 11):
        lists[ONE].sender.set(group, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    assert denials(lists[TWO].frames(ONE, 2)) == []
    lists[THREE].sender.set(10, 6, replica(THREE))
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 3), 3)
    for now_ns in (4, 5):
        assert denials(lists[TWO].frames(ONE, now_ns)) == [(10, 5, 6)]
        assert denials(lists[TWO].frames(THREE, now_ns)) == []
    assert [kind for kind, _ in lists[TWO].frames(ONE, 6, denies=False)] == [FrameType.HEARTBEAT]
    lists[THREE].sender.drop(10)
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 7), 7)
    assert denials(lists[TWO].frames(ONE, 8)) == [(10, 5, 6)]
    lists[ONE].sender.drop(10)
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 9), 9)
    assert denials(lists[TWO].frames(ONE, 10)) == []


def test_claims_that_are_older_than_the_term_of_a_replica_here_are_denied() -> None:
    """A claim older than a replica's term is denied.

    This is independent of which is known first, and holds even if the newer term has no leader.
    """
    lists = linked(ONE, TWO)
    receiver = lists[TWO].receiver
    receiver.entered(10, 6)
    lists[ONE].sender.set(10, 5, replica(ONE))
    lists[ONE].sender.set(11, 5, replica(ONE))
    lists[ONE].sender.set(12, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    receiver.entered(11, 7)
    receiver.entered(12, 5)
    assert denials(lists[TWO].frames(ONE, 2)) == [(10, 5, 6), (11, 5, 7)]
    lists[ONE].sender.set(11, 7, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 3), 3)
    assert denials(lists[TWO].frames(ONE, 4)) == [(10, 5, 6)]
    receiver.forget_groups(lambda group: group == 10)
    assert denials(lists[TWO].frames(ONE, 5)) == []
    receiver.forget_groups(lambda group: True)
    receiver.entered(10, 1)
    assert receiver.leader(11) is None


def test_claim_that_contradicts_is_denied_as_any_other_once_a_newer_term_is_known() -> None:
    """A contradicting claim is denied once a newer term is known.

    Its server may have claimed an older term before, and sends the row once.
    """
    found: list[LeaderConflict] = []
    lists = linked(ONE, TWO, THREE, on_conflict=found.append)
    lists[ONE].sender.set(10, 4, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    lists[THREE].sender.set(10, 5, replica(THREE))
    deliver(lists[TWO], THREE, lists[THREE].frames(TWO, 2), 2)
    assert denials(lists[TWO].frames(ONE, 3)) == [(10, 4, 5)]
    lists[ONE].sender.set(10, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 4), 4)
    assert found == [LeaderConflict(10, 5, replica(THREE), replica(ONE))]
    assert denials(lists[TWO].frames(ONE, 5)) == []
    lists[TWO].receiver.entered(10, 6)
    for server in (ONE, THREE):
        assert denials(lists[TWO].frames(server, 6)) == [(10, 5, 6)]


def test_claims_of_a_list_that_is_not_confirmed_are_not_denied() -> None:
    """A server that reconnects reports anew what it leads; earlier claims do not count."""
    lists = linked(ONE, TWO)
    lists[ONE].sender.set(10, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    lists[TWO].receiver.entered(10, 6)
    for server, other in ((ONE, TWO), (TWO, ONE)):
        lists[server].disconnected(other)
        lists[server].connected(other)
    assert denials(lists[TWO].frames(ONE, 2)) == []
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 3), 3)
    assert denials(lists[TWO].frames(ONE, 4)) == [(10, 5, 6)]


@pytest.mark.parametrize("more", [0, 1, DENIALS_MAX])
def test_denials_of_one_heartbeat_are_bounded_and_all_have_their_turn(more: int) -> None:
    lists = linked(ONE, TWO)
    count = DENIALS_MAX + more
    for group in range(count):
        lists[ONE].sender.set(group, 5, replica(ONE))
    deliver(lists[TWO], ONE, lists[ONE].frames(TWO, 1), 1)
    for group in range(count):
        lists[TWO].receiver.entered(group, 6)
    first = denials(lists[TWO].frames(ONE, 2))
    assert len(first) == DENIALS_MAX
    second = denials(lists[TWO].frames(ONE, 3))
    assert {group for group, _, _ in first + second} == set(range(count))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        bytes(23),
        pack("<QQQ", 1, 5, 5),
        pack("<QQQ", 1, 5, 4),
        pack("<QQQ", 1, 5, TERM_MAX + 1),
        pack("<QQQ", 1, 5, 6) * (DENIALS_MAX + 1),
    ],
    ids=["none", "cut", "no newer", "older", "beyond all terms", "too many"],
)
def test_denials_that_make_no_sense_are_malformed(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_denials(memoryview(payload))


def test_in_sync_replicas_travel_with_the_list_and_change_no_leader() -> None:
    """In-sync replicas are sent completely and as changes.

    Evidence that a leader is alive is kept.
    """
    lists = linked(ONE, TWO)
    one, two = lists[ONE], lists[TWO]
    one.sender.set(9, 4, replica(ONE), (ONE, TWO, THREE))
    one.sender.set(8, 4, replica(ONE), (ONE,))
    assert len(deliver(two, ONE, one.frames(TWO, 100), 101)) == 2
    deliver(one, TWO, two.frames(ONE, 102), 103)
    assert two.receiver.leader(9) == Leader(4, replica(ONE), (ONE, TWO, THREE))
    one.sender.set(9, 4, replica(ONE), (ONE, THREE))
    assert one.sender.heard_ns(TWO, 9) == 100
    assert deliver(two, ONE, one.frames(TWO, 200), 201) == []
    assert two.receiver.leader(9) == Leader(4, replica(ONE), (ONE, THREE))
    assert two.receiver.leader(8) == Leader(4, replica(ONE), (ONE,))
    one.sender.drop(9)
    deliver(two, ONE, one.frames(TWO, 300), 301)
    assert two.receiver.leader(9) == Leader(4, 0, (ONE, THREE))


def test_in_sync_replicas_that_do_not_fit_their_rows_are_malformed() -> None:
    """A count beyond the following bytes, too few bytes, and trailing bytes."""
    sender = LeaderListSender()
    sender.set(9, 4, replica(ONE), (ONE, THREE))
    sender.connected(TWO)
    found = sender.changes(TWO, 1)
    assert found is not None
    frame = b"".join(found[1])
    for wrong in (frame[:-4], frame[:-1], frame + bytes(4), frame + b"x"):
        lists = LeaderLists(no_conflict)
        lists.connected(ONE)
        with pytest.raises(MalformedFrame):
            lists.received(ONE, FrameType.LEADERS, memoryview(wrong), 2)
