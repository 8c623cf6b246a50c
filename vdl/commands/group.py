"""`vdl group`: groups of consumers of any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import time
from typing import Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options
from vdl.commands.output import emit, fail, json_option, progress, say, table
from vdl.commands.resources import group_reset
from vdl.commands.resources.group_facts import (
    DEAD,
    GroupDescription,
    GroupListing,
    describe_groups,
    list_groups,
    positions,
)
from vdl.commands.resources.group_lag import GroupLag, lags
from vdl.commands.resources.topic_facts import fail_for, refusals
from vdl.commands.selection import is_pattern, select
from vdl.commands.terminal_text import visible_line
from vdl.commands.times import period_option, time_option

_REGEX = click.option("--regex", metavar="PATTERN", help="Groups whose whole name matches.")
_EXECUTE = click.option("--execute", is_flag=True, help="Do it; without it, only show the plan.")
_TYPES = ("classic", "consumer", "share", "streams")
_CLOCKS_DIFFER_MS = 1_000
"""Above this a record of a time to come is no inaccuracy: that of lag in seconds."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """List, describe and delete groups; show their lag; reset their offsets.

    Classic, consumer (KIP-848) and share groups (KIP-932). A NAME with *, ? or [ is a glob.
    """


def _chosen(cluster: Cluster, names: tuple[str, ...], regex: str | None) -> list[GroupListing]:
    with progress("asking the servers"):
        known = {one.group: one for one in list_groups(cluster)}
    if not names and regex is None:
        return list(known.values())
    return [known[name] for name in select(known, names, regex, kind="group")]


@group.command(name="list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_REGEX
@click.option("--type", "types", multiple=True, type=click.Choice(_TYPES),
              help="Only groups of this type.")  # fmt: skip
@click.option("--state", "states", multiple=True, metavar="STATE", help='Such as "Empty".')
@json_option
@cluster_options
def list_all(
    *,
    names: tuple[str, ...],
    regex: str | None,
    types: tuple[str, ...],
    states: tuple[str, ...],
    as_json: bool,
    cluster: Cluster,
) -> None:
    """List groups with their type and state."""
    wanted_states = {state.lower() for state in states}
    data = [
        {"group": one.group, "type": one.type, "state": one.state}
        for one in _chosen(cluster, names, regex)
        if (not types or one.type in types) and (not states or one.state.lower() in wanted_states)
    ]
    rows = [list(one.values()) for one in data]
    emit(as_json, {"groups": data}, lambda: table(("group", "type", "state"), rows))


@group.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@json_option
@cluster_options
def describe(*, names: tuple[str, ...], regex: str | None, as_json: bool, cluster: Cluster) -> None:
    """Show the members of groups with their partitions."""
    if not names and regex is None:
        raise click.UsageError("expected a NAME or --regex")
    found = describe_groups(cluster, _chosen(cluster, names, regex))
    data = [
        {
            "group": one.group,
            "type": one.type,
            "state": one.state,
            "coordinator": one.coordinator,
            "assignor": one.assignor,
            "members": [member.as_json() for member in one.members],
            "error": one.error,
        }
        for one in found
    ]
    emit(as_json, {"groups": data}, lambda: _show_described(found))
    fail_for({one.group: one.error for one in found if one.error is not None})


def _show_described(found: list[GroupDescription]) -> None:
    for number, one in enumerate(found):
        if number:
            say()
        where = "" if one.coordinator is None else f", coordinator {one.coordinator}"
        how = f", assignor {one.assignor}" if one.assignor else ""
        say(f"group {visible_line(one.group)} ({one.type}, {one.state}{where}{how})")
        rows = [
            [member.id, member.instance, member.client, member.host, _assigned(member.partitions)]
            for member in one.members
        ]
        if rows:
            table(("member", "instance", "client", "host", "partitions"), rows)


def _assigned(partitions: tuple[tuple[str, int], ...]) -> str:
    by_topic: dict[str, list[str]] = {}
    for name, partition in partitions:
        by_topic.setdefault(name, []).append(str(partition))
    return " ".join(f"{name}:{','.join(some)}" for name, some in by_topic.items())


@group.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_REGEX
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only of this topic.")
@click.option("--partitions", "shows_partitions", is_flag=True, help="Each partition.")
@click.option("--isolation", type=click.Choice(("read_uncommitted", "read_committed")),
              default="read_uncommitted", show_default=True,
              help="Which records count for the seconds.")  # fmt: skip
@json_option
@cluster_options
def lag(
    *,
    names: tuple[str, ...],
    regex: str | None,
    topics: tuple[str, ...],
    shows_partitions: bool,
    isolation: str,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Show how far groups are behind, in records and in seconds.

    Seconds are the age of the first record that is not committed, which is read. Without a NAME all
    groups are shown, one a line.
    """
    known = describe_groups(cluster, _chosen(cluster, names, regex))
    found = lags(
        cluster, [one for one in known if one.error is None], isolation=isolation, topics=topics
    )
    data = {"isolation": isolation, "groups": [one.as_json() for one in found]}
    is_whole = not (shows_partitions or topics) and (
        not names or regex is not None or any(map(is_pattern, names))
    )
    emit(as_json, data, lambda: (_show_sums if is_whole else _show_partitions)(found))
    _warn_of_times_ahead(found)
    fail_for({one.group: one.error for one in known if one.error is not None})


def _warn_of_times_ahead(found: list[GroupLag]) -> None:
    """Say which record is of a time to come: its 0 seconds would pass for no lag."""
    ahead_ms, where = max(
        (
            (part.record_time_ms - one.at_ms, f"{part.topic}-{part.partition}")
            for one in found
            for part in one.partitions
            if part.record_time_ms is not None
        ),
        default=(0, ""),
    )
    if ahead_ms > _CLOCKS_DIFFER_MS:
        say(
            f"{where}: the next record has a time {ahead_ms / 1_000:.0f} s ahead of this machine's "
            "clock. That clock or its producer's is wrong, and so are the seconds.",
            err=True,
        )


def _seconds(lag_seconds: float | None) -> str | None:
    return None if lag_seconds is None else f"{lag_seconds:.1f}"


def _show_sums(found: list[GroupLag]) -> None:
    rows = [
        [one.group.group, one.group.type, one.group.state, one.lag, _seconds(one.lag_seconds)]
        for one in found
    ]
    table(("group", "type", "state", ">lag", ">seconds"), rows)


def _show_partitions(found: list[GroupLag]) -> None:
    rows = [
        [
            one.group.group, part.topic, part.partition, part.offset, part.end_offset, part.lag,
            _seconds(part.lag_seconds), part.member,
        ]
        for one in found
        for part in one.partitions
    ]  # fmt: skip
    heads = (
        "group", "topic", ">partition", ">offset", ">end", ">lag", ">seconds", "member",
    )  # fmt: skip
    table(heads, rows)


@group.command()
@click.argument("name")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:0,1]",
              help="A topic, or some of its partitions; may be repeated.")  # fmt: skip
@click.option("--all-topics", is_flag=True, help="All partitions that it has offsets of.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option("--to-offset", type=click.IntRange(0), metavar="OFFSET", help="To an offset.")
@click.option("--to-datetime", "to_time", callback=time_option, metavar="TIME",
              help='To the first record of this time: "2026-11-30T08:00:00Z".')  # fmt: skip
@click.option("--by-duration", callback=period_option, metavar="PERIOD",
              help='To the first record of the last "90s", "2h", "7d".')  # fmt: skip
@click.option("--shift-by", type=int, metavar="RECORDS", help="On, or back if below zero.")
@_EXECUTE
@json_option
@cluster_options
def reset(
    *,
    name: str,
    topics: tuple[str, ...],
    all_topics: bool,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: int | None,
    by_duration: int | None,
    shift_by: int | None,
    execute: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Show new offsets for a group, and set them with --execute.

    A group with members is refused, as in Kafka: they would write their own offsets again.
    """
    if all_topics is bool(topics):
        raise click.UsageError("expected either --topic or --all-topics")
    if to_time is not None and by_duration is not None:
        raise click.UsageError("expected one target")
    if by_duration is not None:
        to_time = max(time.time_ns() // 1_000_000 - by_duration, 0)
    target = group_reset.Target(to_earliest, to_latest, to_offset, to_time, shift_by)
    if target.count != 1:
        raise click.UsageError(
            "expected one of --to-earliest, --to-latest, --to-offset, --to-datetime,"
            " --by-duration, --shift-by"
        )
    listings = [one for one in list_groups(cluster) if one.group == name]
    # A group that is not there yet can be given offsets, as with Kafka's tool.
    found = describe_groups(cluster, listings)[0] if listings else _new(name)
    if found.error is not None:
        fail(f"{name}: {found.error}")
    if found.is_active:
        fail(f"{name}: offsets can only be reset if the group is inactive; it is {found.state}")
    held = positions(cluster, name, found.type)
    gone = group_reset.without_partition(held, cluster.metadata().topics) if all_topics else []
    if all_topics:
        wanted = sorted(held.offsets.keys() - set(gone))
    else:
        wanted = group_reset.places(cluster, topics)
    moves = group_reset.plan(cluster, wanted, held, target)
    rows = [list(one.as_json().values()) for one in moves]
    heads = ("topic", ">partition", ">offset", ">new offset")
    refused = group_reset.execute(cluster, name, found.type, moves) if execute and moves else {}
    data = {
        "group": name,
        "executed": execute,
        "partitions": [one.as_json() for one in moves],
        "skipped": [{"topic": name, "partition": partition} for name, partition in gone],
        "errors": refused,
    }
    emit(as_json, data, lambda: table(heads, rows))
    if gone:
        places = " ".join(f"{name}-{partition}" for name, partition in gone)
        say(f"skipped, as there are no such partitions: {places}", err=True)
    _hint(execute=execute, as_json=as_json)
    fail_for(refused)


def _new(name: str) -> GroupDescription:
    return GroupDescription(name, "classic", DEAD)


def _hint(*, execute: bool, as_json: bool) -> None:
    if not execute and not as_json:
        click.echo("Nothing was changed; --execute does it.", err=True)


@group.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@_EXECUTE
@json_option
@cluster_options
def delete(
    *,
    names: tuple[str, ...],
    regex: str | None,
    execute: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Show groups to delete with their offsets, and delete them with --execute.

    A group with members is refused by the servers.
    """
    if not names and regex is None:
        raise click.UsageError("expected a NAME or --regex")
    chosen = _chosen(cluster, names, regex)
    refused: dict[str, str] = {}
    if execute:
        with progress("deleting"):
            asked = [one.group for one in chosen]
            admin = cluster.admin()
            futures = admin.delete_consumer_groups(asked, request_timeout=cluster.timeout_seconds)
            refused = refusals(cluster, futures)
    groups: list[dict[str, Any]] = [
        {"group": one.group, "type": one.type, "state": one.state} for one in chosen
    ]
    rows = [list(one.values()) for one in groups]
    data = {"executed": execute, "groups": groups, "errors": refused}
    emit(as_json, data, lambda: table(("group", "type", "state"), rows))
    _hint(execute=execute, as_json=as_json)
    fail_for(refused)
