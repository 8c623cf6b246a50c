"""Plans of changes: the steps of the catalog's own drain, what is left meanwhile, what blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click
import pytest

from ids import GroupId, ServerId
from rpc.admin import Member
from vdl.commands.app import run_app
from vdl.commands.changes import execution, rehearsals
from vdl.commands.changes.catalog_copy import CatalogCopy
from vdl.commands.changes.live_cluster import LiveCluster, LivePartition, LiveServer
from vdl.commands.changes.rehearsals import scene_of
from vdl.commands.changes.steps import STEP_SECONDS, Plan, Planner
from vdl.commands.plan import PlanShown
from vdl.logstream.membership.added_servers import MOVES_MAX
from vdl.sim.rehearsal import PARTITIONS_MAX, Rehearsed, Scene
from vdl.state.catalog import Catalog
from vdl.state.reassignment import Reassignment

GB = 1 << 30
RATE = GB // 8


def _cluster(
    replicas: list[tuple[int, ...]],
    *,
    servers: int = 6,
    down: tuple[int, ...] = (),
    leader: int | None = None,
    racks: dict[int, str] | None = None,
) -> LiveCluster:
    """Return a cluster that began with servers 1 to 3, and partitions of a GiB."""
    up = set(range(1, servers + 1)) - set(down)
    found = {
        ServerId(n): LiveServer(
            Member(ServerId(n), "member", is_voter=n <= 3, rack=(racks or {}).get(n, "")),
            n in up,
            free_bytes=90 * GB,
            total_bytes=100 * GB,
        )
        for n in range(1, servers + 1)
    }
    partitions = {}
    for number, on in enumerate(replicas):
        where = ("t", number)
        partitions[where] = LivePartition(
            where,
            GroupId(100 - number),
            tuple(map(ServerId, on)),
            next((s for s in on if s in up), -1) if leader is None else leader,
            frozenset(map(ServerId, on)) & up,
            GB,
        )
    return LiveCluster("c", found, partitions)


def _planner(live: LiveCluster) -> Planner:
    return Planner(live, rate=RATE)


def _reasons(plan: Plan) -> dict[str, str]:
    return {
        f"{topic}-{number}": one.reason for one in plan.blocked for topic, number in [one.where]
    }


def test_removal_has_the_steps_of_the_drain_and_what_is_left_meanwhile() -> None:
    """The catalog moves 32 partitions at a time, in the order of their groups."""
    live = _cluster([(4, 1, 2)] * 40)
    plan = _planner(live).remove(ServerId(4))
    assert [step.title for step in plan.steps] == ["drain server 4"] * 2 + ["remove server 4"]
    first, second, last = plan.steps
    assert [one.where[1] for one in first.changes] == list(range(39, 39 - MOVES_MAX, -1))
    assert (first.replicas, second.replicas, last.replicas) == (MOVES_MAX, 8, 0)
    assert second.moved_bytes == 8 * GB
    assert second.seconds == STEP_SECONDS + 8 * 8, "server 4 leads them all"
    assert (second.quorum_left, second.copies_left) == (1, 3)
    assert (second.leaderships, plan.refused, plan.blocked) == (8, "", [])
    assert all(4 not in change.after for change in plan.changes)


def test_partitions_that_cannot_move_are_named_with_the_reason() -> None:
    """The others move; the server is not removed before those have."""
    live = _cluster([(4, 1, 2), (4, 5), (1, 4, 2)], down=(5, 6))
    lone = live.partitions["t", 1]
    live.partitions["t", 1] = replace(lone, leader=-1)
    short = live.partitions["t", 2]
    live.partitions["t", 2] = replace(short, in_sync=frozenset({ServerId(4)}))
    plan = _planner(live).remove(ServerId(4))
    assert _reasons(plan) == {
        "t-1": "it has no leader (not connected: 5)",
        "t-2": "fewer than two durable copies would be left",
    }
    assert [change.where for change in plan.changes] == [("t", 0)]
    assert {one.where for one in plan.steps[-1].blocked} == {("t", 1), ("t", 2)}


def test_move_that_would_leave_one_durable_copy_is_not_made() -> None:
    """Replicas that are not in sync do not count; nor does a removal of replicas by request."""
    live = _cluster([(1, 2, 3), (1, 2, 3)])
    late = live.partitions["t", 0]
    live.partitions["t", 0] = replace(late, in_sync=frozenset({ServerId(1), ServerId(2)}))
    plan = _planner(live).move({("t", 0): [ServerId(1), ServerId(3)]})
    assert _reasons(plan) == {"t-0": "fewer than two durable copies would be left"}
    assert not plan.changes
    plan = _planner(live).move({("t", 1): [ServerId(1)]})
    assert plan.refused == "t-1: fewer than two durable copies would be left"
    plan = _planner(live).move({("t", 0): [ServerId(4), ServerId(5), ServerId(6)]})
    assert plan.steps[0].copies_left == 2


@pytest.mark.parametrize(
    ("server", "replicas", "reason"),
    [
        (1, (1, 2, 3, 4), "t-0 has 4 replicas, but only 3 servers would remain"),
        (9, (1, 2, 3), "server 9 is not registered"),
        (4, (1, 2, 3, 4), "t-0 has 4 replicas, but only 3 servers would remain"),
    ],
)
def test_removal_that_the_catalog_refuses_has_no_steps(
    server: int, replicas: tuple[int, ...], reason: str
) -> None:
    plan = _planner(_cluster([replicas], servers=4)).remove(ServerId(server))
    assert reason in plan.refused
    assert not plan.steps


def test_removal_of_a_voter_first_gives_its_votes_to_a_server_that_is_there() -> None:
    """Without a fourth server none could take them, and nothing is begun."""
    refused = _planner(_cluster([(1, 2, 3)], servers=3)).remove(ServerId(1))
    assert "only 2 other servers stay: add a server first" in refused.refused
    assert not refused.steps
    plan = _planner(_cluster([(1, 2, 3)], servers=6, down=(4,))).remove(ServerId(1))
    votes = "give the votes of server 1 in the catalog and the coordinators to server 5"
    assert [one.title for one in plan.steps] == [votes, "drain server 1", "remove server 1"]
    assert not plan.blocked
    racks = dict.fromkeys((2, 3, 5), "a")
    near = _planner(_cluster([(1, 2, 3)], servers=6, racks=racks)).remove(ServerId(1))
    assert near.steps[0].title.endswith("to server 4")
    assert "2 of the 3 servers that have the catalog" in near.notes[-1]


def test_addition_balances_over_the_new_servers_on_their_hosts() -> None:
    """A server that is not there yet is planned with; hosts and majorities are noted."""
    racks = {1: "a", 2: "a", 3: "b"}
    live = _cluster([(1, 2, 3)] * 4, servers=3, racks=racks)
    plan = _planner(live).add([ServerId(4)], "c")
    assert [step.title for step in plan.steps] == ["add server 4", "balance"]
    assert all(change.added == (4,) for change in plan.changes)
    assert len(plan.changes) == 4
    assert plan.notes == [
        "2 of the 3 servers that have the catalog and the coordinators are in rack a: without it "
        "the cluster stops"
    ]
    assert _planner(_cluster([(1, 2)], servers=2)).add([ServerId(4)], "").refused


def test_copy_of_the_catalog_has_the_moves_in_progress() -> None:
    """A partition that moves is not planned anew, counts towards the limit, and ends first."""
    live = _cluster([(5, 1, 2), (4, 1, 2)])
    moving = Reassignment([*map(ServerId, (5, 1, 2, 4))], [ServerId(5)], [ServerId(4)])
    live.partitions["t", 0] = replace(live.partitions["t", 0], moving=moving)
    copy = CatalogCopy(live)
    ((group, before),) = copy.in_progress()
    assert (copy.where[group], set(before)) == (("t", 0), {1, 2, 4})
    assert copy.replicas(group) == (5, 1, 2)
    plan = _planner(live).remove(ServerId(4))
    assert [step.title for step in plan.steps] == [
        "end moves in progress", "drain server 4", "remove server 4"
    ]  # fmt: skip
    assert not plan.blocked
    balanced = _planner(live).balance()
    assert ("t", 0) not in {change.where for change in balanced.changes}
    assert balanced.notes[0].startswith("1 partition left as before: moving")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["move", "t=1,2"], "is no TOPIC:PARTITION=ID"),
        (["move", "t:x=1"], "is no TOPIC:PARTITION=ID"),
        (["move", "t:0="], "is no TOPIC:PARTITION=ID"),
        (["balance", "--rate", "much"], "--rate"),
        (["remove", "0"], "ID"),
    ],
)
def test_wrong_words_are_refused_before_a_server_is_asked(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(["plan", *words, "--bootstrap", "127.0.0.1:1"]) == 2
    assert expected in capsys.readouterr().err


def test_scene_of_a_plan_has_the_partitions_that_it_changes_first() -> None:
    """A rehearsal has the live replicas, and new servers on their host."""
    live = _cluster([(1, 2, 3)] * (PARTITIONS_MAX + 9), servers=4, racks={4: "d"})
    plan = _planner(live).move({("t", PARTITIONS_MAX + 5): [*map(ServerId, (4, 1, 2))]})
    scene = scene_of(live, plan, added=[ServerId(7)], rack="e")
    assert (scene.initial, scene.added) == ([1, 2, 3], [4, 7])
    assert (scene.racks[ServerId(4)], scene.racks[ServerId(7)]) == ("d", "e")
    assert len(scene.replicas) == PARTITIONS_MAX
    assert scene.moves == {0: (4, 1, 2)}


def test_plan_whose_rehearsal_fails_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other seeds are rehearsed all the same. A world with a violation is not to be had."""
    live = _cluster([(1, 2, 3)])
    plan = _planner(live).move({("t", 0): [*map(ServerId, (4, 1, 2))]})

    def run(seed: int, scene: Scene) -> Rehearsed:
        del scene
        return Rehearsed(seed, ["lost: a record"] * (seed == 1), 3.0, 2, 1, 100)

    monkeypatch.setattr(rehearsals, "rehearse", run)
    done: list[str] = []
    shown = PlanShown(plan, RATE, as_json=False)
    shown.rehearse(2, lambda: scene_of(live, plan))
    assert shown.end(lambda: done.append("moved")) == 1
    assert not done
    lines = [line for line in capsys.readouterr().out.splitlines() if "rehearsal" in line]
    assert [line.rpartition(": ")[2] for line in lines] == [
        "a record", "nothing lost, all replicas equal"
    ]  # fmt: skip


def test_plan_that_no_disk_has_room_for_is_refused() -> None:
    """A server drains whatever its peers' disks have: the plan has to say it before."""
    live = _cluster([(4, 5, n) for n in (1, 2, 3)] * 10, servers=5)
    full = {n: replace(server, free_bytes=2 * GB) for n, server in live.servers.items()}
    assert "has no room" in _planner(replace(live, servers=full)).remove(ServerId(4)).refused


def test_blocked_plan_is_not_carried_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The server that leaves may be the only one that has a partition."""
    plan = _planner(_cluster([(4, 5)], servers=5, down=(4, 5))).remove(ServerId(4))
    assert plan.blocked
    carried_out: list[bool] = []
    assert PlanShown(plan, RATE, as_json=True).end(lambda: carried_out.append(True))
    assert not carried_out
    assert "not carried out" in capsys.readouterr().err


def test_change_of_replicas_since_the_plan_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another administrator has given the partition a third replica, which is not taken back."""
    steps = _planner(_cluster([(4, 1)])).move({("t", 0): [ServerId(4), ServerId(2)]}).steps
    monkeypatch.setattr(execution, "read_cluster", lambda _: _cluster([(4, 1, 3)]))
    asked: list[object] = []
    monkeypatch.setattr(execution, "alter_reassignments", lambda *a, **_: asked.append(a))
    with pytest.raises(click.ClickException, match="changed since the plan"):
        execution.execute(Any, steps, rate=RATE)  # type: ignore[arg-type]
    assert not asked


def test_copy_of_the_catalog_counts_the_load_of_all_servers_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for each partition would be minutes for ten thousand."""
    counted: list[int] = []
    load = Catalog._load

    def count(catalog: Catalog) -> Any:
        counted.append(len(catalog.groups))
        return load(catalog)

    monkeypatch.setattr(Catalog, "_load", count)
    copy = CatalogCopy(_cluster([(4, 1, 2)] * 50))
    assert len(copy.where) == 50
    assert len(counted) == 1


def test_plan_knows_how_many_replicas_a_server_may_have() -> None:
    """The cluster would refuse a move beyond it, and a drain would wait."""
    live = replace(_cluster([(1, 2, 3), (4, 5, 6)], servers=6), replicas_max=1)
    plan = _planner(live).move({("t", 0): [*map(ServerId, (1, 2, 4))]})
    assert "maximum" in plan.refused
    assert _reasons(_planner(live).remove(ServerId(4))) == {
        "t-1": "no server may have more than 1 replicas"
    }


def test_added_servers_with_other_racks_or_disks_than_planned_are_named() -> None:
    """A plan is made while they are not there: what it did not know stops it."""
    live = _cluster([(1, 2, 3)] * 40, servers=3, racks={1: "a", 2: "b", 3: "c"})
    plan = _planner(live).add([ServerId(4)], "d")
    assert plan.changes
    after = _cluster([(1, 2, 3)] * 40, servers=4, racks={1: "a", 2: "b", 3: "c", 4: "d"})
    assert not _planner(after).why_not_as_planned(plan, [ServerId(4)], "d")
    small = replace(after.servers[ServerId(4)], free_bytes=GB, total_bytes=2 * GB)
    after.servers[ServerId(4)] = replace(small, member=replace(small.member, rack="a"))
    rack, *others = _planner(after).why_not_as_planned(plan, [ServerId(4)], "d")
    assert rack == "server 4 is in rack 'a', and was planned for 'd'"
    assert any("has no room" in one for one in others)
    assert any("several replicas on one host" in one for one in others)


def test_moves_are_either_begun_or_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["balance", "--stop", "--execute", "--bootstrap", "127.0.0.1:1"]) == 2
    assert "only one of --plan, --execute and --stop" in capsys.readouterr().err


def test_cluster_is_read_once_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step begins with what the one before has reached."""
    replicas = [(1, 2, 3)] * (MOVES_MAX + 1)
    where = {("t", n): [*map(ServerId, (4, 2, 3))] for n in range(len(replicas))}
    steps = _planner(_cluster(replicas)).move(where).steps
    assert len(steps) == 2
    reads: list[LiveCluster] = []

    def read(_: object) -> LiveCluster:
        moved = [(4, 2, 3)] * min(len(reads) * MOVES_MAX, len(replicas))
        reads.append(_cluster(moved + replicas[len(moved) :]))
        return reads[-1]

    monkeypatch.setattr(execution, "read_cluster", read)
    monkeypatch.setattr(execution, "reassignments", lambda _: {})
    monkeypatch.setattr(execution, "alter_reassignments", lambda *_, **__: None)
    monkeypatch.setattr(execution, "elect", lambda *_: (0, []))
    done = execution.execute(Any, steps, rate=RATE)  # type: ignore[arg-type]
    assert (done.partitions, len(reads)) == (len(replicas), 3)
