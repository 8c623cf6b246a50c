"""A server that runs and serves no clients. It votes and follows, but must lead no client group.

There are two causes. It receives none of the catalog's Raft messages (`catalog_silence.py`), like a
server whose catalog replica was rolled back to an old copy: it starts, cannot know which topics
exist, and keeps its port closed. Or another process has its port: it ends itself when it would open
the port, and is restarted repeatedly.

`judge_closed_server` does this to the server that leads most groups, once everything has settled,
and then restarts another server. The servers that serve are a majority: each group must have a
leader there within ten election timeouts.

Does not depend on what else has happened in this world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdl.clock import MS
from vdl.sim.faults import close, may_serve
from vdl.sim.invariants import is_open

if TYPE_CHECKING:
    from vdl.sim.world import World

S = 1_000 * MS
CLOSED_NS = 4 * S
"""Time that it serves no clients before the other one restarts; leaderships return within it."""
ELECTION_TIMEOUTS = 10
ELECTION_TIMEOUT_NS = 1_200 * MS


def judge_closed_server(world: World) -> None:
    """Let one server serve no clients, and restart another. The world must have settled before."""
    watch = world.watch
    closed = max(world.machines, key=watch.led)
    others = [machine for machine in world.machines if machine is not closed]
    close(closed, world.options.closed)
    world.run_for(CLOSED_NS)
    if is_open(closed):
        watch.violate("serves-closed", f"{closed.name} lets clients in")
    again = max(others, key=watch.led)
    again.kill()
    again.start()
    limit_ns = ELECTION_TIMEOUTS * ELECTION_TIMEOUT_NS + world.work_ns
    if not world.wait(limit_ns, lambda: not watch.leaderless(others)):
        what = f"{watch.leaderless(others)}, {limit_ns // MS} ms after {again.name} started again"
        watch.violate("no-leader", f"{what}, while {closed.name} serves no clients")
    may_serve(closed)
