"""Plans that balance replicas and leaderships: few moves, no shared hosts, and then none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest

from ids import ServerId
from vdl.state import balance as spread
from vdl.state.balance import FILL_MAX, Change, Placed, ServerRoom, balance, shared_hosts

GB = 1 << 30


def _rooms(racks: dict[int, str]) -> list[ServerRoom]:
    return [ServerRoom(server, rack, 90 * GB, 100 * GB) for server, rack in racks.items()]


def _placed(replicas: list[tuple[int, ...]], size: int = GB) -> list[Placed]:
    return [Placed(("t", number), on, size) for number, on in enumerate(replicas)]


def _after(partitions: list[Placed], plan: list[Change]) -> list[Placed]:
    changed = {change.where: change.after for change in plan}
    return [
        Placed(one.where, changed.get(one.where, one.replicas), one.size, one.is_fixed)
        for one in partitions
    ]


def _counts(partitions: list[Placed]) -> Counter[int]:
    return Counter(server for one in partitions for server in one.replicas)


def test_new_host_gets_its_share_with_the_fewest_moves() -> None:
    """A fourth server takes a quarter: each move is onto it, and no other replica moves."""
    racks = {1: "", 2: "", 3: "", 4: ""}
    partitions = _placed([(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 4)
    plan = balance(_rooms(racks), partitions, racks=racks)
    moved = [change for change in plan if change.added]
    assert [change.added for change in moved] == [(4,)] * 9
    assert sum(change.moved_bytes for change in plan) == 9 * GB
    after = _after(partitions, plan)
    assert set(_counts(after).values()) == {9}
    assert Counter(one.replicas[0] for one in after) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_replicas_on_one_host_are_parted_before_all_else() -> None:
    """Two hosts of two servers held three replicas; a third host takes what shares."""
    racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    partitions = _placed([(1, 2, 3), (3, 4, 1)])
    plan = balance(_rooms(racks), partitions, racks=racks)
    after = _after(partitions, plan)
    assert not any(shared_hosts(one.replicas, racks) for one in after)
    assert [change.added for change in plan] == [(5,), (5,)]
    assert set(_counts(after)) == set(racks)


def test_disk_that_is_too_full_gives_and_takes_nothing() -> None:
    """A replica leaves the full disk although that makes the numbers uneven, and none returns."""
    rooms = [
        ServerRoom(1, "", 5 * GB, 100 * GB), ServerRoom(2, "", 90 * GB, 100 * GB),
        ServerRoom(3, "", 90 * GB, 100 * GB),
    ]  # fmt: skip
    partitions = [Placed(("t", n), (1, 2), 10 * GB) for n in range(2)]
    plan = balance(rooms, partitions, racks={})
    assert [change.added for change in plan] == [(3,), (3,)]
    assert _counts(_after(partitions, plan))[1] == 0


def test_fixed_partitions_and_servers_that_are_away_stay_as_they_are() -> None:
    """Partitions that move already, and replicas on a server that is down, count and stay."""
    racks = {1: "", 2: "", 3: ""}
    partitions = [Placed(("t", n), (1, 2, 9), GB, is_fixed=n < 4) for n in range(6)]
    plan = balance(_rooms(racks), partitions, racks=racks)
    assert {change.where for change in plan if change.added} == {("t", 4), ("t", 5)}
    assert all(9 in one.replicas for one in _after(partitions, plan))


def test_limit_of_replicas_is_kept() -> None:
    racks = {1: "", 2: "", 3: ""}
    partitions = _placed([(1, 2)] * 6)
    after = _after(partitions, balance(_rooms(racks), partitions, racks=racks, replicas_max=2))
    assert _counts(after)[3] == 2


@pytest.mark.parametrize("seed", range(40))
def test_plan_converges_and_keeps_what_must_hold(seed: int) -> None:
    """Same inputs in any order, same plan; its outcome needs no other; no rule becomes worse."""
    rng = Random(seed)
    hosts = [f"h{n}" for n in range(rng.randint(1, 4))]
    racks = {server: rng.choice([*hosts, ""]) for server in range(1, rng.randint(2, 9))}
    rooms = [
        ServerRoom(server, rack, rng.randint(5, 95) * GB, 100 * GB)
        for server, rack in racks.items()
        if rng.random() < 0.9
    ]
    factor = rng.randint(1, min(3, len(racks)))
    partitions = [
        Placed(
            ("t", n), tuple(rng.sample(sorted(racks), factor)), rng.randint(0, 3 * GB),
            rng.random() < 0.1,
        )
        for n in range(rng.randint(0, 30))
    ]  # fmt: skip
    plan = balance(rooms, partitions, racks=racks)
    shuffled = rng.sample(partitions, len(partitions))
    assert balance(rng.sample(rooms, len(rooms)), shuffled, racks=racks) == plan
    after = _after(partitions, plan)
    takers = {room.server_id: room for room in rooms}
    sizes: Counter[int] = Counter()
    for change in plan:
        assert len(set(change.after)) == len(change.before)
        assert shared_hosts(change.after, racks) <= shared_hosts(change.before, racks)
        assert takers.keys() >= set(change.added)
        sizes.update(dict.fromkeys(change.added, change.size))
        sizes.subtract(dict.fromkeys(set(change.before) - set(change.after), change.size))
    moved = [
        ServerRoom(one.server_id, one.rack, one.free_bytes - sizes[one.server_id], one.total_bytes)
        for one in rooms
    ]
    for before, now in zip(rooms, moved, strict=True):
        full = (1 - FILL_MAX) * now.total_bytes
        assert now.free_bytes >= min(before.free_bytes, full) - 1
    assert balance(moved, after, racks=racks) == []


def test_disk_that_servers_share_is_counted_once() -> None:
    """Servers 3 and 4 share a disk with room for two replicas more, not for two each."""
    rooms = [
        ServerRoom(1, "", 90 * GB, 100 * GB),
        ServerRoom(2, "", 90 * GB, 100 * GB),
        *(ServerRoom(n, "", 22 * GB, 100 * GB, "shared") for n in (3, 4)),
    ]
    plan = balance(rooms, _placed([(1, 2)] * 8), racks={})
    assert sum(len(change.added) for change in plan) == 2
    apart = [replace(room, disk="") for room in rooms]
    plan = balance(apart, _placed([(1, 2)] * 8), racks={})
    assert sum(len(change.added) for change in plan) == 4


def test_work_grows_as_the_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that shares no host is not looked at again for each move of another."""
    looked: list[int] = []

    def look(replicas: Sequence[ServerId], racks: Mapping[ServerId, str]) -> int:
        looked.append(1)
        return shared_hosts(replicas, racks)

    monkeypatch.setattr(spread, "shared_hosts", look)
    racks = {n: "abc"[n % 3] for n in range(1, 10)}
    for count in (200, 800):
        looked.clear()
        plan = balance(_rooms(racks), _placed([(1, 4, 7), (2, 3, 1)] * (count // 2)), racks=racks)
        assert len(plan) > count // 3
        assert len(looked) < 4 * count
