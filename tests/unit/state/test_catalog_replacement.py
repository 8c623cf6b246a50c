"""Successors of lost replicas under new replica numbers; no number is ever assigned twice."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.state.catalog import Catalog
from vdl.state.catalog_answers import ReplicasReplaced
from vdl.state.commands import (
    CreateTopics,
    LostReplica,
    NewTopic,
    RegisterServer,
    ReplaceReplicas,
    ReplaceServer,
)
from vdl.state.reassignment import ReplicaInfo

OLD, NEW, THIRD = b"o" * 16, b"n" * 16, b"t" * 16
INITIAL_VOTERS = {1: b"1" * 16, 2: b"2" * 16, 3: OLD}
COORDINATORS = 2
GROUP = COORDINATORS + 1


def fresh() -> Catalog:
    return Catalog("cluster", coordinator_groups=COORDINATORS, initial_voters=INITIAL_VOTERS)


@pytest.fixture
def catalog() -> Catalog:
    catalog = fresh()
    for server_id, directory in INITIAL_VOTERS.items():
        register(catalog, server_id, directory)
    catalog.apply(CreateTopics([NewTopic("t", bytes(16), 1, 3)]), 0, 1)
    return catalog


def register(catalog: Catalog, server_id: int, directory: bytes) -> ErrorCode:
    answer = catalog.apply(RegisterServer(server_id, directory, "", {}, True), 0, 1)
    assert isinstance(answer.error, ErrorCode)
    return answer.error


def replace(catalog: Catalog, old: bytes, new: bytes) -> Any:
    return catalog.apply(ReplaceServer(3, old, new), 0, 1)


def numbers(catalog: Catalog, server_id: int) -> list[int]:
    return [catalog.replica_number(group, server_id) for group in range(GROUP + 1)]


def test_new_directory_gets_new_numbers_in_every_group(catalog: Catalog) -> None:
    """The old directory's votes and acknowledgements do not count for the new one."""
    assert numbers(catalog, 3) == [1, 1, 1, 1]
    answer = replace(catalog, OLD, NEW)
    assert answer.error is ErrorCode.NONE
    assert answer.events == [ReplicasReplaced(3, [0, 1, 2, GROUP])]
    assert numbers(catalog, 3) == [2, 2, 2, 2]
    assert numbers(catalog, 1) == [1, 1, 1, 1]
    assert register(catalog, 3, NEW) is ErrorCode.NONE


def test_founding_members_are_remembered(catalog: Catalog) -> None:
    """A new replica reads the log from its start, with the configuration that applies there."""
    before = [catalog.founding(group) for group in range(GROUP + 1)]
    replace(catalog, OLD, NEW)
    assert [catalog.founding(group) for group in range(GROUP + 1)] == before
    assert ReplicaInfo(3, 2) in catalog.replicas(GROUP)


def test_replacement_decided_twice_happens_once(catalog: Catalog) -> None:
    """Two catalog leaders may see the same new directory.

    The second one's command changes nothing.
    """
    replace(catalog, OLD, NEW)
    assert replace(catalog, OLD, NEW).error is ErrorCode.INVALID_REQUEST
    assert numbers(catalog, 3) == [2, 2, 2, 2]


def test_retired_directory_never_returns(catalog: Catalog) -> None:
    """An old disk that reappears holds replicas that were replaced: it is refused."""
    replace(catalog, OLD, NEW)
    assert register(catalog, 3, OLD) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert replace(catalog, NEW, OLD).error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert replace(catalog, NEW, THIRD).error is ErrorCode.NONE
    assert numbers(catalog, 3) == [3, 3, 3, 3]


def test_initial_voter_that_never_registered_is_replaced_all_the_same() -> None:
    """A server wiped before it registered is replaced.

    Its catalog replica may have voted already since the cluster was created.
    """
    catalog = fresh()
    assert register(catalog, 3, NEW) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert replace(catalog, OLD, NEW).error is ErrorCode.NONE
    assert numbers(catalog, 3)[0] == 2
    assert register(catalog, 3, NEW) is ErrorCode.NONE


def test_lost_replicas_are_renumbered_one_by_one(catalog: Catalog) -> None:
    """Damage to some replicas of a directory leaves its others alone.

    A repeated command does nothing.
    """
    command = ReplaceReplicas(3, OLD, [LostReplica(1, 1), LostReplica(GROUP, 1)])
    assert catalog.apply(command, 0, 1).events == [ReplicasReplaced(3, [1, GROUP])]
    assert numbers(catalog, 3) == [1, 2, 1, 2]
    assert catalog.apply(command, 0, 2).events == [ReplicasReplaced(3, [])]
    wrong = ReplaceReplicas(3, NEW, [LostReplica(0, 1)])
    assert catalog.apply(wrong, 0, 3).error is ErrorCode.INVALID_REQUEST
    assert numbers(catalog, 3) == [1, 2, 1, 2]


def test_replacements_survive_being_stored(catalog: Catalog) -> None:
    """The stored state, complete and by dirty keys, equals the state."""
    disk = dict(catalog.items())
    catalog.take_dirty()
    replace(catalog, OLD, NEW)
    disk.update((key, value) for key, value in catalog.take_dirty() if value is not None)
    assert sorted(disk.items()) == catalog.items()
    copy = fresh()
    copy.load(sorted(disk.items()))
    assert numbers(copy, 3) == [2, 2, 2, 2]
    assert copy.retired == {OLD: 3}
    assert copy.items() == catalog.items()
