"""Placement: leaders and replicas are spread over servers and racks, deterministically."""

from __future__ import annotations

from collections import Counter

import pytest

from vdl.state.placement import Load, place

NONE = frozenset[int]()


def test_leaders_and_replicas_of_one_topic_spread_evenly() -> None:
    """30 partitions on three servers: ten leaders each, and with two replicas twenty copies."""
    placed = place(
        Load([1, 2, 3]), {1: "", 2: "", 3: ""}, partitions=30, replication_factor=2, alive=NONE
    )
    assert Counter(replicas[0] for replicas in placed) == {1: 10, 2: 10, 3: 10}
    assert Counter(server for replicas in placed for server in replicas) == {1: 20, 2: 20, 3: 20}


def test_single_partition_topics_spread_over_existing_load() -> None:
    """Topics created one by one are balanced as one topic with many partitions."""
    load = Load([1, 2, 3])
    leaders = [
        place(load, {1: "", 2: "", 3: ""}, partitions=1, replication_factor=3, alive=NONE)[0][0]
        for _ in range(9)
    ]
    assert Counter(leaders) == {1: 3, 2: 3, 3: 3}


def test_replicas_do_not_share_a_rack_while_there_is_another() -> None:
    """Two replicas on one machine would fail together."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    placed = place(Load(racks), racks, partitions=20, replication_factor=3, alive=NONE)
    for replicas in placed:
        assert {racks[server] for server in replicas} == {"a", "b", "c"}


def test_racks_that_do_not_suffice_are_shared() -> None:
    """The replication factor has priority over spreading across racks."""
    racks = {1: "a", 2: "a", 3: "a"}
    placed = place(Load(racks), racks, partitions=3, replication_factor=3, alive=NONE)
    assert all(sorted(replicas) == [1, 2, 3] for replicas in placed)


def test_servers_that_are_down_come_last() -> None:
    """Topics are created with one server down, led by servers that are up."""
    racks = {1: "", 2: "", 3: "", 4: ""}
    alive = frozenset({2, 3, 4})
    for replicas in place(Load(racks), racks, partitions=6, replication_factor=3, alive=alive):
        assert 1 not in replicas
    for replicas in place(Load(racks), racks, partitions=6, replication_factor=4, alive=alive):
        assert replicas[0] != 1


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_placement_is_a_function_of_its_inputs(count: int) -> None:
    """Every replica of the catalog computes the same placement."""
    racks = dict.fromkeys(range(1, count + 1), "")
    factor = min(3, count)
    runs = [
        place(Load(order), racks, partitions=17, replication_factor=factor, alive=NONE)
        for order in (sorted(racks), sorted(racks, reverse=True))
    ]
    assert runs[0] == runs[1]
    assert all(len(set(replicas)) == factor for replicas in runs[0])
