"""Kinds of worlds: each turns up a few options and leaves out most of the others.

`options.draw` makes worlds with a little of everything. Failures that need several faults of the
same sort are rare there, and each world is expensive. A kind draws the same network, disks and
clients, keeps few of the faults, and adds those it is about. Many such worlds find more than one
world with everything: a fault that helps one failure hinders another (Groce and others, *Swarm
testing*, 2012).

Nothing here is a script: time and place of each fault are drawn as usual, and correct code passes
every world of every kind without a violation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from vdl.sim.options import (
    PRODUCER_EXPIRY_MS,
    SHARE_LIMITS,
    Options,
    answered_late,
    draw,
    intruded,
    moving,
    rolled_back,
)

WORLD = (
    "coordinators", "partitions", "delay_us", "jitter_us", "loss", "split", "raft_loss",
    "raft_duplicates", "raft_delays", "turn_us", "sync_us", "drift_ppm", "segment_kib",
    "journal_kib", "checkpoint_kib", "command_entries", "min_in_sync", "idempotent_producers",
    "plain_producers", "readers", "sends_per_second", "records_max", "record_bytes_max",
    "place_bytes", "large_bytes", "fetch_sessions", "old_clients",
)  # fmt: skip
"""Options that a world of a kind draws as a general world does."""
FAULTS = (
    "kills", "power_cuts", "cuts_in_write", "stops", "pauses", "partitions_cut", "one_way_cuts",
    "resets", "clogs", "slow_disks", "sync_failures", "outages", "brownouts", "cuts_in_start",
    "cuts_at_places", "deafness", "flush_starves",
)  # fmt: skip
"""Fault options of which a world of a kind keeps a few."""
KEPT = 0.3
SERVERS = (2, 3, 3, 3, 3, 4, 5)
SECONDS = (6, 9)
LONG_SPELL_MS = 9_000
LATE_CHANCE = 0.5
VERY_MANY_PRODUCERS, VERY_MANY_PARTITIONS = (10, 14), 14
STATIC_CHANCE, MIXED_CHANCE, WIDE_CHANCE = 0.6, 0.7, 0.5
SLOW_US = (2_000, 30_000)
"""Link delays at which operations of two steps are often interrupted half done."""

Turn = Callable[[Options, Random], Options]


def _rate(rng: Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 3)


def _elections(world: Options, rng: Random) -> Options:
    """Turn up network faults that last long enough to depose a leader that keeps serving.

    At most two sorts of fault: more would heal one another's cuts.
    """
    sorts = ("partitions_cut", "one_way_cuts", "bridges", "deafness", "lone_leaders")
    rates: dict[str, Any] = dict.fromkeys(sorts, 0.0)
    rates |= {sort: _rate(rng, 0.1, 0.4) for sort in rng.sample(sorts, 2)}
    return replace(
        _of_three(world),
        spell_ms_max=LONG_SPELL_MS,
        held_snapshots=rng.random() < 0.5,
        members=rng.randint(0, 2),
        **rates,
    )


def _power(world: Options, rng: Random) -> Options:
    """Turn up power cuts at every point of small stores, and during starts."""
    return replace(
        world,
        power_cuts=_rate(rng, 0.2, 0.6),
        cuts_in_write=_rate(rng, 0.0, 0.4),
        cuts_at_places=_rate(rng, 0.3, 0.9),
        brownouts=_rate(rng, 0.0, 0.3),
        outages=_rate(rng, 0.0, 0.2),
        cuts_in_start=_rate(rng, 0.0, 0.5),
        segment_kib=rng.choice((4, 8, 16, 32)),
        journal_kib=rng.choice((32, 48, 64)),
        checkpoint_kib=rng.choice((16, 32, 64)),
        index_entries=rng.choice((16, 64, 256)),
    )


def _damage(world: Options, rng: Random) -> Options:
    """Turn up bit flips and losses of pages and parts of disks.

    At most two sorts: each would otherwise wait for the repair of the others.
    """
    often = rng.choice(("damaged_entries", "bad_pages"))
    seldom = rng.choice(("bad_blocks", "damage", "missing", "bad_headers", "second_openers"))
    rates: dict[str, Any] = {often: _rate(rng, 0.5, 1.2), seldom: _rate(rng, 0.1, 0.4)}
    return replace(
        _of_three(world),
        kills=_rate(rng, 0.1, 0.4),
        segment_kib=rng.choice((4, 8, 16, 32)),
        checkpoint_kib=rng.choice((16, 32, 64)),
        keyed=rng.random() < 0.3,
        **rates,
    )


def _groups(world: Options, rng: Random) -> Options:
    """Turn up members of groups of all sorts, and failures of coordinators."""
    return replace(
        world,
        members=rng.randint(2, 4),
        share_members=rng.choice((0, 0, 2)),
        share_limit=rng.choice(SHARE_LIMITS),
        epoch_members=rng.randint(0, 3),
        late_commits=rng.random() < 0.5,
        lone_leaders=_rate(rng, 0.0, 0.3),
        kills=_rate(rng, 0.2, 0.6),
        delay_us=rng.choice((world.delay_us, rng.randint(*SLOW_US))),
        checkpoint_kib=rng.choice((2, 4, 16, 64)),
        command_entries=rng.choice((3, 20, 100)),
        growth=rng.choice((0, 0, 1)),
    )


def _migrations(world: Options, rng: Random) -> Options:
    """Turn up static members, and members of both protocols in one group, converted both ways.

    In the end the groups must come to rest.
    """
    return replace(
        world,
        members=rng.randint(1, 3),
        epoch_members=rng.randint(1, 3),
        share_members=rng.choice((0, 0, 2)),
        share_limit=rng.choice(SHARE_LIMITS),
        static_members=rng.random() < STATIC_CHANCE,
        mixed_group=rng.random() < MIXED_CHANCE,
        groups_settle=True,
        late_commits=rng.random() < 0.5,
        lone_leaders=_rate(rng, 0.0, 0.3),
        full_disks=rng.choice((0.0, _rate(rng, 0.1, 0.3))),
        kills=_rate(rng, 0.2, 0.6),
        checkpoint_kib=rng.choice((2, 4, 16, 64)),
        command_entries=rng.choice((3, 20, 100)),
        growth=rng.choice((0, 0, 1)),
        topic_churn=_rate(rng, 0.3, 1.5),
        wide_patterns=rng.random() < WIDE_CHANCE,
    )


def _compacted(world: Options, rng: Random) -> Options:
    """Add a compacted partition, and crashes during its compaction."""
    return replace(
        world,
        keyed=True,
        keys=rng.randint(12, 200),
        kills=_rate(rng, 0.1, 0.4),
        cuts_at_places=_rate(rng, 0.1, 0.6),
        bad_pages=_rate(rng, 0.0, 0.3),
        segment_kib=rng.choice((4, 8, 16)),
    )


def _transactions(world: Options, rng: Random) -> Options:
    """Turn up transactions, with little else.

    In half of the worlds coordinators restart while their commands are in flight, in the others any
    servers do.
    """
    world = replace(
        world,
        servers=3,
        idempotent_producers=1,
        plain_producers=0,
        readers=0,
        kills=_rate(rng, 0.1, 0.5),
        lone_leaders=_rate(rng, 0.0, 0.3),
        checkpoint_kib=rng.choice((16, 64, 256)),
    )
    if rng.random() < LATE_CHANCE:
        # With many transactions some end between two restarts, so that repeated commands have other
        # numbers. Share groups send requests to other servers, too.
        return replace(
            answered_late(world, rng),
            seconds=1,
            share_members=rng.choice((0, 2)),
            transactional_producers=rng.randint(*VERY_MANY_PRODUCERS),
            transactional_partitions=VERY_MANY_PARTITIONS,
        )
    return replace(world, transactional_producers=rng.randint(2, 5))


def _directories(world: Options, rng: Random) -> Options:
    """Let servers restart with an older copy of their directory or with another server's."""
    world = replace(
        _of_three(world), kills=_rate(rng, 0.0, 0.3), other_directories=_rate(rng, 0.2, 0.8)
    )
    return rolled_back(world, rng)


def _moves(world: Options, rng: Random) -> Options:
    """Move partitions, with more servers than replicas, also to two replicas and to one."""
    least = rng.randint(1, 3)
    return replace(
        moving(world, rng),
        replicas_min=least,
        min_in_sync=min(world.min_in_sync, least),
        kills=_rate(rng, 0.1, 0.4),
        topic_churn=_rate(rng, 0.0, 0.3),
        growth=rng.choice((0, 0, 1)),
    )


def _members(world: Options, rng: Random) -> Options:
    """Add servers to the cluster, remove them and take them back, while partitions move."""
    return replace(
        _of_three(world),
        servers=3,
        joiners=rng.choice((1, 1, 2)),
        member_changes=_rate(rng, 0.4, 1.5),
        moves=_rate(rng, 0.0, 0.6),
        kills=_rate(rng, 0.1, 0.5),
        checkpoint_kib=rng.choice((4, 16, 64)),
        command_entries=rng.choice((3, 20, 100)),
        encrypted=rng.random() < 0.3,
        member_strikes=_rate(rng, 0.2, 1.0),
        joiner_wipes=rng.choice((0.0, _rate(rng, 0.1, 0.4))),
        member_cuts=rng.choice((0.0, _rate(rng, 0.1, 0.4))),
        wipes=rng.choice((0.0, 0.0, _rate(rng, 0.1, 0.3))),
    )


def _intruders(world: Options, rng: Random) -> Options:
    """Add intruders: hosts that pretend to be a server."""
    return replace(intruded(_of_three(world), rng), encrypted=True, kills=_rate(rng, 0.1, 0.4))


def _clocks(world: Options, rng: Random) -> Options:
    """Turn up clock errors of days and decades, and sleeping machines."""
    return replace(
        _of_three(world),
        wrong_clocks=_rate(rng, 0.2, 0.6),
        clock_steps=_rate(rng, 0.2, 0.6),
        sleeps=_rate(rng, 0.0, 0.2),
        clock_jumps=_rate(rng, 0.0, 0.3),
        producer_expiry_ms=rng.choice((0, rng.randint(*PRODUCER_EXPIRY_MS))),
        members=rng.randint(0, 2),
    )


def _of_three(world: Options) -> Options:
    """Return the same options with at least three servers."""
    return replace(world, servers=max(3, world.servers))


KINDS: dict[str, Turn] = {
    "elections": _elections,
    "power": _power,
    "damage": _damage,
    "groups": _groups,
    "migrations": _migrations,
    "compacted": _compacted,
    "transactions": _transactions,
    "directories": _directories,
    "moves": _moves,
    "members": _members,
    "intruders": _intruders,
    "clocks": _clocks,
}
"""Kinds by name, with the function that changes the options."""


def draw_of(kind: str, rng: Random) -> Options:
    """Draw the options of a world of a kind; "": a general world. Raises KeyError."""
    if not kind:
        return draw(rng)
    turn = KINDS[kind]
    drawn = draw(rng)
    kept = {name: getattr(drawn, name) for name in WORLD}
    kept |= {name: getattr(drawn, name) for name in FAULTS if rng.random() < KEPT}
    world = Options(servers=rng.choice(SERVERS), seconds=rng.randint(*SECONDS), members=0, **kept)
    return turn(world, rng)
