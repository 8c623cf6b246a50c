"""Classic membership protocol, command by command (KIP-62, KIP-345, KIP-394, KIP-814)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.consumer_groups import (
    GroupDeleted,
    JoinCompleted,
    MemberPending,
    MemberRemoved,
    RebalanceStarted,
    SyncCompleted,
)
from vdl.state.coordinator import Coordinator

G = "group"


class Script:
    """A coordinator's log, written one command at a time."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.index = 0
        self.now_ms = 1_000
        self.drawn = 0

    def apply(self, command: Any) -> Any:
        """Apply a command, through the bytes of an entry, as every replica does."""
        self.index += 1
        self.now_ms += 1
        data = commands.encode(commands.Envelope(1, 1, self.index, self.now_ms, command))
        envelope = commands.decode(data)
        return self.machine.apply(envelope.command, envelope.now_ms, self.index)

    @property
    def group(self) -> ConsumerGroup:
        group = self.machine.group(G)
        assert group is not None
        return group

    def join(self, member_id: str = "", **fields: Any) -> Any:
        self.drawn += 1
        protocols = fields.pop("protocols", {"range": b"r"})
        values: dict[str, Any] = {
            "group_id": G,
            "member_id": member_id,
            "new_member_id": f"m{self.drawn}",
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "protocol_type": "consumer",
            "protocols": [commands.Protocol(name, data) for name, data in protocols.items()],
            "known_member_id_required": False,
            "members_max": 100,
            "hold_first_rebalance": False,
        }
        return self.apply(commands.JoinGroup(**(values | fields)))

    def sync(self, member_id: str, assignments: dict[str, bytes], **fields: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": G,
            "generation": self.group.generation,
            "member_id": member_id,
            "group_instance_id": None,
            "protocol_type": None,
            "protocol_name": None,
            "assignments": list(assignments.items()),
        }
        return self.apply(commands.SyncGroup(**(values | fields)))

    def leave(self, *members: tuple[str, str | None]) -> Any:
        return self.apply(commands.LeaveGroup(G, [commands.LeavingMember(*m) for m in members]))

    def stable(self, count: int = 2, **fields: Any) -> list[str]:
        """Return the members of a new stable group of `count`; the first one leads."""
        first = self.join(**fields).member_id
        self.sync(first, {})
        ids = [first, *(self.join(**fields).member_id for _ in range(count - 1))]
        for member in ids[:-1]:
            if count > 1:
                self.join(member, **fields)
        self.finish(ids)
        return ids

    def finish(self, ids: list[str]) -> None:
        """Join all members until the generation is set; the leader syncs."""
        for member in ids:
            if self.group.state is GroupState.PREPARING_REBALANCE:
                self.join(member)
        assert self.group.leader is not None
        self.sync(self.group.leader, {member: member.encode() for member in ids})
        assert self.group.state is GroupState.STABLE


@pytest.fixture
def script() -> Script:
    return Script()


# --- joining -----------------------------------------------------------------------------------


def test_first_member_alone_makes_a_generation_at_once(script: Script) -> None:
    """The first member leads; its sync makes the group stable with its assignment."""
    answer = script.join()
    assert answer.error is ErrorCode.NONE
    assert answer.events == [RebalanceStarted(G), JoinCompleted(G)]
    group = script.group
    assert (group.state, group.generation) == (GroupState.COMPLETING_REBALANCE, 1)
    assert (group.leader, group.protocol_name) == (answer.member_id, "range")
    assert script.sync(answer.member_id, {answer.member_id: b"all"}).events == [SyncCompleted(G)]
    assert group.state is GroupState.STABLE
    assert group.members[answer.member_id].assignment == b"all"


def test_new_dynamic_member_gets_its_id_first(script: Script) -> None:
    """KIP-394: 79 with an id; nothing else happens until the member returns with it."""
    answer = script.join(known_member_id_required=True)
    assert answer.error is ErrorCode.MEMBER_ID_REQUIRED
    assert answer.events == [MemberPending(G, answer.member_id)]
    assert script.group.state is GroupState.EMPTY
    again = script.join(answer.member_id, known_member_id_required=True)
    assert (again.error, again.member_id) == (ErrorCode.NONE, answer.member_id)
    assert script.group.state is GroupState.COMPLETING_REBALANCE
    assert not script.group.pending


def test_static_member_gets_no_id_first(script: Script) -> None:
    """KIP-345: an instance id identifies the member."""
    answer = script.join(group_instance_id="i", known_member_id_required=True)
    assert answer.error is ErrorCode.NONE
    assert script.group.static_members == {"i": answer.member_id}


def test_unknown_member_id_is_refused_and_leaves_no_group(script: Script) -> None:
    """25, whether the group exists or not."""
    assert script.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert script.machine.group(G) is None
    script.stable()
    assert script.join("nobody").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_completes_when_the_last_member_has_joined(script: Script) -> None:
    """A second member makes the first rejoin; both are answered once both have joined."""
    first = script.join().member_id
    script.sync(first, {})
    second = script.join()
    assert second.events == [RebalanceStarted(G)]
    assert script.group.state is GroupState.PREPARING_REBALANCE
    assert script.join(first).events == [JoinCompleted(G)]
    assert (script.group.generation, script.group.leader) == (2, first)


def test_pending_member_is_waited_for(script: Script) -> None:
    """A member with an id is about to join: one rebalance instead of two."""
    (first,) = script.stable(1)
    pending = script.join(known_member_id_required=True).member_id
    script.join(first)
    assert script.group.state is GroupState.PREPARING_REBALANCE
    assert script.join(pending).events == [JoinCompleted(G)]
    assert list(script.group.members) == [first, pending]


def test_pending_member_that_never_comes_disturbs_nobody(script: Script) -> None:
    """A pending member's expiry ends a rebalance that waits for it, and starts none."""
    (first,) = script.stable(1)
    pending = script.join(known_member_id_required=True).member_id
    changed = script.apply(commands.ExpireMembers(G, [pending]))
    assert changed.events == [MemberRemoved(G, pending, ErrorCode.UNKNOWN_MEMBER_ID)]
    assert script.group.state is GroupState.STABLE
    pending = script.join(known_member_id_required=True).member_id
    script.join(first)
    changed = script.apply(commands.ExpireMembers(G, [pending]))
    assert changed.events[-1] == JoinCompleted(G)


def test_first_rebalance_that_is_held_waits_to_be_let_go(script: Script) -> None:
    """KIP-134: members that start together form one generation; later rebalances do not wait."""
    ids = [script.join(hold_first_rebalance=True).member_id for _ in range(3)]
    assert (script.group.state, script.group.held) == (GroupState.PREPARING_REBALANCE, True)
    changed = script.apply(commands.CompleteJoin(G, 0))
    assert changed.events == [JoinCompleted(G)]
    assert list(script.group.members) == ids
    script.finish(ids)
    script.join(ids[0], hold_first_rebalance=True)
    assert not script.group.held


def test_rebalance_timeout_drops_dynamic_members_that_did_not_join(script: Script) -> None:
    """The generation continues without them; a leader that is gone is replaced."""
    first, second, third = script.stable(3)
    script.join(second, protocols={"range": b"new"})
    assert script.group.state is GroupState.PREPARING_REBALANCE
    script.join(third)
    changed = script.apply(commands.CompleteJoin(G, script.group.generation))
    assert changed.events == [
        MemberRemoved(G, first, ErrorCode.UNKNOWN_MEMBER_ID),
        JoinCompleted(G),
    ]
    assert script.group.leader == second
    assert list(script.group.members) == [second, third]


def test_timeout_of_another_generation_is_void(script: Script) -> None:
    """A timer that expired while the last member joined must not end the next rebalance."""
    script.stable(2)
    old = script.group.generation
    script.join()
    before = script.machine.items()
    assert script.apply(commands.CompleteJoin(G, old - 1)).events == []
    assert script.machine.items() == before


def test_rejoin_of_a_follower_unchanged_in_a_stable_group_changes_nothing(script: Script) -> None:
    """A follower that lost an answer receives the current generation."""
    first, second = script.stable(2)
    before = script.machine.items()
    answer = script.join(second)
    assert (answer.error, answer.events) == (ErrorCode.NONE, [])
    assert script.machine.items() == before
    assert script.join(first).events == [RebalanceStarted(G)], "a leader asks for a new assignment"


def test_rejoin_with_another_subscription_rebalances(script: Script) -> None:
    """Another subscription starts a rebalance, also while an assignment is awaited."""
    _, second = script.stable(2)
    assert script.join(second, protocols={"range": b"x"}).events == [RebalanceStarted(G)]
    other = Script()
    only = other.join().member_id
    assert other.join(only).events == []
    answer = other.join(only, protocols={"range": b"x"})
    assert answer.events == [RebalanceStarted(G), JoinCompleted(G)]
    assert other.group.generation == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol_type": ""},
        {"protocols": {}},
        {"protocol_type": "connect"},
        {"protocols": {"sticky": b""}},
    ],
)
def test_member_that_shares_no_protocol_is_refused(script: Script, fields: dict[str, Any]) -> None:
    """23: the type and at least one protocol must be common to all members."""
    script.stable(2)
    assert script.join(**fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert len(script.group.members) == 2


def test_protocol_is_chosen_by_vote_among_the_common_ones(script: Script) -> None:
    """Each member votes for its first protocol that all support."""
    a = {"own": b"", "range": b"1", "sticky": b"1"}
    b = {"sticky": b"2", "range": b"2"}
    c = {"sticky": b"3", "range": b"3"}
    first = script.join(protocols=a, hold_first_rebalance=True).member_id
    script.join(protocols=b)
    script.join(protocols=c)
    script.apply(commands.CompleteJoin(G, 0))
    assert script.group.protocol_name == "sticky"
    assert script.group.members[first].metadata("sticky") == b"1"


def test_group_at_its_limit_takes_no_further_member(script: Script) -> None:
    """81 one past the limit; existing members may rejoin."""
    ids = script.stable(2)
    assert script.join(members_max=2).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert script.join(ids[0], members_max=2).error is ErrorCode.NONE


def test_group_at_its_limit_takes_none_of_those_that_have_an_id(script: Script) -> None:
    """81 for a member that returns too late (KIP-389).

    Its id is removed, and no rebalance waits for it.
    """
    fields = {"members_max": 3, "known_member_id_required": True, "hold_first_rebalance": True}
    first, second = (script.join(**fields).member_id for _ in range(2))
    script.join(first, **fields)
    third, late = (script.join(**fields).member_id for _ in range(2))
    for member_id in (second, third):
        assert script.join(member_id, **fields).error is ErrorCode.NONE
    answer = script.join(late, **fields)
    assert (answer.error, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, late)
    assert answer.events == [MemberRemoved(G, late, ErrorCode.UNKNOWN_MEMBER_ID)]
    assert not script.group.pending
    script.apply(commands.CompleteJoin(G, 0))
    assert list(script.group.members) == [first, second, third]
    assert script.join(late, **fields).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("instance_id", "restarts"), [(None, False), ("i", False), ("i", True)])
def test_member_that_rejoins_last_finds_its_place_taken(
    script: Script, instance_id: str | None, restarts: bool
) -> None:
    """Members that have not rejoined keep no place: they may never do so.

    When the last one is refused the rebalance ends.
    """
    first = script.join().member_id
    script.sync(first, {})
    slow = script.join(group_instance_id=instance_id).member_id
    script.finish([first, slow])
    for _ in range(2):
        assert script.join(members_max=3).error is ErrorCode.NONE
    assert script.join(first, members_max=3).error is ErrorCode.NONE
    said = "" if restarts else slow
    answer = script.join(said, members_max=3, group_instance_id=instance_id)
    assert (answer.error, answer.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, said)
    assert answer.events == [
        MemberRemoved(G, slow, ErrorCode.UNKNOWN_MEMBER_ID),
        JoinCompleted(G),
    ]
    assert (len(script.group.members), script.group.leader) == (3, first)


def test_member_that_is_turned_away_disturbs_no_stable_group(script: Script) -> None:
    """The limit was reached while it had an id."""
    script.stable(2)
    pending = script.join(known_member_id_required=True).member_id
    answer = script.join(pending, members_max=2)
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (script.group.state, len(script.group.members)) == (GroupState.STABLE, 2)
    assert not script.group.pending


def test_join_costs_the_same_however_many_members_there_are() -> None:
    """Every replica applies all joins, many at a time, on the loop that also runs elections."""
    assert calls_per_join(5_000) == calls_per_join(100)


def calls_per_join(count: int) -> dict[str, int]:
    """Return the function calls of one join in a group of `count` members, by kind of join."""
    script = Script()
    costs: dict[str, int] = {}

    def join(kind: str, member_id: str = "", **fields: Any) -> Any:
        """Join and record the calls. The last join of a kind is what stays in `costs`."""
        calls = 0

        def called(frame: Any, event: str, callee: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(called)
        try:
            answer = script.join(member_id, members_max=2 * count, **fields)
        finally:
            sys.setprofile(before)
        costs[kind] = calls
        return answer

    held: dict[str, Any] = {"hold_first_rebalance": True, "protocols": {"range": b"", "own": b""}}
    for number in range(count):
        join("first rebalance", group_instance_id=f"i{number}", **held)
    script.apply(commands.CompleteJoin(G, 0))
    script.finish(list(script.group.members))
    static = join("restart of a static member", group_instance_id="i0").member_id
    assert script.group.state is GroupState.STABLE
    join("stable group")
    # The last but one, or it would end the rebalance.
    for member_id in [key for key in script.group.members if key != static][:-1]:
        join("rejoin", member_id, group_instance_id=instance_of(script.group, member_id))
    join("rebalance nearly over")
    assert script.group.state is GroupState.PREPARING_REBALANCE
    return costs


def instance_of(group: ConsumerGroup, member_id: str) -> str | None:
    return group.members[member_id].group_instance_id


# --- static members ----------------------------------------------------------------------------


def test_static_member_that_restarts_keeps_its_place_without_a_rebalance(script: Script) -> None:
    """KIP-345: a new id, the old assignment; the old id is fenced."""
    leader = script.join().member_id
    script.sync(leader, {})
    old = script.join(group_instance_id="i").member_id
    script.join(leader)
    script.sync(leader, {old: b"mine"})
    generation = script.group.generation
    answer = script.join(group_instance_id="i")
    assert answer.error is ErrorCode.NONE
    assert answer.leader_before == leader
    assert answer.events == [MemberRemoved(G, old, ErrorCode.FENCED_INSTANCE_ID)]
    assert (script.group.state, script.group.generation) == (GroupState.STABLE, generation)
    assert script.group.members[answer.member_id].assignment == b"mine"
    groups = script.machine.groups
    for check in (groups.check_heartbeat, groups.check_commit):
        assert check(G, generation, old, "i") is ErrorCode.FENCED_INSTANCE_ID
        assert check(G, generation, answer.member_id, "i") is ErrorCode.NONE


def test_static_leader_that_restarts_leads_under_its_new_id(script: Script) -> None:
    """KIP-814: the answer names the previous leader, so that the client does not assign again."""
    old = script.join(group_instance_id="i").member_id
    script.sync(old, {old: b"all"})
    answer = script.join(group_instance_id="i")
    assert answer.leader_before == old
    assert script.group.leader == answer.member_id


def test_static_member_that_restarts_during_a_rebalance_joins_it(script: Script) -> None:
    """While the assignment is awaited a new generation is needed: its metadata may be new."""
    old = script.join(group_instance_id="i").member_id
    answer = script.join(group_instance_id="i")
    assert answer.leader_before is None
    assert [type(event) for event in answer.events] == [
        MemberRemoved,
        RebalanceStarted,
        JoinCompleted,
    ]
    assert old not in script.group.members
    assert script.group.generation == 2


def test_absent_static_members_are_kept_over_the_rebalance_timeout(script: Script) -> None:
    """A static member is removed only when its session ends (KIP-345)."""
    static = script.join(group_instance_id="i").member_id
    script.sync(static, {})
    script.join()
    script.apply(commands.CompleteJoin(G, script.group.generation))
    assert static in script.group.members
    assert script.group.leader != static
    assert script.group.state is GroupState.COMPLETING_REBALANCE


def test_timeout_with_only_absent_static_members_starts_over(script: Script) -> None:
    """There is no leader: the generation waits for the sessions to end or for a member to join."""
    static = script.join(group_instance_id="i").member_id
    script.sync(static, {})
    dynamic = script.join().member_id
    script.apply(commands.ExpireMembers(G, [dynamic]))
    generation = script.group.generation
    changed = script.apply(commands.CompleteJoin(G, generation))
    assert changed.events == [RebalanceStarted(G)]
    assert script.group.generation == generation
    changed = script.apply(commands.ExpireMembers(G, [static]))
    assert script.group.state is GroupState.EMPTY


# --- syncing -----------------------------------------------------------------------------------


def test_sync_is_checked_against_member_generation_and_protocol(script: Script) -> None:
    """25, 22, 23, 82, and 27 while a rebalance is being prepared."""
    unknown = commands.SyncGroup(G, 1, "m", None, None, None, [])
    assert script.machine.groups.check_sync(unknown) is ErrorCode.UNKNOWN_MEMBER_ID
    leader = script.join(group_instance_id="i").member_id
    assert script.sync("nobody", {}).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert script.sync(leader, {}, generation=7).error is ErrorCode.ILLEGAL_GENERATION
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert script.sync(leader, {}, protocol_type="connect").error is wrong
    assert script.sync(leader, {}, protocol_name="sticky").error is wrong
    fenced = script.sync("other", {}, group_instance_id="i")
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID
    assert script.sync(leader, {}, protocol_type="consumer", protocol_name="range").events
    script.join()
    assert script.sync(leader, {}).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_assignment_is_set_once_and_by_the_leader_alone(script: Script) -> None:
    """A second assignment, or a follower's, changes nothing."""
    first, second = script.stable(2)
    members = script.group.members
    assert [members[m].assignment for m in (first, second)] == [first.encode(), second.encode()]
    before = script.machine.items()
    assert script.sync(first, {first: b"other"}).events == []
    assert script.sync(second, {second: b"other"}).events == []
    assert script.machine.items() == before


def test_member_left_out_of_the_assignment_gets_an_empty_one(script: Script) -> None:
    """An assignment for a non-member is dropped."""
    leader = script.join().member_id
    script.sync(leader, {"stranger": b"x"})
    assert script.group.members[leader].assignment == b""


# --- leaving, expiring, deleting -----------------------------------------------------------------


def test_leaving_member_starts_a_rebalance_and_the_last_one_empties_the_group(
    script: Script,
) -> None:
    """A leaving member's partitions go to the others at once."""
    first, second = script.stable(2)
    answer = script.leave((first, None))
    assert answer.errors == [ErrorCode.NONE]
    assert answer.events == [
        MemberRemoved(G, first, ErrorCode.UNKNOWN_MEMBER_ID),
        RebalanceStarted(G),
    ]
    assert script.group.state is GroupState.PREPARING_REBALANCE
    generation = script.group.generation
    answer = script.leave((second, None))
    assert answer.events[-1] == JoinCompleted(G)
    assert (script.group.state, script.group.leader) == (GroupState.EMPTY, None)
    assert script.group.generation == generation + 1


def test_members_leave_by_instance_id_each_with_its_own_error(script: Script) -> None:
    """KIP-345: an administrator removes several at once."""
    a = script.join(group_instance_id="a", hold_first_rebalance=True).member_id
    b = script.join(group_instance_id="b").member_id
    script.apply(commands.CompleteJoin(G, 0))
    answer = script.leave(("", "a"), ("x", "b"), ("", "no"), ("no", None), ("", None))
    assert answer.errors == [
        ErrorCode.NONE,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert a not in script.group.members
    assert b in script.group.members
    nobody = script.apply(commands.LeaveGroup("no group", [commands.LeavingMember("m")]))
    assert nobody.errors == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_expired_member_is_removed_only_in_the_generation_named(script: Script) -> None:
    """A member that did not sync in time is removed from that generation only."""
    first, second = script.stable(2)
    old = commands.ExpireMembers(G, [second], generation=script.group.generation - 1)
    assert script.apply(old).events == []
    assert script.apply(commands.ExpireMembers(G, [second])).events == [
        MemberRemoved(G, second, ErrorCode.UNKNOWN_MEMBER_ID),
        RebalanceStarted(G),
    ]
    assert script.join(first).events == [JoinCompleted(G)]


def test_group_is_deleted_only_when_empty_with_its_offsets(script: Script) -> None:
    """68 with members, 69 for an unknown group (KIP-229)."""
    (member,) = script.stable(1)
    offset = commands.OffsetCommit("t", b"i" * 16, 0, 5, -1, "")
    script.apply(commands.CommitOffsets(G, script.group.generation, member, None, [offset]))
    delete = commands.DeleteGroups([G, "no"])
    assert script.apply(delete).errors == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    script.leave((member, None))
    answer = script.apply(delete)
    assert answer.errors[0] is ErrorCode.NONE
    assert answer.events == [GroupDeleted(G)]
    assert script.machine.items() == []


def test_generation_survives_members_and_never_falls(script: Script) -> None:
    """A zombie of an earlier generation must not count as a member of a new one."""
    seen = []
    for _ in range(3):
        (member,) = script.stable(1)
        seen.append(script.group.generation)
        script.leave((member, None))
        seen.append(script.group.generation)
    assert seen == sorted(set(seen))


def test_heartbeat_is_told_what_to_do_next(script: Script) -> None:
    """NONE; 27: rejoin; 22: the generation has ended; 25: unknown member."""
    check = script.machine.groups.check_heartbeat
    assert check(G, 1, "m", None) is ErrorCode.UNKNOWN_MEMBER_ID
    leader = script.join().member_id
    assert check(G, 1, leader, None) is ErrorCode.NONE, "an assignment is awaited"
    script.sync(leader, {})
    assert check(G, 1, leader, None) is ErrorCode.NONE
    assert check(G, 0, leader, None) is ErrorCode.ILLEGAL_GENERATION
    assert check(G, 1, "no", None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert check(G, 1, leader, "i") is ErrorCode.UNKNOWN_MEMBER_ID
    script.join()
    assert check(G, 1, leader, None) is ErrorCode.REBALANCE_IN_PROGRESS


# --- offsets of topics without a subscriber --------------------------------------------------


def subscription(*topics: str) -> bytes:
    """Return a ConsumerProtocolSubscription, version 1, without owned partitions."""
    encoded = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    head = b"\x00\x01" + len(topics).to_bytes(4, "big")
    return head + encoded + b"\xff\xff\xff\xff\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("metadata", "protocol_type", "left"),
    [
        (subscription("kept", "new"), "consumer", ["kept"]),
        (subscription("kept", "gone"), "consumer", ["gone", "kept"]),
        (subscription("kept")[:-12], "consumer", ["gone", "kept"]),
        (b"", "consumer", ["gone", "kept"]),
        (subscription("kept"), "connect", ["gone", "kept"]),
    ],
    ids=["left", "subscribed", "cut off", "empty", "another protocol"],
)
def test_offsets_of_topics_that_a_live_group_left_expire(
    script: Script, metadata: bytes, protocol_type: str, left: list[str]
) -> None:
    """Offsets of unsubscribed topics expire as in Kafka.

    They do so in a stable group of consumers, where all subscriptions are known; counted from the
    commit. The group itself stays.
    """
    fields: dict[str, Any] = {"protocols": {"range": metadata}, "protocol_type": protocol_type}
    (member,) = script.stable(1, **fields)
    offsets = [
        commands.OffsetCommit(name, bytes(16), 0, 5, -1, "", number)
        for number, name in enumerate(("gone", "kept"), 20)
    ]
    commit = commands.CommitOffsets(G, script.group.generation, member, None, offsets)
    assert script.apply(commit).error is ErrorCode.NONE
    assert script.apply(commands.ExpireOffsets(retention_ms=60_000)).count == 0
    script.now_ms += 60_000
    script.apply(commands.ExpireOffsets(retention_ms=60_000))
    assert sorted(topic for topic, _ in script.machine.offsets.of(G)) == left
    assert script.group.state is GroupState.STABLE


def test_group_that_rebalances_keeps_the_offsets_of_topics_it_left(script: Script) -> None:
    """New members may subscribe to them; a stable group without offsets stays."""
    fields: dict[str, Any] = {"protocols": {"range": subscription("kept")}}
    (member,) = script.stable(1, **fields)
    gone = commands.OffsetCommit("gone", bytes(16), 0, 5, -1, "", 20)
    script.apply(commands.CommitOffsets(G, script.group.generation, member, None, [gone]))
    script.now_ms += 60_000
    script.join(**fields)
    assert script.apply(commands.ExpireOffsets(retention_ms=60_000)).count == 0
    script.leave(("m2", None))
    script.join(member, **fields)
    script.sync(member, {})
    assert script.group.state is GroupState.STABLE
    assert script.apply(commands.ExpireOffsets(retention_ms=60_000)).count == 1
    assert script.machine.group(G) is not None


# --- offsets that are deleted --------------------------------------------------------------------


def committed(script: Script, member: str, *topics: str) -> None:
    offsets = [commands.OffsetCommit(name, bytes(16), 0, 5, -1, "", 20) for name in topics]
    commit = commands.CommitOffsets(G, script.group.generation, member, None, offsets)
    assert script.apply(commit).error is ErrorCode.NONE


def delete_offsets(script: Script, *topics: str) -> list[ErrorCode]:
    answer = script.apply(commands.DeleteOffsets(G, [(topic, 0) for topic in topics]))
    assert answer.events == []
    assert answer.error is ErrorCode.NONE
    errors: list[ErrorCode] = answer.errors
    return errors


def test_offsets_of_an_empty_group_are_deleted_and_again(script: Script) -> None:
    """Deleting absent offsets succeeds; the group stays, and accepts commits."""
    (member,) = script.stable(1, protocols={"range": subscription("t")})
    committed(script, member, "t", "u")
    script.leave((member, None))
    for _ in range(2):
        assert delete_offsets(script, "t", "t", "never") == [ErrorCode.NONE] * 3
        assert list(script.machine.offsets.of(G)) == [("u", 0)]
    assert delete_offsets(script, "u") == [ErrorCode.NONE]
    assert script.machine.offsets.bytes == 0
    assert script.group.state is GroupState.EMPTY


def test_offsets_of_subscribed_topics_are_not_deleted(script: Script) -> None:
    """86 for each of them; offsets of other topics are deleted (KIP-496)."""
    (member,) = script.stable(1, protocols={"range": subscription("kept")})
    committed(script, member, "kept", "gone")
    assert delete_offsets(script, "kept", "gone") == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
    ]
    assert list(script.machine.offsets.of(G)) == [("kept", 0)]


@pytest.mark.parametrize("metadata", [b"", subscription("kept")[:-12]], ids=["empty", "cut off"])
def test_offsets_are_not_deleted_where_subscriptions_cannot_be_read(
    script: Script, metadata: bytes
) -> None:
    """The members may subscribe to any topic."""
    (member,) = script.stable(1, protocols={"range": metadata})
    committed(script, member, "t")
    assert delete_offsets(script, "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert list(script.machine.offsets.of(G)) == [("t", 0)]


def test_offsets_are_not_deleted_while_a_first_rebalance_is_held(script: Script) -> None:
    """Offsets are kept as long as it is not decided which of a member's subscriptions counts."""
    script.apply(
        commands.CommitOffsets(G, -1, "", None, [commands.OffsetCommit("t", b"", 0, 5, -1, "")])
    )
    script.join(protocols={"range": subscription("u")}, hold_first_rebalance=True)
    assert script.group.state is GroupState.PREPARING_REBALANCE
    assert delete_offsets(script, "t") == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_offsets_of_a_group_that_is_none_are_not_deleted(script: Script) -> None:
    """69 for an unknown group, 68 for one of another protocol while it has members."""
    delete = commands.DeleteOffsets(G, [("t", 0)])
    assert script.apply(delete).error is ErrorCode.GROUP_ID_NOT_FOUND
    (member,) = script.stable(1, protocol_type="connect")
    committed(script, member, "t")
    answer = script.apply(delete)
    assert (answer.error, answer.errors) == (ErrorCode.NON_EMPTY_GROUP, [])
    script.leave((member, None))
    assert delete_offsets(script, "t") == [ErrorCode.NONE]
