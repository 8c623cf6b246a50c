"""`vdl status`: the state of a cluster, for people as tables, for programs as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vdl.commands.bootstrap_option import addresses, client_settings
from vdl.commands.cluster_status import ClusterStatus, Group, Replica, collect
from vdl.kafka.client import Unreachable
from vdl.kafka.security.client_settings import ClientSettingsError

if TYPE_CHECKING:
    from rich.table import Table


PIPE_COLUMNS = 200


@click.command()
@click.option(
    "--bootstrap", default="127.0.0.1:9092", show_default=True,
    help="Kafka addresses of some servers, separated by commas.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE",
    help="Properties that secure the connections, such as those `vdl up --secure` writes.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Everything, as one JSON object.")
@click.option("--all", "show_all", is_flag=True, help="The catalog and the coordinators as well.")
def status(*, bootstrap: str, config: Path | None, as_json: bool, show_all: bool) -> int:
    """Show servers, topics, partitions, leaders, terms, offsets and the lag of each replica.

    Exits with 1 when a server does not answer or a group has no leader.
    """
    try:
        cluster = collect(addresses(bootstrap), client_settings(config))
    except (Unreachable, ClientSettingsError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(cluster), indent=2))
    else:
        _print_tables(cluster, show_all=show_all)
    return 0 if cluster.is_healthy else 1


def _print_tables(cluster: ClusterStatus, *, show_all: bool) -> None:
    from rich.console import Console
    from rich.markup import escape

    # Into a file or a pipe: lines as long as they are.
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    console.print(f"cluster [bold]{escape(cluster.cluster_id)}[/]")
    console.print(_server_table(cluster))
    partitions = [partition for topic in cluster.topics for partition in topic.partitions]
    groups = (*cluster.groups, *partitions) if show_all else partitions
    if groups:
        console.print(_group_table(groups))
    else:
        console.print("no topics")


def _table(*columns: str) -> Table:
    """A plain table; columns whose name starts with ">" hold numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        is_number = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if is_number else "left")
    return table


def _server_table(cluster: ClusterStatus) -> Table:
    from rich.markup import escape

    table = _table("server", "address", "rack", "state", ">uptime", ">replicas", ">leading")
    for server in cluster.servers:
        if server.problem:
            state = f"[red]{escape(server.problem)}[/]"
            table.add_row(str(server.id), escape(server.address), escape(server.rack), state)
            continue
        notes = "; ".join(server.notes)
        table.add_row(
            str(server.id),
            escape(server.address),
            escape(server.rack),
            f"[yellow]{escape(notes)}[/]" if notes else "[green]up[/]",
            _uptime(server.uptime_ms),
            str(server.replicas),
            str(server.leading),
        )
    return table


def _group_table(groups: Iterable[Group]) -> Table:
    from rich.markup import escape

    table = _table("partition", ">leader", ">term", ">start", ">high watermark", ">end", "replicas")
    for group in groups:
        table.add_row(
            escape(group.name),
            str(group.leader) if group.leader >= 0 else "[red]none[/]",
            _number(group.term),
            _number(group.log_start_offset),
            _number(group.high_watermark),
            _number(group.end_offset),
            "  ".join(_replica_text(replica) for replica in group.replicas),
        )
    return table


def _replica_text(replica: Replica) -> str:
    """A replica in a table: its server, and how far behind it is."""
    if replica.role == "unknown":
        return f"[red]{replica.server}: no answer[/]"
    if replica.role == "leader":
        return f"[bold]{replica.server}[/]"
    said = []
    if replica.role == "learner":
        said.append("about to take part")
    if replica.lag > 0 or replica.lag_entries > 0:
        lag = f"{replica.lag} records" if replica.lag > 0 else f"{replica.lag_entries} entries"
        said.append(f"{lag} behind")
    if replica.is_in_sync is False:
        said.append("not in sync")
    if said:
        return f"[yellow]{replica.server}: {', '.join(said)}[/]"
    return str(replica.server)


def _number(value: int) -> str:
    return str(value) if value >= 0 else "?"


def _uptime(uptime_ms: int) -> str:
    minutes, seconds = divmod(uptime_ms // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s"
