"""Replicated state that clients create stays within what a snapshot can carry."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from vdl.errors import ErrorCode
from vdl.logstream.group.snapshots import (
    SNAPSHOT_BYTES_MAX,
    Members,
    decode_snapshot,
    encode_snapshot,
)
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.changed_parts import ChangedParts
from vdl.state.consumer_group import GroupState
from vdl.state.consumer_groups import GROUP_BYTES_MAX, ConsumerGroups
from vdl.state.coordinator import COORDINATOR_BYTES_MAX, Coordinator
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.resource_configs import CONFIGS_BYTES_MAX

MB = 1_000_000
Positions = tuple[str, commands.OffsetCommit, int]
"""A group, what it commits, and for how long that is kept (ms)."""


class Script:
    """A coordinator to which commands are applied one at a time."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.rng = Random(1)
        self.drawn = 0

    def apply(self, command: Any) -> Any:
        self.drawn += 1
        return self.machine.apply(command, self.drawn, self.drawn)

    def join(self, group: str, size: int, member_id: str = "", **fields: Any) -> Any:
        values: dict[str, Any] = {
            "group_id": group,
            "member_id": member_id,
            "new_member_id": f"m{self.drawn}",
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/h",
            "session_timeout_ms": 1,
            "rebalance_timeout_ms": 1,
            "protocol_type": "consumer",
            "protocols": [commands.Protocol("range", self.rng.randbytes(size))],
            "known_member_id_required": False,
            "members_max": 1_000_000,
            "hold_first_rebalance": False,
        }
        return self.apply(commands.JoinGroup(**(values | fields)))

    def commit(self, group: str, *metadata: str) -> ErrorCode:
        offsets = [
            commands.OffsetCommit("t", bytes(16), index, 1, -1, text, 9)
            for index, text in enumerate(metadata)
        ]
        answer = self.apply(commands.CommitOffsets(group, -1, "", None, offsets))
        error: ErrorCode = answer.error
        return error

    def noise(self, count: int) -> str:
        return self.rng.randbytes(count).hex()[:count]


def snapshot_bytes(machine: Coordinator) -> int:
    return len(encode_snapshot(Members(0, (1,)), machine.items()))


def test_a_group_is_bounded_whoever_joins() -> None:
    """Twelve members of 1 MB each.

    The next one gets the error for a full group, and disturbs no member.
    """
    script = Script()
    errors = [script.join("g", MB).error for _ in range(12)]
    assert errors == [ErrorCode.NONE] * 2 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 10
    group = script.machine.group("g")
    assert group is not None
    assert group.bytes <= GROUP_BYTES_MAX
    assert len(group.members) == 2


def test_a_group_at_its_bound_goes_on_with_what_it_has() -> None:
    """A member that rejoins with no more than before is never refused.

    With more, it keeps its place.
    """
    script = Script()
    first = script.join("g", MB).member_id
    script.join("g", MB)
    assert script.join("g", MB, first).error is ErrorCode.NONE
    assert script.join("g", 10, first).error is ErrorCode.NONE
    assert script.join("g", GROUP_BYTES_MAX, first).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    group = script.machine.group("g")
    assert group is not None
    assert first in group.members


def test_an_assignment_counts_like_a_subscription() -> None:
    """An assignment beyond the bound is refused before anything is set.

    The leader may send a smaller one.
    """
    script = Script()
    leader = script.join("g", MB).member_id

    def sync(size: int) -> ErrorCode:
        assignments = [(leader, script.rng.randbytes(size))]
        answer = script.apply(commands.SyncGroup("g", 1, leader, None, None, None, assignments))
        error: ErrorCode = answer.error
        return error

    assert sync(GROUP_BYTES_MAX - MB) is ErrorCode.MESSAGE_TOO_LARGE
    group = script.machine.group("g")
    assert group is not None
    assert group.state is GroupState.COMPLETING_REBALANCE
    assert sync(1000) is ErrorCode.NONE


def test_a_full_coordinator_gives_an_error_that_clients_try_again() -> None:
    """Each kind of request that grows the state gets a retriable error.

    All of them continue as soon as there is space.
    """
    script = Script()
    leader = script.join("g", 10).member_id
    names = iter(range(100_000))
    for size in (1_000, 40, 1):
        metadata = [script.noise(size) for _ in range(40)]
        while script.commit(f"g{next(names)}", *metadata) is ErrorCode.NONE:
            pass
    position = commands.OffsetCommit("t", bytes(16), 0, 1, -1, script.noise(4_000), 9)
    grow = [
        commands.CommitOffsets("new", -1, "", None, [position]),
        commands.CommitTransactionOffsets(
            group_id="new",
            generation=-1,
            member_id="",
            group_instance_id=None,
            producer_id=7,
            producer_epoch=0,
            number=1,
            offsets=[position],
        ),
        commands.InitTransactions("x" * 4_000, 1, 7),
    ]
    sync = commands.SyncGroup("g", 1, leader, None, None, None, [(leader, bytes(4_000))])
    for _ in range(2):
        assert [script.apply(command).error for command in grow] == [COORDINATOR_IS_FULL] * 3
        assert script.join("late", 4_000).error is COORDINATOR_IS_FULL
        assert script.apply(sync).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    script.apply(commands.DeleteGroups([f"g{number}" for number in range(50)]))
    assert [script.apply(command).error for command in grow] == [ErrorCode.NONE] * 3
    assert script.join("late", 4_000).error is ErrorCode.NONE
    assert script.apply(sync).error is ErrorCode.NONE


def test_all_groups_of_a_coordinator_fit_into_a_snapshot() -> None:
    """The groups at the bound fit into a snapshot with incompressible content.

    The log may still be truncated.
    """
    script = Script()
    names = iter(range(100_000))
    while script.join(f"g{next(names)}", MB // 2).error is ErrorCode.NONE:
        pass
    while script.join(f"g{next(names)}", 5_000).error is ErrorCode.NONE:
        pass
    used = script.machine.groups.bytes_held
    assert COORDINATOR_BYTES_MAX - 6_000 < used <= COORDINATOR_BYTES_MAX
    assert snapshot_bytes(script.machine) <= SNAPSHOT_BYTES_MAX // 2


def test_what_is_said_along_with_offsets_counts() -> None:
    """4 KiB each. A commit that needs no more space than before is accepted at the bound, too."""
    script = Script()
    names = iter(range(100_000))
    while script.commit(f"g{next(names)}", *(script.noise(4096) for _ in range(20))) == 0:
        pass
    last = f"g{next(names) - 1}"
    assert script.machine.group(last) is None
    assert script.machine.offsets.bytes <= COORDINATOR_BYTES_MAX
    assert snapshot_bytes(script.machine) <= SNAPSHOT_BYTES_MAX // 2
    assert script.commit("g0", *(script.noise(4096) for _ in range(20))) is ErrorCode.NONE
    assert script.commit(last, script.noise(4096 * 20)) is COORDINATOR_IS_FULL
    assert script.join("new", MB).error is COORDINATOR_IS_FULL
    script.apply(commands.DeleteGroups(["g0"]))
    assert script.commit(last, script.noise(4096)) is ErrorCode.NONE


def spread(script: Script, groups: int, topics: int, each: int) -> Iterator[Positions]:
    """Return positions of `groups` groups in `topics` topics, `each` per group.

    They are in shuffled order, with incompressible names, ids and numbers.
    """
    rng = script.rng
    names = [(script.noise(30), rng.randbytes(16)) for _ in range(topics)]
    for _ in range(groups):
        group = script.noise(30)
        for _ in range(each):
            topic, topic_id = rng.choice(names)
            partition, offset, epoch = (rng.getrandbits(bits) for bits in (31, 62, 31))
            place = rng.getrandbits(31)
            position = commands.OffsetCommit(topic, topic_id, partition, offset, epoch, "", place)
            yield group, position, rng.getrandbits(50)


@pytest.mark.parametrize(
    ("groups", "topics", "each"),
    [
        (1, 1, 100_000),
        (100_000, 1, 1),
        (1, 100_000, 100_000),
        (100_000, 20_000, 3),
        (10_000, 5_000, 10),
        (1_000, 1_000, 100),
    ],
)
def test_positions_of_any_names_fit_into_a_snapshot(groups: int, topics: int, each: int) -> None:
    """The positions at the bound fit into a snapshot, which a replica can unpack.

    The log may still be truncated. Each position counts the same as when it was added, also after a
    restart, and the count is zero when all are gone.
    """
    script = Script()
    for group, position, retention_ms in spread(script, groups, topics, each):
        command = commands.CommitOffsets(group, -1, "", None, [position], retention_ms)
        if script.apply(command).error is not ErrorCode.NONE:
            break
    else:
        pytest.fail("the bound was not met")
    machine = script.machine
    assert machine.groups.bytes_held + machine.offsets.bytes <= COORDINATOR_BYTES_MAX
    data = encode_snapshot(Members(0, (1,)), machine.items())
    assert len(data) <= SNAPSHOT_BYTES_MAX // 2
    again = Coordinator()
    again.load(decode_snapshot(data).items)
    assert again.offsets.bytes == machine.offsets.bytes
    for group_id in sorted(machine.groups.groups):
        machine.offsets.remove_group(group_id)
    assert machine.offsets.bytes == len(machine.offsets) == 0


def test_a_group_at_the_bound_goes_on_with_its_positions() -> None:
    """Committing a later offset needs no space, however much larger the number is."""
    script = Script()
    partition = 0
    while True:
        small = commands.OffsetCommit("t", bytes(16), partition, 1, 1, "", 9)
        if script.apply(commands.CommitOffsets("g", -1, "", None, [small])).error:
            break
        partition += 1
    large = commands.OffsetCommit("t", bytes(16), 7, 1 << 60, 1 << 30, "", 9)
    assert script.apply(commands.CommitOffsets("g", -1, "", None, [large])).error == 0
    assert 60_000 < partition < 80_000


def raised(*, bytes_max: int = MB, count_max: int = 100) -> Script:
    script = Script()
    script.apply(commands.RaisePositionsBound(bytes_max, count_max))
    return script


def test_positions_that_have_a_bound_of_their_own_leave_the_other_to_the_rest() -> None:
    """Groups, members and transactions keep their limit beside positions, and vice versa."""
    script = raised(bytes_max=2 * COORDINATOR_BYTES_MAX, count_max=1_000_000)
    names = iter(range(100_000))
    while script.commit("g", *(script.noise(40_000) for _ in range(next(names)))) == 0:
        pass
    assert script.machine.offsets.bytes > COORDINATOR_BYTES_MAX * 3 // 2
    while script.join(f"m{next(names)}", MB // 2).error is ErrorCode.NONE:
        pass
    held = script.machine.shared_bytes
    assert COORDINATOR_BYTES_MAX - MB < held <= COORDINATOR_BYTES_MAX
    assert script.commit("g", "") is ErrorCode.NONE
    assert script.join("late", MB // 2).error is COORDINATOR_IS_FULL
    while script.commit("x" * 9_999 + f"{next(names)}", "") is ErrorCode.NONE:
        pass
    assert script.machine.shared_bytes <= COORDINATOR_BYTES_MAX
    assert script.commit("g", *("n" for _ in range(20))) is ErrorCode.NONE


def test_positions_have_a_number_at_the_most() -> None:
    """The number of positions is limited, tested at the limit and one past it.

    Existing positions can be updated, also in a commit that names new ones.
    """
    script = raised()
    assert script.commit("g", *([""] * 60)) is ErrorCode.NONE
    assert script.commit("h", *([""] * 41)) is COORDINATOR_IS_FULL
    assert script.machine.kind_of("h") is None
    assert script.commit("h", *([""] * 40)) is ErrorCode.NONE
    assert script.commit("i", "") is COORDINATOR_IS_FULL
    assert script.commit("g", *([""] * 60)) is ErrorCode.NONE
    assert script.commit("g", *(["more"] * 60)) is ErrorCode.NONE
    assert script.commit("g", *([""] * 61)) is COORDINATOR_IS_FULL
    script.apply(commands.DeleteOffsets("h", [("t", 0)]))
    assert script.commit("g", *([""] * 61)) is ErrorCode.NONE


def test_positions_have_bytes_at_the_most() -> None:
    """The bytes of positions are limited, including pending ones of transactions.

    Tested at the limit and one past it.
    """
    script = raised(bytes_max=10_000, count_max=1_000)
    assert script.commit("g", "m" * 5_000) is ErrorCode.NONE
    left = 10_000 - script.machine.offsets.bytes
    assert script.commit("g", "m" * (5_000 + left + 1)) is COORDINATOR_IS_FULL
    assert script.commit("g", "m" * (5_000 + left)) is ErrorCode.NONE
    one = commands.OffsetCommit("t", bytes(16), 0, 1, -1, "m" * (5_000 + left + 1), 9)
    pend = commands.CommitTransactionOffsets("g", -1, "", None, 7, 0, 1, [one])
    assert script.apply(pend).error is COORDINATOR_IS_FULL


def test_bounds_of_positions_are_never_lowered_and_outlive_a_restart() -> None:
    """The bounds are applied twice, or by the leader of another version."""
    script = raised(bytes_max=500, count_max=7)
    script.apply(commands.RaisePositionsBound(400, 9))
    bound = script.machine.positions_bound
    assert bound is not None
    assert (bound.bytes_max, bound.count_max) == (500, 9)
    again = Coordinator()
    again.load(script.machine.items())
    assert again.positions_bound == bound
    assert dict(script.machine.take_dirty()) == dict(again.items())
    assert again.take_dirty() == []


def test_bounds_of_positions_are_none_that_an_older_build_passes_over() -> None:
    """Stored bounds share the key prefix of groups.

    So an older build, which cannot apply them, fails to load instead of diverging.
    """
    script = raised()
    groups = [value for key, value in script.machine.items() if key[:1] == b"g"]
    with pytest.raises(msgspec.DecodeError):
        ConsumerGroups(ChangedParts()).load(groups)
    again = Coordinator()
    again.load(script.machine.items())
    assert again.positions_bound == script.machine.positions_bound


def test_a_state_that_is_loaded_in_pieces_is_the_same() -> None:
    """The loaded state is independent of the order of its pieces; the previous state is dropped."""
    script = Script()
    for n in range(30):
        script.commit(f"g{n}", *("m" for _ in range(n)))
    script.join("h", 100)
    items = script.machine.items()
    script.rng.shuffle(items)
    other = raised().machine
    other.begin_load()
    for start in range(0, len(items), 7):
        other.load_more(items[start : start + 7])
    other.end_load()
    assert other.items() == script.machine.items()
    assert other.bytes_held == script.machine.bytes_held
    assert other.positions_bound is None


def test_long_names_count_each_time() -> None:
    """Compression makes little of them; unpacked they occur as often as they are named."""
    script = Script()
    group, topic = script.noise(30_000), script.noise(30_000)
    places = iter(range(1_000_000))

    def commit() -> ErrorCode:
        position = commands.OffsetCommit(topic, bytes(16), next(places), 1, 1, "", 9)
        error: ErrorCode = script.apply(
            commands.CommitOffsets(group, -1, "", None, [position])
        ).error
        return error

    while commit() is ErrorCode.NONE:
        pass
    items = script.machine.items()
    assert decode_snapshot(encode_snapshot(Members(0, (1,)), items)).items == items


def test_names_and_ids_count() -> None:
    """Groups that hold only a long name, and issued ids that are never used."""
    script = Script()
    while script.commit(script.noise(30_000), "") is ErrorCode.NONE:
        pass
    assert script.machine.groups.bytes_held + script.machine.offsets.bytes <= COORDINATOR_BYTES_MAX
    script = Script()
    script.join("g", 10)
    while True:
        answer = script.join(
            "g", 10, new_member_id=script.noise(30_000), known_member_id_required=True
        )
        if answer.error is not ErrorCode.MEMBER_ID_REQUIRED:
            break
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert script.machine.groups.bytes_held <= GROUP_BYTES_MAX


@pytest.mark.parametrize("seed", range(20))
def test_what_is_counted_is_what_is_there(seed: int) -> None:
    """Incremental sizes equal those counted from a snapshot: every replica decides alike."""
    script = Script()
    rng = Random(seed)
    members: list[str] = [""]
    for _ in range(120):
        group = rng.choice("ab")
        match rng.randrange(7):
            case 0 | 1:
                answer = script.join(
                    group,
                    rng.randrange(50),
                    rng.choice(members),
                    known_member_id_required=rng.random() < 0.5,
                    client_id="c" * rng.randrange(9),
                    group_instance_id=rng.choice((None, None, "i", "j")),
                )
                members.append(answer.member_id)
            case 2:
                found = script.machine.group(group)
                if found is not None and found.leader is not None:
                    assigned = [(m, bytes(rng.randrange(30))) for m in found.members]
                    script.apply(
                        commands.SyncGroup(
                            group, found.generation, found.leader, None, None, None, assigned
                        )
                    )
            case 3:
                leaving = commands.LeavingMember(rng.choice(members))
                script.apply(commands.LeaveGroup(group, [leaving]))
            case 4:
                found = script.machine.group(group)
                if found is not None:
                    script.apply(commands.CompleteJoin(group, found.generation))
            case 5:
                script.commit(group, *("ä" * rng.randrange(9) for _ in range(rng.randrange(4))))
            case _:
                script.apply(commands.DeleteGroups([group]))
        other = Coordinator()
        other.load(script.machine.items())
        assert other.groups.bytes_held == script.machine.groups.bytes_held
        assert other.offsets.bytes == script.machine.offsets.bytes


# --- the catalog ----------------------------------------------------------------------------------


@pytest.fixture
def catalog() -> Catalog:
    catalog = Catalog("c")
    for server in (1, 2, 3):
        command = commands.RegisterServer(server, bytes([server]) * 16, "", {}, True)
        catalog.apply(command, 0, server)
    return catalog


def create(catalog: Catalog, *topics: commands.NewTopic) -> list[ErrorCode]:
    command = commands.CreateTopics(
        list(topics), replicas_per_server_max=10, counts_each_server=True
    )
    return [topic.error for topic in catalog.apply(command, 0, 9).topics]


def topic(name: str, partitions: int = -1, **fields: Any) -> commands.NewTopic:
    return commands.NewTopic(name, name.encode().ljust(16), partitions, **fields)


def test_replicas_of_a_server_are_bounded(catalog: Catalog) -> None:
    """The replicas of a server are limited, summed over the topics of one command.

    Tested at the limit and one past it.
    """
    assert create(catalog, topic("a", 11)) == [ErrorCode.POLICY_VIOLATION]
    assert create(catalog, topic("a", 6), topic("b", 4), topic("c", 1)) == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert sum(len(group.replicas) for group in catalog.groups.values()) == 30
    catalog.apply(commands.DeleteTopics(["b"]), 0, 10)
    assert create(catalog, topic("c", 4)) == [ErrorCode.NONE]


def test_replicas_that_are_placed_by_hand_count_where_they_are(catalog: Catalog) -> None:
    """Other servers have space; the named one does not."""
    assert create(catalog, topic("a", assignments=[[1]] * 11)) == [ErrorCode.POLICY_VIOLATION]
    assert create(catalog, topic("a", assignments=[[1]] * 10)) == [ErrorCode.NONE]
    assert create(catalog, topic("b", assignments=[[2, 1]])) == [ErrorCode.POLICY_VIOLATION]
    assert create(catalog, topic("b", assignments=[[2, 3]])) == [ErrorCode.NONE]


def test_no_server_gets_more_replicas_than_it_may_have_while_others_have_few(
    catalog: Catalog,
) -> None:
    """Copies on all three need space on all three; the total over them is not enough."""
    assert create(catalog, topic("by-hand", assignments=[[1]] * 8)) == [ErrorCode.NONE]
    assert create(catalog, topic("a", 3)) == [ErrorCode.POLICY_VIOLATION]
    assert create(catalog, topic("a", 2)) == [ErrorCode.NONE]
    command = commands.CreateTopics(
        [topic("b", 9, replication_factor=1)],
        alive=[2],
        replicas_per_server_max=10,
        counts_each_server=True,
    )
    (refused,) = catalog.apply(command, 0, 9).topics
    assert refused.error is ErrorCode.POLICY_VIOLATION
    assert "server 2 would have 11 partition replicas" in refused.message
    assert "the maximum is 10" in refused.message


def test_a_command_of_an_older_version_is_decided_as_it_was(catalog: Catalog) -> None:
    """An older version's command is decided by the total again, at a start or a late replica."""
    assert create(catalog, topic("a", assignments=[[1]] * 9)) == [ErrorCode.NONE]
    old = commands.CreateTopics([topic("b", 6)], replicas_per_server_max=10)
    assert [topic.error for topic in catalog.apply(old, 0, 9).topics] == [ErrorCode.NONE]
    beyond = commands.CreateTopics([topic("c", 3)], replicas_per_server_max=10)
    (refused,) = catalog.apply(beyond, 0, 10).topics
    assert refused.error is ErrorCode.POLICY_VIOLATION


def test_settings_of_a_topic_are_bounded(catalog: Catalog) -> None:
    """A topic's settings are limited when it is created and when they change.

    They are in every snapshot of the catalog.
    """
    long = {"retention.ms": "0" * CONFIGS_BYTES_MAX}
    assert create(catalog, topic("a", 1, configs=long)) == [ErrorCode.INVALID_CONFIG]
    assert create(catalog, topic("a", 1)) == [ErrorCode.NONE]
    change = commands.AlterTopicConfigs([commands.ConfigChange("a", long)])
    assert catalog.apply(change, 0, 10).errors == [ErrorCode.INVALID_CONFIG]
    assert catalog.topics["a"].configs == {}
