"""`vdl sim`: whole servers on virtual time, everything drawn from a seed."""

from __future__ import annotations

import click

from vdl.sim.kinds import KINDS
from vdl.sim.run import main as run


@click.command()
@click.option(
    "--seed", type=int, help="Run this seed and print its details. Equal seeds give equal runs."
)
@click.option(
    "--seeds", type=click.IntRange(0), default=1, show_default=True, help="Number of seeds."
)
@click.option("--first", type=int, default=1, show_default=True, help="First of --seeds.")
@click.option(
    "--minutes",
    type=click.FloatRange(0),
    default=0.0,
    help="Minutes to continue with new seeds. The first of them is printed.",
)
@click.option(
    "--kind",
    type=click.Choice(list(KINDS)),
    help="Kind of world to run, with its faults made frequent.",
)
@click.option("--echo", is_flag=True, help="Print each event (one seed).")
@click.option(
    "--history", default="", metavar="FILE",
    help="Write the operations of the clients for `vdl check` (one seed).",
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
    """Simulate whole clusters from seeds: crashes, pauses, partitions, and clients with a history.

    Exit code 1 if a rule was broken. The output has the command that repeats the run.
    """
    return run(
        seed=seed, seeds=seeds, first=first, minutes=minutes, kind=kind or "", echo=echo,
        history_path=history,
    )  # fmt: skip
