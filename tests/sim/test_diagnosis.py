"""Problems that servers report while something is wrong.

They appear in `vdl status`, `/health`, `/ready` and `/metrics`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ids import ServerId
from rpc.hello import RejectReason
from tests.sim.test_stories import CALM, S, tell
from vdl.config.values import Address
from vdl.server.diagnosis import CONTRADICTION_NS, problems_of
from vdl.server.problem import CLUSTER_KINDS, NOT_WRONG, SERVER_KINDS
from vdl.server.server import REFUSED_NS
from vdl.sim.machine import Machine
from vdl.sim.world import World


def kinds(machine: Machine) -> set[str]:
    """Return the kinds of problem that the machine's server reports now."""
    assert machine.server is not None
    found = {problem.kind for problem in problems_of(machine.server)}
    assert found <= SERVER_KINDS.keys() | CLUSTER_KINDS.keys()
    return found - NOT_WRONG


def others(world: World, *but: Machine) -> list[Machine]:
    return [machine for machine in world.machines if machine not in but]


def test_servers_that_are_well_say_nothing() -> None:
    def story(world: World, leader: Machine) -> None:
        assert [kinds(machine) for machine in world.machines] == [set()] * len(world.machines)

    tell(story)


def test_dead_servers_are_named_by_those_that_live() -> None:
    """One of three down: fewer copies. Two of three: no quorum, and no leader."""

    def story(world: World, leader: Machine) -> None:
        first, second = others(world, leader)
        first.kill()
        assert world.wait(15 * S, lambda: "under_replicated" in kinds(leader))
        assert kinds(leader) >= {"peer_unreachable", "under_replicated"}
        assert "no_quorum" not in kinds(leader)
        second.kill()
        assert world.wait(15 * S, lambda: "no_leader" in kinds(leader))
        assert kinds(leader) >= {"peer_unreachable", "no_quorum", "no_leader"}
        first.start()
        second.start()
        assert world.wait(15 * S, lambda: not any(map(kinds, world.machines)))

    tell(story)


def test_full_disk_is_a_problem_of_its_server_until_there_is_room() -> None:
    def story(world: World, leader: Machine) -> None:
        follower = others(world, leader)[0]
        follower.fill_disk(0)
        assert world.wait(15 * S, lambda: "disk_full" in kinds(follower))
        assert not any("disk_full" in kinds(other) for other in others(world, follower))
        # It may be unable to report it: without descriptors it cannot be reached.
        assert world.wait(
            1 * S, lambda: all("peer_full" in kinds(other) for other in others(world, follower))
        )
        follower.disk.room = None
        assert world.wait(15 * S, lambda: "disk_full" not in kinds(follower))

    tell(story, replace(CALM, record_bytes_max=4_000))


def test_wrong_clock_is_a_problem_of_its_server() -> None:
    def story(world: World, leader: Machine) -> None:
        wrong = others(world, leader)[0]
        wrong.jump_wall(3_600_000)
        assert world.wait(15 * S, lambda: "clock_wrong" in kinds(wrong))
        assert not any("clock_wrong" in kinds(other) for other in others(world, wrong))
        wrong.jump_wall(-3_600_000)
        assert world.wait(15 * S, lambda: "clock_wrong" not in kinds(wrong))

    tell(story)


def test_address_changed_in_one_file_is_named_by_all_that_are_linked() -> None:
    """The server with the odd file and the others report the same; none loses its links."""

    def story(world: World, leader: Machine) -> None:
        odd, other = others(world, leader)
        whole = odd.config
        nowhere = {**whole.seeds, other.server_id: Address("nowhere", 1)}
        odd.kill()
        odd.config = replace(whole, seeds=nowhere)
        odd.start()
        assert world.wait(
            15 * S, lambda: all("seeds_differ" in kinds(machine) for machine in world.machines)
        )
        told = {
            problem.text for problem in problems_of(other.server) if "nowhere:1" in problem.text
        }
        assert told
        assert told <= {problem.text for problem in problems_of(odd.server)}
        odd.kill()
        odd.config = whole
        odd.start()
        assert world.wait(15 * S, lambda: not any(map(kinds, world.machines)))

    tell(story)


def test_contradiction_is_a_problem_for_some_minutes() -> None:
    """The peer may stop contradicting, and is faulty all the same."""

    def story(world: World, leader: Machine) -> None:
        server = leader.server
        assert server is not None
        assert server.host is not None
        server.host.stats.contradicted_ns = server.clock.now_ns()
        assert kinds(leader) == {"peer_contradicts"}
        server.host.stats.contradicted_ns -= CONTRADICTION_NS
        assert kinds(leader) == set()

    tell(story)


def test_refusal_that_comes_with_each_dial_is_one_line_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The line includes the count. Another cause is logged at once."""

    def story(world: World, leader: Machine) -> None:
        server = leader.server
        assert server is not None
        notes: list[str] = []
        monkeypatch.setattr(leader, "note", notes.append)
        for _ in range(61):
            server.rejected(ServerId(2), RejectReason.NOT_ADMITTED, "", by_peer=True)
            world.run_for(1 * S)
        server.rejected(ServerId(2), RejectReason.WRONG_CLUSTER, "", by_peer=True)
        refused = [note for note in notes if note.startswith("link_refused")]
        assert [note.rpartition(" ")[2] for note in refused] == ["times=1", "times=60", "times=1"]
        assert "link_refused" in kinds(leader)
        world.run_for(REFUSED_NS)
        assert "link_refused" not in kinds(leader)

    # Two minutes of traffic would tell nothing more.
    tell(story, replace(CALM, sends_per_second=1, readers=0, coordinators=1))
