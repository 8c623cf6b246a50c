"""Intruders, rejected by the code of real servers; a server that admits one is detected."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import rpc.hello
import rpc.peer
import vdl.sim.intruder
from ids import Index, NodeId
from raft.messages import MsgHeartbeat, PeerMessage
from rpc.hello import Hello, RejectReason
from rpc.links import Links
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.host import Host
from vdl.sim.intruder import TERM, Doorkeeper, Fraud, Intruder
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
INTRUDED = Options(
    partitions=1,
    idempotent_producers=1,
    plain_producers=0,
    readers=0,
    members=0,
    intruders=6,
    encrypted=True,
)
NEEDS_MORE = frozenset((Fraud.RETIRED, Fraud.OTHER_SERVER))
"""They need a server that was replaced, and one that is down."""


def lived(seconds: int = 8, *, encrypted: bool = True) -> tuple[World, set[str]]:
    """Run a world with no other faults; return it and its violations."""
    world = World(1, replace(INTRUDED, encrypted=encrypted))
    outcome = world.live(lambda: world.run_for(seconds * S))
    return world, {violation.name for violation in outcome.violations}


def counted(world: World, what: str) -> Counter[Fraud]:
    found: Counter[Fraud] = Counter()
    for intruder in world.intruders:
        found.update(getattr(intruder, what))
    return found


def test_every_fraud_is_turned_away_and_nothing_comes_of_its_frames() -> None:
    """Each kind is tried at least once, and the servers close nearly all before the world's end."""
    world, violations = lived()
    assert violations == set()
    tried, turned_away = counted(world, "tried"), counted(world, "turned_away")
    assert set(tried) == set(Fraud) - NEEDS_MORE
    assert set(turned_away) == set(tried)
    assert turned_away.total() >= tried.total() - len(world.intruders)
    assert not any(intruder.traces() for intruder in world.intruders)


def test_who_takes_the_place_of_a_dead_server_is_not_spoken_to() -> None:
    """The other servers dial it, and find another certificate, cluster or server."""
    world = World(1, INTRUDED)
    stood_in: list[Fraud] = []
    begin = Intruder._begin

    def story() -> None:
        world.machines[0].kill()
        world.run_for(4 * S)

    with pytest.MonkeyPatch.context() as patched:

        def noted(self: Intruder, role, stream, life) -> None:  # type: ignore[no-untyped-def]
            if life is None:
                stood_in.append(role.fraud)
            begin(self, role, stream, life)

        patched.setattr(Intruder, "_begin", noted)
        outcome = world.live(story)
    assert outcome.violations == []
    assert len(stood_in) >= 5


def test_another_cluster_that_is_let_in_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is detected without encryption, too: the cluster id is in HELLO.

    One server is down, because a linked one keeps its place: another process of it is refused once
    a ping was answered.
    """
    refusal = rpc.hello.refusal

    def blind(local: Hello, remote: Hello, *, expected: int) -> tuple[RejectReason, str] | None:
        return refusal(local, replace(remote, cluster_id=local.cluster_id), expected=expected)

    monkeypatch.setattr(rpc.peer, "refusal", blind)
    for encrypted in (True, False):
        world = World(1, replace(INTRUDED, encrypted=encrypted))

        def story(world: World = world) -> None:
            world.machines[0].kill()
            world.run_for(4 * S)

        violations = {violation.name for violation in world.live(story).violations}
        assert {"intruder-admitted", "intruder-linked"} <= violations


def test_another_directory_that_is_let_in_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the place of a server that runs."""
    monkeypatch.setattr(Host, "refusal", lambda _host, _hello: None)
    _, violations = lived(3, encrypted=False)
    assert {"intruder-admitted", "intruder-linked", "intruder-heard"} <= violations


def test_term_that_an_intruder_raised_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The term is detected however its frame came in: here the doorkeeper reports nothing."""

    def heartbeat(group: Group, replica: NodeId) -> list[PeerMessage]:
        return [MsgHeartbeat(group.replica_id, replica, TERM, Index(0))]

    monkeypatch.setattr(Host, "refusal", lambda _host, _hello: None)
    monkeypatch.setattr(Doorkeeper, "_tell", lambda *_: None)
    monkeypatch.setattr(vdl.sim.intruder, "_harm", heartbeat)
    _, violations = lived(3, encrypted=False)
    assert "intruder-obeyed" in violations


def test_refusal_that_is_not_counted_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise an operator would not see that a stranger dials."""
    monkeypatch.setattr(Links, "refused", property(lambda _links: 0))
    _, violations = lived(3)
    assert violations == {"intruder-uncounted"}
