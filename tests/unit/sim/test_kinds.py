"""Kinds of worlds: each has much of something rare in general worlds, and few other faults."""

from __future__ import annotations

from random import Random

import pytest

from vdl.sim.kinds import FAULTS, KINDS, draw_of
from vdl.sim.options import Options, draw

DRAWN = 40


def drawn(kind: str) -> list[Options]:
    return [draw_of(kind, Random(f"options {seed}")) for seed in range(DRAWN)]


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("power", "cuts_at_places"),
        ("groups", "members"),
        ("migrations", "groups_settle"),
        ("compacted", "keyed"),
        ("transactions", "transactional_producers"),
        ("directories", "old_copies"),
        ("moves", "moves"),
        ("members", "joiners"),
        ("intruders", "intruders"),
        ("clocks", "wrong_clocks"),
    ],
)
def test_what_a_kind_is_about_is_in_each_of_its_worlds(kind: str, option: str) -> None:
    assert all(getattr(world, option) for world in drawn(kind))
    assert not all(getattr(draw(Random(f"options {seed}")), option) for seed in range(DRAWN))


@pytest.mark.parametrize("kind", KINDS)
def test_worlds_of_a_kind_have_few_other_faults_and_differ(kind: str) -> None:
    worlds = drawn(kind)
    assert len({world.describe() for world in worlds}) == DRAWN
    counts = [sum(bool(getattr(world, name)) for name in FAULTS) for world in worlds]
    assert sum(counts) / DRAWN < len(FAULTS) * 0.6


def test_same_seed_draws_the_same_world() -> None:
    assert drawn("power") == drawn("power")


def test_without_a_kind_a_world_is_one_of_all_kinds() -> None:
    assert draw_of("", Random("options 7")) == draw(Random("options 7"))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(KeyError):
        draw_of("no such", Random(1))
