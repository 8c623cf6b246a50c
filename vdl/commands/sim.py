"""`vdl sim`: whole servers on virtual time, everything drawn from a seed."""

from __future__ import annotations

import click

from vdl.sim.kinds import KINDS
from vdl.sim.run import main as run


@click.command()
@click.option("--seed", type=int, help="One seed, told in detail; the same seed does the same.")
@click.option("--seeds", type=click.IntRange(0), default=1, show_default=True, help="How many.")
@click.option("--first", type=int, default=1, show_default=True, help="The first of --seeds.")
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=0.0,
    help="Then go on with fresh seeds for so long; the first of them is printed.",
)
@click.option(
    "--kind", type=click.Choice(list(KINDS)), help="Worlds of one kind only: it is turned up."
)
@click.option("--echo", is_flag=True, help="Print every event as it happens (one seed).")
@click.option(
    "--history", default="", metavar="FILE",
    help="Write what the clients did and saw, for `vdl check` (one seed).",
)  # fmt: skip
def sim(
    *,
    seed: int | None,
    seeds: int,
    first: int,
    minutes: float,
    kind: str | None,
    echo: bool,
    history: str,
) -> int:
    """Simulate whole clusters from seeds: crashes, pauses, partitions, and clients that remember.

    Exits with 1 when anything that must hold did not; prints the command that does it again.
    """
    return run(
        seed=seed, seeds=seeds, first=first, minutes=minutes, kind=kind or "", echo=echo,
        history_path=history,
    )  # fmt: skip
