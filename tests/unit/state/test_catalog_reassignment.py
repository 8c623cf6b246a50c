"""Reassignments in the catalog: nothing is removed before the group has completed its part."""

from __future__ import annotations

import pytest

from vdl.errors import ErrorCode
from vdl.state.catalog import REPLICA_NUMBER_MAX, Catalog
from vdl.state.commands import (
    AlterReassignments,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FinishedMove,
    FinishReassignments,
    LostReplica,
    NewPartitions,
    NewTopic,
    Reassign,
    RegisterServer,
    ReplaceReplicas,
)
from vdl.state.reassignment import Move, Reassignment, ReplicaInfo

COORDINATORS = 1
GROUP = COORDINATORS + 1
SERVERS = (1, 2, 3, 4, 5, 6)


@pytest.fixture
def catalog() -> Catalog:
    """Return a catalog with a topic `t` of two partitions, each on servers 1, 2 and 3."""
    catalog = Catalog("cluster", coordinator_groups=COORDINATORS)
    for server in SERVERS:
        catalog.apply(RegisterServer(server, bytes([server]) * 16, "", {}, True), 0, 1)
    topic = NewTopic("t", b"t" * 16, assignments=[[1, 2, 3], [1, 2, 3]])
    catalog.apply(CreateTopics([topic]), 0, 1)
    return catalog


def alter(
    catalog: Catalog,
    replicas: list[int] | None,
    *,
    partition: int = 0,
    may_change_count: bool = True,
    replicas_max: int = 0,
) -> ErrorCode:
    change = Reassign("t", partition, replicas)
    answer = catalog.apply(AlterReassignments([change], may_change_count, replicas_max), 0, 1)
    [(error, message)] = answer.errors
    assert isinstance(error, ErrorCode)
    assert bool(message) == (error is not ErrorCode.NONE)
    return error


def finish(catalog: Catalog, revision: int | None = None) -> ErrorCode:
    if revision is None:
        revision = catalog.move(GROUP).revision
    answer = catalog.apply(FinishReassignments([FinishedMove(GROUP, revision)]), 0, 1)
    error = answer.errors[0][0]
    assert isinstance(error, ErrorCode)
    return error


def wanted(catalog: Catalog) -> list[tuple[int, int]]:
    return [(r.server_id, r.replica_number) for r in catalog.replicas(GROUP)]


def leaving(catalog: Catalog) -> list[tuple[int, int]]:
    return [(r.server_id, r.replica_number) for r in catalog.move(GROUP).leaving]


def numbers(catalog: Catalog) -> list[int]:
    return [catalog.replica_number(GROUP, server) for server in SERVERS]


def test_replica_that_leaves_is_kept_until_the_group_has_done_its_part(catalog: Catalog) -> None:
    """A leaving replica is kept until the group has removed it.

    It may be one of the two that hold acknowledged records.
    """
    assert alter(catalog, [4, 1, 2]) is ErrorCode.NONE
    assert wanted(catalog) == [(4, 1), (1, 1), (2, 1)]
    assert numbers(catalog) == [1, 1, 1, 1, 0, 0]
    assert catalog.reassignment(GROUP) == Reassignment([4, 1, 2, 3], [4], [3])
    assert catalog.reassignment(GROUP + 1) is None
    assert finish(catalog) is ErrorCode.NONE
    assert numbers(catalog) == [1, 1, 0, 1, 0, 0]
    assert catalog.reassignment(GROUP) is None


def test_group_that_has_done_an_older_part_has_not_done_the_present_one(catalog: Catalog) -> None:
    """The replica that was leaving then may be a member again."""
    alter(catalog, [1, 2, 4])
    alter(catalog, [1, 2, 3])
    alter(catalog, [1, 2, 5])
    assert finish(catalog, 1) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert finish(catalog, 2) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert leaving(catalog) == [(3, 1), (4, 1)]
    assert finish(catalog, 3) is ErrorCode.NONE
    assert numbers(catalog) == [1, 1, 0, 0, 1, 0]


def test_finish_applied_twice_is_as_good_as_once(catalog: Catalog) -> None:
    alter(catalog, [1, 2, 4])
    finish(catalog)
    items = catalog.items()
    assert finish(catalog) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert finish(catalog, 7) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert catalog.items() == items


def test_server_that_comes_back_gets_the_next_number(catalog: Catalog) -> None:
    """A server's second replica gets a new number.

    Its first one is deleted, and its votes must not be reused (thesis §4.1).
    """
    for times in range(3):
        alter(catalog, [1, 2, 4])
        finish(catalog)
        alter(catalog, [1, 2, 3])
        assert catalog.replica_number(GROUP, 3) == times + 2
        finish(catalog)


def test_server_that_comes_back_before_it_left_keeps_its_replica(catalog: Catalog) -> None:
    alter(catalog, [1, 2, 4])
    alter(catalog, [3, 2, 1])
    assert wanted(catalog) == [(3, 1), (2, 1), (1, 1)]
    assert leaving(catalog) == [(4, 1)]


def test_cancel_goes_back_to_where_the_first_began(catalog: Catalog) -> None:
    """A second alter replaces the first, its origin stays (KIP-455)."""
    alter(catalog, [1, 2, 4])
    alter(catalog, [5, 6, 4])
    assert catalog.reassignment(GROUP) == Reassignment([5, 6, 4, 1, 2, 3], [5, 6, 4], [1, 2, 3])
    assert alter(catalog, None) is ErrorCode.NONE
    assert wanted(catalog) == [(1, 1), (2, 1), (3, 1)]
    # They may be voters: they go when the group has removed them, without a notification.
    assert leaving(catalog) == [(4, 1), (5, 1), (6, 1)]
    assert catalog.reassignment(GROUP) is None
    assert not catalog.is_reassigning(catalog.topics["t"])
    assert alter(catalog, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert finish(catalog) is ErrorCode.NONE
    assert numbers(catalog) == [1, 1, 1, 0, 0, 0]


def test_alter_after_a_cancel_begins_anew(catalog: Catalog) -> None:
    alter(catalog, [1, 2, 4])
    alter(catalog, None)
    alter(catalog, [1, 2, 5])
    assert catalog.reassignment(GROUP) == Reassignment([1, 2, 5, 3, 4], [5], [3, 4])
    alter(catalog, None)
    assert wanted(catalog) == [(1, 1), (2, 1), (3, 1)]


def test_another_order_is_no_reassignment(catalog: Catalog) -> None:
    """A change of the order changes only the preferred leader."""
    assert alter(catalog, [3, 1, 2]) is ErrorCode.NONE
    assert wanted(catalog) == [(3, 1), (1, 1), (2, 1)]
    assert catalog.moves == {}
    assert alter(catalog, [3, 1, 2]) is ErrorCode.NONE
    # Nor does it end a reassignment.
    alter(catalog, [1, 2, 4])
    before = catalog.move(GROUP)
    alter(catalog, [4, 2, 1])
    assert catalog.move(GROUP) == before
    assert wanted(catalog) == [(4, 1), (2, 1), (1, 1)]


def test_count_of_replicas_may_change_if_that_is_allowed(catalog: Catalog) -> None:
    """AlterPartitionReassignments v1 can forbid it (KIP-860)."""
    more = [1, 2, 3, 4]
    assert alter(catalog, more, may_change_count=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert alter(catalog, more) is ErrorCode.NONE
    assert catalog.reassignment(GROUP) == Reassignment([1, 2, 3, 4], [4], [])
    assert catalog.is_reassigning(catalog.topics["t"])
    finish(catalog)
    assert alter(catalog, [4]) is ErrorCode.NONE
    assert catalog.reassignment(GROUP) == Reassignment([4, 1, 2, 3], [], [1, 2, 3])
    assert not catalog.is_sole(GROUP)


@pytest.mark.parametrize("replicas", [[], [1, 1, 2], [1, 2, 9], [-1]])
def test_impossible_assignment_is_refused(catalog: Catalog, replicas: list[int]) -> None:
    items = catalog.items()
    assert alter(catalog, replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert catalog.items() == items


def test_partition_that_does_not_exist_is_refused(catalog: Catalog) -> None:
    for partition in (-1, 2):
        error = alter(catalog, [1, 2, 4], partition=partition)
        assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    catalog.apply(DeleteTopics(["t"]), 0, 1)
    assert alter(catalog, [1, 2, 4]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_deleted_topic_leaves_no_move(catalog: Catalog) -> None:
    alter(catalog, [1, 2, 4])
    catalog.take_dirty()
    catalog.apply(DeleteTopics(["t"]), 0, 1)
    assert catalog.moves == {}
    assert finish(catalog, 1) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert catalog.moves == {}
    assert (b"m" + GROUP.to_bytes(8, "big"), None) in catalog.take_dirty()


def test_topic_that_is_moved_gets_no_more_partitions(catalog: Catalog) -> None:
    """A topic gets no partitions until its reassignment has ended.

    A cancelled one does not count (KIP-455).
    """
    grow = CreatePartitions([NewPartitions("t", 3)], False, list(SERVERS), 0)
    alter(catalog, [4, 5, 6])
    (refused,) = catalog.apply(grow, 0, 1).topics
    assert refused.error is ErrorCode.REASSIGNMENT_IN_PROGRESS
    assert len(catalog.topics["t"].partitions) == 2
    finish(catalog)
    (grown,) = catalog.apply(grow, 0, 1).topics
    assert grown.error is ErrorCode.NONE
    assert len(catalog.topics["t"].partitions) == 3


def test_server_takes_no_more_replicas_than_it_may_have(catalog: Catalog) -> None:
    """`cluster.replicas_per_server`, summed over one command as well; existing replicas stay."""
    changes = [Reassign("t", 0, [1, 2, 4]), Reassign("t", 1, [1, 2, 4])]
    answer = catalog.apply(AlterReassignments(changes, True, 1), 0, 1)
    assert [error for error, _ in answer.errors] == [
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
    ]
    assert alter(catalog, None, replicas_max=1) is ErrorCode.NONE


def test_lost_replica_that_leaves_gets_a_new_number(catalog: Catalog) -> None:
    """The group removes the old one, and earlier reports of the group no longer count."""
    alter(catalog, [1, 2, 4])
    lost = ReplaceReplicas(3, bytes([3]) * 16, [LostReplica(GROUP, 1)])
    catalog.apply(lost, 0, 1)
    assert leaving(catalog) == [(3, 2)]
    assert finish(catalog, 1) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    finish(catalog)
    alter(catalog, [1, 2, 3])
    assert catalog.replica_number(GROUP, 3) == 3


def test_numbers_that_are_used_up_are_refused(catalog: Catalog) -> None:
    catalog.moves[GROUP] = Move(1, former=[ReplicaInfo(4, REPLICA_NUMBER_MAX)])
    assert alter(catalog, [1, 2, 4]) is ErrorCode.POLICY_VIOLATION
    assert wanted(catalog) == [(1, 1), (2, 1), (3, 1)]


def test_state_is_stored_whole_and_by_parts(catalog: Catalog) -> None:
    parts: dict[bytes, bytes | None] = dict(catalog.take_dirty())
    for replicas in ([1, 2, 4], [4, 5, 6], None, [1, 2, 5]):
        alter(catalog, replicas)
        parts |= dict(catalog.take_dirty())
        assert sorted((k, v) for k, v in parts.items() if v is not None) == catalog.items()
    finish(catalog)
    parts |= dict(catalog.take_dirty())
    assert sorted((k, v) for k, v in parts.items() if v is not None) == catalog.items()
    assert catalog.item_count == len(catalog.items())
    other = Catalog("cluster", coordinator_groups=COORDINATORS)
    other.load(catalog.items())
    assert other.items() == catalog.items()
    assert other.moves == catalog.moves
