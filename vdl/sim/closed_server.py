"""A server that runs and serves no clients: nothing of the catalog reaches it, or another process
has its port. It votes and follows; it must lead nothing that clients need.

Of the catalog's Raft messages it gets none (`catalog_silence.py`), as one whose catalog replica was
rolled back to an old copy. It starts, cannot know what topics there are, and keeps its port closed.
With its port taken it ends itself when it would open it, and is started again and again.

`judge_closed_server` has this happen when all is well, to the server that leads most, and then has
another server start again. The servers that serve are a majority: each group must be led there
within ten election timeouts.

Must not know: what else has happened in this world.
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
"""How long it runs so before the other one starts again: some leaderships would have returned."""
ELECTION_TIMEOUTS = 10
ELECTION_TIMEOUT_NS = 1_200 * MS


def judge_closed_server(world: World) -> None:
    """Have one serve no clients, and another start again; the world is at rest before."""
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
