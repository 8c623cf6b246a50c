"""`vdl plan`: what a change of servers or placements would do, step by step, before it is made."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ids import ServerId
from rpc.admin import MemberChange
from vdl.commands.changes.execution import Done, execute
from vdl.commands.changes.live_cluster import LiveCluster, read_cluster
from vdl.commands.changes.member_changes import (
    MEMBER,
    POLL_SECONDS,
    add_server,
    change_server,
    find_server,
    has_joined,
    is_gone,
    wait_for,
)
from vdl.commands.changes.output import (
    done_json,
    plan_json,
    print_done,
    print_moves,
    print_rehearsals,
    print_steps,
    rate_option,
)
from vdl.commands.changes.steps import Plan, Planner
from vdl.commands.cluster.admin_requests import connection_options
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import FAILED, emit, fail, json_option, say
from vdl.config.values import parse_address
from vdl.state.balance import Where

if TYPE_CHECKING:
    from vdl.sim.rehearsal import Rehearsed, Scene

ANSWER_SECONDS_MAX = 30.0
"""Time that servers which were added may take until they answer."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def plan() -> None:
    """Show what a change would do, step by step, and with --execute make it.

    The steps are tried on a copy of the cluster's catalog, by the code that the cluster decides
    with. For each: replicas, leaderships and bytes that move, the time, how many servers may fail
    meanwhile so that each partition goes on, the least durable copies of a partition, and the
    partitions that block, with the reason. A move that would leave fewer than two durable copies is
    not made.
    """


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    execution = click.option("--execute", "executes", is_flag=True, help="Make the change.")
    rehearsal = click.option(
        "--rehearse", "seeds", type=click.IntRange(0), default=0, metavar="N",
        help="First try the change N times in the simulator, each with other faults.",
    )  # fmt: skip
    return rehearsal(execution(rate_option(json_option(connection_options()(function)))))


@plan.command()
@click.argument("server", type=click.IntRange(1), metavar="ID")
@_options
def remove(
    *, server: int, seeds: int, executes: bool, rate: int, as_json: bool, connection: Connection
) -> int:
    """Remove a server: its partitions are moved away first.

    With --execute as `vdl member remove`.
    """
    removed = ServerId(server)
    live = read_cluster(connection)
    found = Planner(live, rate=rate).remove(removed)

    def carry_out() -> None:
        change_server(connection, MemberChange.REMOVE, removed)
        wait_for(connection, server, "leaves", is_gone)
        if has_joined(find_server(connection, server)):
            fail(f"server {server} was taken back")

    shown = PlanShown(found, rate, as_json=as_json)
    shown.rehearse(seeds, partial(_scene, live, found, removed=removed))
    return shown.end(carry_out if executes else None)


@plan.command()
@click.argument("servers", nargs=-1, required=True, type=click.IntRange(1), metavar="ID...")
@click.option("--rack", default="", metavar="NAME", help="server.rack of the new servers.")
@_options
def add(
    *,
    servers: tuple[int, ...],
    rack: str,
    seeds: int,
    executes: bool,
    rate: int,
    as_json: bool,
    connection: Connection,
) -> int:
    """Add servers, and balance replicas and leaderships over all.

    They need not be there for a plan. With --execute they must be started, and wait. The moves are
    those that were shown, and are not begun if the racks or disks of the servers would make others.
    """
    ids = list(dict.fromkeys(map(ServerId, servers)))
    live = read_cluster(connection)
    for server in ids:
        if server in live.servers and live.servers[server].member.standing == MEMBER:
            fail(f"server {server} is a member: see `vdl plan balance`")
    found = Planner(live, rate=rate).add(ids, rack)

    def carry_out() -> Done:
        for server in ids:
            one = find_server(connection, server)
            if one is None or not one.address:
                fail(f"server {server} does not wait to be added: start it first")
            add_server(connection, server, parse_address(one.address))
            wait_for(connection, server, "joins", has_joined)
        # Racks and disks of the new servers are known now. Make the moves that were shown, or none.
        planner = Planner(_read_with(connection, ids), rate=rate)
        found_out = planner.why_not_as_planned(found, ids, rack)
        if found_out:
            fail(
                f"the servers were added, and nothing was moved to them: {'; '.join(found_out)}; "
                "for a plan with what is known now: vdl plan balance"
            )
        return execute(connection, found.steps, rate=rate)

    shown = PlanShown(found, rate, as_json=as_json)
    shown.rehearse(seeds, partial(_scene, live, found, added=ids, rack=rack))
    return shown.end(carry_out if executes else None)


@plan.command()
@click.argument("moves", nargs=-1, required=True, metavar="TOPIC:PARTITION=ID,...")
@_options
def move(
    *,
    moves: tuple[str, ...],
    seeds: int,
    executes: bool,
    rate: int,
    as_json: bool,
    connection: Connection,
) -> int:
    """Move partitions to given servers, the preferred leader first."""
    targets = dict(map(_target, moves))
    live = read_cluster(connection)
    found = Planner(live, rate=rate).move(targets)
    shown = PlanShown(found, rate, as_json=as_json)
    shown.rehearse(seeds, partial(_scene, live, found))
    carry_out = partial(execute, connection, found.steps, rate=rate)
    return shown.end(carry_out if executes else None)


@plan.command()
@_options
def balance(*, seeds: int, executes: bool, rate: int, as_json: bool, connection: Connection) -> int:
    """Balance replicas and leaderships, as `vdl balance` does."""
    live = read_cluster(connection)
    found = Planner(live, rate=rate).balance()
    shown = PlanShown(found, rate, as_json=as_json)
    shown.rehearse(seeds, partial(_scene, live, found))
    carry_out = partial(execute, connection, found.steps, rate=rate)
    return shown.end(carry_out if executes else None)


def _read_with(connection: Connection, servers: Sequence[ServerId]) -> LiveCluster:
    """Return the cluster once servers that have joined answer: they are members a moment before."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        live = read_cluster(connection)
        missing = sorted(set(servers) - live.up)
        if not missing:
            return live
        if time.monotonic() > deadline:
            fail(f"the servers were added, but do not answer: {', '.join(map(str, missing))}")
        time.sleep(POLL_SECONDS)


def _scene(live: LiveCluster, found: Plan, **change: Any) -> Scene:
    from vdl.commands.changes.rehearsals import scene_of

    return scene_of(live, found, **change)


class PlanShown:
    """A plan that is printed, rehearsed and carried out, in this order."""

    def __init__(self, plan: Plan, rate: int, *, as_json: bool) -> None:
        self._plan = plan
        self._as_json = as_json
        self._rehearsed: list[Rehearsed] = []
        if not as_json:
            print_moves(plan)
            print_steps(plan, rate)

    def rehearse(self, count: int, scene: Callable[[], Scene]) -> None:
        """Rehearse some times, unless the cluster would refuse the change."""
        if not count or self._plan.refused:
            return
        from vdl.commands.changes.rehearsals import run  # the simulator takes a while to load

        found = scene()
        if not found.replicas:
            return  # a cluster without partitions has nothing to lose
        for one in run(found, count):
            self._rehearsed.append(one)
            if not self._as_json:
                print_rehearsals([one])

    def end(self, carry_out: Callable[[], Done | None] | None) -> int:
        """Carry the plan out, unless it is refused, something blocks it, or a rehearsal failed.
        Return the exit code: 1 for these."""
        plan = self._plan
        is_good = not (plan.refused or plan.blocked) and not any(
            one.violations for one in self._rehearsed
        )
        if carry_out is not None and not is_good:
            say("the plan is not carried out", err=True)
        done = carry_out() if carry_out is not None and is_good else None
        document = {
            "plan": plan_json(plan),
            "rehearsals": [dataclasses.asdict(one) for one in self._rehearsed],
            "done": done_json(done),
        }
        emit(self._as_json, document, lambda: None if done is None else print_done(done))
        return 0 if is_good else FAILED


def _target(text: str) -> tuple[Where, list[ServerId]]:
    """Return a partition and its servers. Raises click.UsageError."""
    where, separator, servers = text.partition("=")
    topic, colon, partition = where.rpartition(":")
    try:
        if not (separator and colon and topic):
            raise ValueError
        ids: Sequence[int] = [int(one) for one in servers.split(",")]
        return (topic, int(partition)), [ServerId(one) for one in ids]
    except ValueError:
        raise click.UsageError(f"{text!r} is no TOPIC:PARTITION=ID,ID,...") from None
