"""`vdl status`: the state of a cluster, as tables for people and as JSON for programs.

It is often used when a machine is overloaded and CPU time is scarce. So the tables are plain lines
built here, without a library.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable

import click

from vdl.commands.checks.cluster_status import (
    ClusterStatus,
    Group,
    Partition,
    Replica,
    Server,
    collect,
)
from vdl.commands.cluster.admin_requests import admin_settings, connection_options
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import progress, say
from vdl.commands.terminal_text import visible_line
from vdl.kafka.client import Unreachable
from vdl.kafka.security.client_settings import ClientSettingsError
from vdl.server.problem import NOT_WRONG, counted

PARTITIONS_MAX = 40
"""With more partitions only unhealthy ones are shown, and no more of those: an ended server makes
thousands unhealthy."""
PROBLEMS_MAX = 3
"""Problems of one kind that are shown."""
_GAP = "  "
"""Gap between two columns."""


@click.command()
@connection_options()
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help="Show every partition, the catalog and the coordinators.",
)
@click.option("--wrong", "only_wrong", is_flag=True, help="Show only unhealthy partitions.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Show only this topic. May be repeated.",
)
@click.option(
    "--watch", type=click.FloatRange(min=0.5), metavar="SECONDS", help="Refresh every SECONDS."
)
def status(
    *,
    connection: Connection,
    as_json: bool,
    show_all: bool,
    only_wrong: bool,
    topics: tuple[str, ...],
    watch: float | None,
) -> int:
    """Show servers, problems, partitions, leaders, offsets and the lag of each replica.

    If there are many partitions, only some unhealthy ones are shown. Exit code 1 if a server does
    not answer, a group has no leader, a server reports another problem, or there is no such topic.
    """
    shown = Shown(show_all=show_all, only_wrong=only_wrong, topics=frozenset(topics))
    while True:
        try:
            settings = admin_settings(connection)
            with progress("asking the servers"):
                cluster = collect(
                    addresses(connection.bootstrap),
                    settings,
                    timeout_seconds=connection.timeout_seconds,
                )
        except (Unreachable, ClientSettingsError) as error:
            raise click.ClickException(str(error)) from error
        if watch is not None and not as_json:
            click.clear()
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(cluster), indent=2))
        else:
            print_tables(cluster, shown)
        missing = sorted(shown.topics - {topic.name for topic in cluster.topics})
        if missing:
            say(f"{', '.join(missing)}: no such topic", err=True)
        if watch is None:
            return 0 if cluster.is_healthy and not missing else 1
        time.sleep(watch)


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """Selection of the partitions in the tables."""

    show_all: bool = False
    only_wrong: bool = False
    topics: frozenset[str] = frozenset()

    def groups_of(self, cluster: ClusterStatus) -> list[Group]:
        """Return the selected groups, in the order of their names."""
        partitions = [
            partition
            for topic in cluster.topics
            if not self.topics or topic.name in self.topics
            for partition in topic.partitions
        ]
        is_bounded = len(partitions) > PARTITIONS_MAX and not (
            self.show_all or self.only_wrong or self.topics
        )
        found: list[Group] = [*cluster.groups] if self.show_all else []
        only_wrong = self.only_wrong or is_bounded
        found += [one for one in partitions if not (only_wrong and one.is_well)]
        return found[:PARTITIONS_MAX] if is_bounded else found


def print_tables(cluster: ClusterStatus, shown: Shown) -> None:
    """Print a summary, racks of several servers, the servers, the problems, and the selected
    partitions."""
    groups = shown.groups_of(cluster)
    lines = [_summary(cluster), *_host_table(cluster), *_server_table(cluster)]
    lines += _problem_lines(cluster)
    if groups:
        lines += _group_table(groups)
    left = len(cluster.partitions) - sum(isinstance(group, Partition) for group in groups)
    if left and not shown.topics:
        wrong = sum(not partition.is_well for partition in cluster.partitions)
        wrong -= sum(isinstance(group, Partition) and not group.is_well for group in groups)
        if wrong:
            lines.append(f"and {counted(wrong, 'more partition')} unhealthy; --wrong shows each")
        if well := left - wrong:
            verb = "is" if well == 1 else "are"
            lines.append(f"{counted(well, 'partition')} {verb} healthy; --all shows each")
    click.echo("\n".join(lines))


def _summary(cluster: ClusterStatus) -> str:
    up = sum(not server.problem for server in cluster.servers)
    partitions = cluster.partitions
    ill = sum(not partition.is_well for partition in partitions)
    parts = [
        f"{counted(len(cluster.servers), 'server')}, {up} up",
        counted(len(cluster.topics), "topic") if cluster.topics else "no topics",
    ]
    if partitions:
        parts.append(f"{counted(len(partitions), 'partition')}, {ill} unhealthy")
    return f"cluster {click.style(visible_line(cluster.cluster_id), bold=True)}: " + "; ".join(
        parts
    )


def _problem_lines(cluster: ClusterStatus) -> list[str]:
    """Return one line for each kind, with its first few texts."""
    lines = []
    for kind, texts in cluster.problems.items():
        told = "; ".join(texts[:PROBLEMS_MAX])
        if len(texts) > PROBLEMS_MAX:
            told += f"; and {len(texts) - PROBLEMS_MAX} more"
        color = "yellow" if kind in NOT_WRONG else "red"
        lines.append(f"{click.style(visible_line(kind), fg=color)}: {visible_line(told)}")
    return lines


@dataclasses.dataclass(frozen=True, slots=True)
class _Cell:
    """A table cell: `text` determines the width, `shown` has the colours."""

    text: str
    shown: str = ""


def _styled(text: str, *, color: str | None = None, bold: bool = False) -> _Cell:
    text = visible_line(text)
    return _Cell(text, click.style(text, fg=color, bold=bold or None))


def _table(columns: Iterable[str], rows: Iterable[list[_Cell | str]]) -> list[str]:
    """Return the lines of a table. Columns whose name starts with ">" hold numbers. A row may be
    shorter."""
    names = list(columns)
    heads: list[_Cell | str] = [_styled(name.removeprefix(">"), bold=True) for name in names]
    cells = [
        [_Cell(visible_line(c)) if isinstance(c, str) else c for c in row] for row in (heads, *rows)
    ]
    widths = [
        max(len(row[place].text) for row in cells if place < len(row))
        for place in range(len(names))
    ]
    lines = []
    for row in cells:
        shown = []
        for cell, name, width in zip(row, names, widths, strict=False):
            fill = " " * (width - len(cell.text))
            text = cell.shown or cell.text
            shown.append(fill + text if name.startswith(">") else text + fill)
        lines.append(_GAP.join(shown).rstrip())
    return lines


def _host_table(cluster: ClusterStatus) -> list[str]:
    """Return a line for each rack; no table unless some rack has several servers."""
    racks: dict[str, list[Server]] = {}
    for server in cluster.servers:
        if server.rack:
            racks.setdefault(server.rack, []).append(server)
    if all(len(servers) == 1 for servers in racks.values()):
        return []
    rows: list[list[_Cell | str]] = []
    for rack, servers in sorted(racks.items()):
        up = [server for server in servers if not server.problem]
        color = "green" if len(up) == len(servers) else "yellow" if up else "red"
        rows.append(
            [
                rack,
                _styled(f"{len(up)} of {len(servers)}", color=color),
                str(sum(server.replicas for server in up)),
                str(sum(server.leading for server in up)),
            ]
        )
    return _table(("rack", ">servers up", ">replicas", ">leading"), rows)


def _server_table(cluster: ClusterStatus) -> list[str]:
    rows: list[list[_Cell | str]] = []
    for server in cluster.servers:
        row: list[_Cell | str] = [str(server.id), server.address, server.rack]
        if server.problem:
            row.append(_styled(server.problem, color="red"))
        else:
            kinds = ", ".join(problem.kind for problem in server.own_problems)
            row += [
                _styled(kinds, color="yellow") if kinds else _styled("up", color="green"),
                _uptime(server.uptime_ms),
                str(server.replicas),
                str(server.leading),
            ]
        rows.append(row)
    return _table(("server", "address", "rack", "state", ">uptime", ">replicas", ">leading"), rows)


def _group_table(groups: Iterable[Group]) -> list[str]:
    rows: list[list[_Cell | str]] = []
    for group in groups:
        replicas = [_replica_text(replica) for replica in group.replicas]
        rows.append(
            [
                group.name,
                str(group.leader) if group.leader >= 0 else _styled("none", color="red"),
                _number(group.term),
                _number(group.log_start_offset),
                _number(group.high_watermark),
                _number(group.end_offset),
                _Cell(
                    _GAP.join(cell.text for cell in replicas),
                    _GAP.join(cell.shown or cell.text for cell in replicas),
                ),
            ]
        )
    return _table(
        ("partition", ">leader", ">term", ">start", ">high watermark", ">end", "replicas"), rows
    )


def _replica_text(replica: Replica) -> _Cell:
    """Return a replica's cell: its server and its lag."""
    if replica.role == "unknown":
        return _styled(f"{replica.server}: no answer", color="red")
    if replica.role == "leader":
        return _styled(str(replica.server), bold=True)
    said = []
    if replica.role == "learner":
        said.append("joining")
    if replica.lag > 0 or replica.lag_entries > 0:
        lag = f"{replica.lag} records" if replica.lag > 0 else f"{replica.lag_entries} entries"
        said.append(f"{lag} behind")
    if replica.is_in_sync is False:
        said.append("not in sync")
    if said:
        return _styled(f"{replica.server}: {', '.join(said)}", color="yellow")
    return _Cell(str(replica.server))


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
