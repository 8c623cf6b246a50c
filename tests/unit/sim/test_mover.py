"""Worlds whose partitions move: moves happen, end, and violate nothing."""

from __future__ import annotations

from random import Random

from vdl.sim.options import MOVING_SERVERS, Options, draw
from vdl.sim.world import World

SEEDS = 300


def test_moves_alone_break_nothing() -> None:
    world = World(1, Options(servers=5, moves=2.0, seconds=8, members=0))
    outcome = world.run()
    assert outcome.violations == []
    assert world.mover is not None
    assert world.mover.begun > 3
    hosts = [m.server.host for m in world.machines if m.server is not None]
    moves = [move for host in hosts if host is not None for move in host.catalog.moves.values()]
    assert any(move.former for move in moves), "no replica ever left"
    assert not any(move.is_open for move in moves)


def test_moves_are_drawn_for_some_worlds_with_servers_to_spare() -> None:
    drawn = [draw(Random(f"options {seed}")) for seed in range(SEEDS)]
    moving = [options for options in drawn if options.moves]
    assert SEEDS / 10 < len(moving) < SEEDS / 4
    assert {options.servers for options in moving} == set(MOVING_SERVERS)
