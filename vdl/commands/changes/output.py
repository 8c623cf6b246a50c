"""Plans as tables and as JSON, and the rate that their times are computed with."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ids import ServerId
from vdl.commands.changes.execution import Done
from vdl.commands.changes.live_cluster import LiveCluster
from vdl.commands.changes.steps import Plan, told
from vdl.commands.output import say, table
from vdl.config.values import parse_size
from vdl.logstream.options import HostOptions
from vdl.server.problem import counted
from vdl.state.balance import Change

if TYPE_CHECKING:
    from vdl.sim.rehearsal import Rehearsed

MOVES_SHOWN_MAX = 40
"""Moves in a table; `--json` has all."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def rate_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--rate`, passed in bytes a second."""
    option = click.option(
        "--rate", callback=_rate, metavar="SIZE",
        help="Bytes a second that a leader sends to its new replicas, for the times of the plan; "
        "64MiB, the default of raft.catch_up_rate.",
    )  # fmt: skip
    return option(function)


def _rate(ctx: click.Context, option: click.Parameter, text: str | None) -> int:
    del ctx, option
    if text is None:
        return HostOptions().catch_up_bytes_per_second
    try:
        rate = parse_size(text)
    except ValueError as error:
        raise click.BadParameter(f"expected {error}") from None
    if rate <= 0:
        raise click.BadParameter("expected more than 0")
    return rate


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the object of docs/cli.md."""
    return {
        "refused": plan.refused,
        "notes": plan.notes,
        "steps": [
            {
                "title": step.title,
                "replicas": step.replicas,
                "leaderships": step.leaderships,
                "bytes": step.moved_bytes,
                "seconds": round(step.seconds, 1),
                "quorum_left": step.quorum_left,
                "copies_left": step.copies_left,
                "moves": [_change_json(change) for change in step.changes],
                "blocked": [
                    {"topic": one.where[0], "partition": one.where[1], "reason": one.reason}
                    for one in step.blocked
                ],
            }
            for step in plan.steps
        ],
    }


def servers_json(live: LiveCluster, plan: Plan) -> list[dict[str, Any]]:
    """Return each server's replicas, preferred leaders and bytes, now and afterwards."""
    now, after = _shares(live, []), _shares(live, plan.changes)
    return [
        {
            "server_id": server,
            "rack": one.member.rack,
            "free_bytes": one.free_bytes if one.total_bytes else None,
            "replicas": now["replicas"][server],
            "replicas_after": after["replicas"][server],
            "preferred": now["preferred"][server],
            "preferred_after": after["preferred"][server],
            "bytes": now["bytes"][server],
            "bytes_after": after["bytes"][server],
        }
        for server, one in sorted(live.servers.items())
    ]


def done_json(done: Done | None) -> dict[str, Any] | None:
    """Return what was carried out; None for nothing."""
    return None if done is None else dataclasses.asdict(done)


def print_steps(plan: Plan, rate: int) -> None:
    """Print the steps, what blocks and the notes."""
    if plan.refused:
        say(f"refused: {plan.refused}")
        return
    columns = (
        ">step", "what", ">replicas", ">leaderships", ">bytes", ">seconds", ">quorum left",
        ">copies left", ">blocked",
    )  # fmt: skip
    if plan.steps:
        table(
            columns,
            [
                (
                    number, step.title, step.replicas, step.leaderships, size(step.moved_bytes),
                    f"{step.seconds:.0f}", step.quorum_left, step.copies_left, len(step.blocked),
                )
                for number, step in enumerate(plan.steps, 1)
            ],
        )  # fmt: skip
    for one in plan.blocked:
        say(f"blocked: {told(one.where)}: {one.reason}")
    print_notes(plan)
    replicas = sum(step.replicas for step in plan.steps)
    total = sum(step.moved_bytes for step in plan.steps)
    seconds = sum(step.seconds for step in plan.steps)
    say(
        f"{replicas} replicas, {size(total)}, about {seconds:.0f} s if a leader sends "
        f"{size(rate)} a second"
    )


def print_servers(live: LiveCluster, plan: Plan) -> None:
    """Print each server's share now and afterwards."""
    columns = (
        ">server", "rack", ">replicas", ">after", ">preferred", ">after", ">bytes", ">after",
        ">free",
    )  # fmt: skip
    rows = [
        (
            one["server_id"], one["rack"] or None, one["replicas"], one["replicas_after"],
            one["preferred"], one["preferred_after"], size(one["bytes"]),
            size(one["bytes_after"]),
            None if one["free_bytes"] is None else size(one["free_bytes"]),
        )
        for one in servers_json(live, plan)
    ]  # fmt: skip
    table(columns, rows)


def print_moves(plan: Plan) -> None:
    """Print the first moves."""
    changes = plan.changes
    if not changes:
        return
    rows = [
        (told(one.where), _servers(one.before), _servers(one.after), size(one.moved_bytes))
        for one in changes[:MOVES_SHOWN_MAX]
    ]
    table(("partition", "replicas", "afterwards", ">bytes"), rows)
    if len(changes) > MOVES_SHOWN_MAX:
        say(f"and {len(changes) - MOVES_SHOWN_MAX} more: --json has all")


def print_notes(plan: Plan) -> None:
    """Print what an operator should know."""
    for note in plan.notes:
        say(f"note: {note}")


def print_rehearsals(rehearsed: list[Rehearsed]) -> None:
    """Print the result of each seed."""
    for one in rehearsed:
        verdict = "; ".join(one.violations) or "nothing lost, all replicas equal"
        say(
            f"rehearsal {one.seed}: ended after {one.seconds:.0f} s, {one.faults} faults, "
            f"{one.crashes} crashes, {one.acknowledgements} records acknowledged: {verdict}"
        )


def print_done(done: Done) -> None:
    """Print what was carried out, and at which rate."""
    rate = size(int(done.moved_bytes / done.seconds)) if done.seconds else "-"
    say(
        f"{counted(done.partitions, 'partition')} changed, {size(done.moved_bytes)} in "
        f"{done.seconds:.1f} s ({rate} a second); {done.elected} leaders elected"
    )
    if done.not_elected:
        say(f"their preferred leader follows when it can: {', '.join(done.not_elected)}")


def size(count: int) -> str:
    """Return bytes in the largest unit of which there is one."""
    amount, unit = float(count), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.0f} {_UNITS[unit]}" if not unit else f"{amount:.1f} {_UNITS[unit]}"


def _servers(replicas: tuple[ServerId, ...]) -> str:
    return ",".join(map(str, replicas))


def _change_json(change: Change) -> dict[str, Any]:
    topic, partition = change.where
    return {
        "topic": topic,
        "partition": partition,
        "replicas": list(change.before),
        "replicas_after": list(change.after),
        "bytes": change.moved_bytes,
    }


def _shares(live: LiveCluster, changes: list[Change]) -> dict[str, Counter[ServerId]]:
    after = {change.where: change.after for change in changes}
    found: dict[str, Counter[ServerId]] = {
        "replicas": Counter(), "preferred": Counter(), "bytes": Counter()
    }  # fmt: skip
    for where, one in live.partitions.items():
        replicas = after.get(where, one.replicas)
        found["replicas"].update(replicas)
        found["preferred"].update(replicas[:1])
        found["bytes"].update(dict.fromkeys(replicas, one.size))
    return found
