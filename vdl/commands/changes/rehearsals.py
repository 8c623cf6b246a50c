"""Plans that are rehearsed in the simulator, with the servers and replicas of the live cluster.

The partitions that the plan changes come first, then others, as far as a world has room for them.
All servers are there at the beginning, also those that do not answer now.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator

from ids import ServerId
from vdl.commands.changes.catalog_copy import WAITING
from vdl.commands.changes.live_cluster import LiveCluster
from vdl.commands.changes.steps import Plan
from vdl.commands.output import progress
from vdl.sim.rehearsal import PARTITIONS_MAX, Rehearsed, Scene, rehearse


def scene_of(
    live: LiveCluster,
    plan: Plan,
    *,
    removed: ServerId | None = None,
    added: Iterable[ServerId] = (),
    rack: str = "",
) -> Scene:
    """Return what is rehearsed for a plan. `added`: servers that it adds, in `rack`."""
    new = list(added)
    members = [one.member for one in live.servers.values() if one.id not in new]
    after = {change.where: change.after for change in plan.changes}
    chosen = sorted(live.partitions, key=lambda where: (where not in after, where))
    chosen = chosen[:PARTITIONS_MAX]
    return Scene(
        initial=[one.server_id for one in members if one.is_voter],
        added=[one.server_id for one in members if not (one.is_voter or one.standing == WAITING)]
        + new,
        racks={**live.racks, **dict.fromkeys(new, rack)},
        replicas=[live.partitions[where].replicas for where in chosen],
        moves={number: after[where] for number, where in enumerate(chosen) if where in after},
        removed=removed,
    )


def run(scene: Scene, count: int) -> Iterator[Rehearsed]:
    """Rehearse with the faults of some seeds."""
    with progress("rehearses", count, unit="seeds") as bar:
        for seed in range(1, count + 1):
            yield rehearse(seed, scene)
            gc.collect()  # a world is one reference cycle
            bar.advance()
