"""`vdl balance`: spread replicas and leaderships over servers, hosts and disks."""

from __future__ import annotations

import click

from vdl.commands.changes.execution import execute, stop
from vdl.commands.changes.live_cluster import read_cluster
from vdl.commands.changes.output import (
    done_json,
    plan_json,
    print_done,
    print_moves,
    print_notes,
    print_servers,
    print_steps,
    rate_option,
    servers_json,
)
from vdl.commands.changes.steps import Planner
from vdl.commands.cluster.admin_requests import connection_options
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import emit, json_option, say


@click.command()
@click.option("--plan", "shows", is_flag=True, help="Show the moves, the default.")
@click.option("--execute", "executes", is_flag=True, help="Carry them out.")
@click.option("--stop", "stops", is_flag=True, help="Cancel the moves in progress.")
@rate_option
@json_option
@connection_options()
def balance(
    *,
    shows: bool,
    executes: bool,
    stops: bool,
    rate: int,
    as_json: bool,
    connection: Connection,
) -> None:
    """Spread replicas and leaderships evenly over the servers.

    Replicas of a partition leave hosts that they share, disks that are over 80 % full give
    replicas, and then each server gets equally many. A second plan is empty. Without an option the
    plan is shown.

    The moves are Kafka's reassignments, 32 at a time. Those that have begun go on when the command
    is interrupted, and no others begin.
    """
    if shows + executes + stops > 1:
        raise click.UsageError("only one of --plan, --execute and --stop can be given")
    if stops:
        count = stop(connection)
        emit(as_json, {"stopped": count}, lambda: say(f"{count} moves cancelled"))
        return
    live = read_cluster(connection)
    plan = Planner(live, rate=rate).balance()
    if not as_json:
        print_servers(live, plan)
        if not executes:
            print_moves(plan)
            print_steps(plan, rate) if plan.steps else print_notes(plan)
        if not plan.steps:
            say("nothing to move")
    done = execute(connection, plan.steps, rate=rate) if executes else None
    document = {
        "servers": servers_json(live, plan), "plan": plan_json(plan), "done": done_json(done)
    }  # fmt: skip
    emit(as_json, document, lambda: print_done(done) if done is not None and plan.steps else None)
