"""`vdl topic`: topics of any cluster that speaks Kafka's protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options
from vdl.commands.output import emit, json_option, progress, say, table
from vdl.commands.resources import topic_plans
from vdl.commands.resources.topic_facts import (
    DEFAULT,
    descriptions,
    earliest_and_latest,
    fail_for,
    refusals,
    replica_bytes,
    settings,
    topic_names,
)
from vdl.commands.selection import consent, is_pattern, key_values, select
from vdl.commands.times import time_option
from vdl.commands.topics_to_change import topics_to_change

if TYPE_CHECKING:
    from confluent_kafka.admin import TopicDescription

_REGEX = click.option("--regex", metavar="PATTERN", help="Topics whose whole name matches.")
_INTERNAL = click.option(
    "--internal", is_flag=True, help="A pattern takes internal topics (__...), too."
)
_YES = click.option("--yes", is_flag=True, help="Do not ask.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def topic() -> None:
    """List, create, describe, alter and delete topics; delete records.

    A NAME with *, ? or [ is a glob. What it selects is shown before anything changes.
    """


@topic.command(name="list")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@_REGEX
@click.option("--internal", is_flag=True, help="Internal topics, too.")
@json_option
@cluster_options
def list_topics(
    *, names: tuple[str, ...], regex: str | None, internal: bool, as_json: bool, cluster: Cluster
) -> None:
    """List topics with their numbers of partitions and replicas."""
    with progress("asking the servers"):
        known = topic_names(cluster)
        wanted = select(known, names, regex, kind="topic") if names or regex else known
        found = descriptions(cluster, wanted)
    data = [
        {
            "name": name,
            "id": str(one.topic_id),
            "internal": one.is_internal,
            "partitions": len(one.partitions),
            "replication_factor": max((len(p.replicas) for p in one.partitions), default=0),
            "offline": sum(_leader(p) is None for p in one.partitions),
            "under_replicated": sum(len(p.isr) < len(p.replicas) for p in one.partitions),
        }
        for name, one in found.items()
        if internal or names or not one.is_internal
    ]
    columns = ("name", "partitions", "replication_factor", "offline", "under_replicated")
    heads = ("topic", ">partitions", ">replicas", ">offline", ">under-replicated")
    rows = [[one[key] for key in columns] for one in data]
    emit(as_json, {"topics": data}, lambda: table(heads, rows))


@topic.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--partitions", "-p", type=click.IntRange(1), help="As the cluster's default.")
@click.option("--replication-factor", "-r", "factor", type=click.IntRange(1),
              help="Replicas of each partition; as the cluster's default.")  # fmt: skip
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="A setting.")
@click.option("--if-not-exists", is_flag=True, help="A topic that is there is no failure.")
@click.option("--validate-only", is_flag=True, help="Only ask whether it could be created.")
@json_option
@cluster_options
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    factor: int | None,
    values: tuple[str, ...],
    if_not_exists: bool,
    validate_only: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Create topics."""
    from confluent_kafka.admin import NewTopic

    configs = key_values(values)
    new = [
        NewTopic(
            name,
            num_partitions=partitions or -1,
            replication_factor=factor or -1,
            config=configs,
        )
        for name in dict.fromkeys(names)
    ]
    with progress("creating"):
        futures = cluster.admin().create_topics(
            new, validate_only=validate_only, request_timeout=cluster.timeout_seconds
        )
        refused = refusals(cluster, futures)
    existing = {name for name, why in refused.items() if why.startswith("TOPIC_ALREADY_EXISTS")}
    if if_not_exists:
        refused = {name: why for name, why in refused.items() if name not in existing}
    data = {
        "validate_only": validate_only,
        "topics": [
            {
                "name": one.topic,
                "created": one.topic not in refused and one.topic not in existing,
                "error": refused.get(one.topic),
            }
            for one in new
        ],
    }
    done = [one.topic for one in new if one.topic not in refused and one.topic not in existing]
    verb = "could be created" if validate_only else "created"
    emit(
        as_json,
        data,
        lambda: say("\n".join(f"{name} {verb}" for name in done), nl=bool(done)),
    )
    fail_for(refused)


@topic.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@click.option("--all-configs", is_flag=True, help="Settings with their default value, too.")
@json_option
@cluster_options
def describe(
    *,
    names: tuple[str, ...],
    regex: str | None,
    all_configs: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Show partitions with leaders, replicas, offsets and bytes; settings that differ."""
    if not names and regex is None:
        raise click.UsageError("expected a NAME or --regex")
    with progress("asking the servers"):
        wanted = select(topic_names(cluster), names, regex, kind="topic")
        found = descriptions(cluster, wanted)
        data = _described(cluster, found, all_configs=all_configs)
    emit(as_json, {"topics": data}, lambda: _show_described(data))


def _described(
    cluster: Cluster, found: dict[str, TopicDescription], *, all_configs: bool
) -> list[dict[str, Any]]:
    places = [(name, one.id) for name, topic in found.items() for one in topic.partitions]
    starts, ends = earliest_and_latest(cluster, places)
    sizes = replica_bytes(cluster, found.values())
    configs = settings(cluster, "TOPIC", list(found))
    return [
        {
            "name": name,
            "id": str(topic.topic_id),
            "internal": topic.is_internal,
            "partitions": [
                {
                    "partition": one.id,
                    "leader": _leader(one),
                    "replicas": [node.id for node in one.replicas],
                    "isr": [node.id for node in one.isr],
                    "start_offset": starts.get((name, one.id)),
                    "end_offset": ends.get((name, one.id)),
                    "bytes": sizes.get((name, one.id), {}).get(
                        -1 if one.leader is None else one.leader.id
                    ),
                    "replica_bytes": {
                        str(server): size
                        for server, size in sorted(sizes.get((name, one.id), {}).items())
                    },
                }
                for one in topic.partitions
            ],
            "configs": [
                one.as_json()
                for one in sorted(configs[name], key=lambda one: one.name)
                if all_configs or one.source != DEFAULT
            ],
        }
        for name, topic in found.items()
    ]


def _leader(partition: Any) -> int | None:
    """Return the leader's id; None if there is none."""
    node = partition.leader
    return None if node is None or node.id < 0 else int(node.id)


def _show_described(data: list[dict[str, Any]]) -> None:
    for number, one in enumerate(data):
        if number:
            say()
        kind = ", internal" if one["internal"] else ""
        say(f"topic {one['name']} (id {one['id']}{kind})")
        heads = (
            ">partition", ">leader", "replicas", "in sync", ">start", ">end", ">records", ">bytes",
        )  # fmt: skip
        table(heads, [_partition_row(partition) for partition in one["partitions"]])
        if one["configs"]:
            say()
            rows = [[c["name"], c["value"], c["source"]] for c in one["configs"]]
            table(("setting", "value", "source"), rows)


def _partition_row(one: dict[str, Any]) -> list[object]:
    start, end = one["start_offset"], one["end_offset"]
    return [
        one["partition"],
        one["leader"],
        ",".join(map(str, one["replicas"])),
        ",".join(map(str, one["isr"])),
        start,
        end,
        None if start is None or end is None else end - start,
        one["bytes"],
    ]


@topic.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@_INTERNAL
@click.option("--set", "values", multiple=True, metavar="KEY=VALUE", help="Set a setting.")
@click.option("--unset", multiple=True, metavar="KEY", help="Return it to the default.")
@click.option("--partitions", "-p", type=click.IntRange(1), metavar="N",
              help="Number of all partitions; it can only grow.")  # fmt: skip
@_YES
@json_option
@cluster_options
def alter(
    *,
    names: tuple[str, ...],
    regex: str | None,
    internal: bool,
    values: tuple[str, ...],
    unset: tuple[str, ...],
    partitions: int | None,
    yes: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Change settings and the number of partitions. Of a pattern the plan is shown first.

    With --json the plan alone is printed, unless --yes is there.
    """
    wanted: dict[str, str | None] = {**key_values(values), **dict.fromkeys(unset)}
    if not wanted and partitions is None:
        raise click.UsageError("expected --set, --unset or --partitions")
    chosen = topics_to_change(cluster, names, regex, internal=internal)
    with progress("asking the servers"):
        changes = topic_plans.changes(cluster, chosen, wanted, partitions)
    # Topics that are named one by one need no question. --json alone prints plans everywhere.
    is_plain = regex is None and not any(map(is_pattern, names)) and not as_json

    def apply() -> dict[str, str]:
        return topic_plans.apply_changes(cluster, chosen, wanted, partitions)

    rows = [
        [one["topic"], one["key"], one["from"], "(default)" if one["to"] is None else one["to"]]
        for one in changes
    ]
    _planned(
        {"changes": changes},
        lambda: table(("topic", "what", "now", "then"), rows),
        apply,
        question=f"Change {len(chosen)} topics?",
        is_consented=yes or is_plain,
        as_json=as_json,
    )


@topic.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@_INTERNAL
@_YES
@json_option
@cluster_options
def delete(
    *,
    names: tuple[str, ...],
    regex: str | None,
    internal: bool,
    yes: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Delete topics with all their records. Asks, unless --yes is there."""
    chosen = topics_to_change(cluster, names, regex, internal=internal)
    with progress("asking the servers"):
        plan = topic_plans.deletions(cluster, chosen)

    def apply() -> dict[str, str]:
        with progress("deleting"):
            admin = cluster.admin()
            return refusals(
                cluster, admin.delete_topics(chosen, request_timeout=cluster.timeout_seconds)
            )

    _planned(
        {"topics": plan},
        lambda: table(
            ("topic", ">partitions", ">records"),
            [[one["name"], one["partitions"], _known(one["records"], "not known")] for one in plan],
        ),
        apply,
        question=f"Delete {len(chosen)} topics with their records?",
        is_consented=yes,
        as_json=as_json,
    )


@topic.command(name="records-delete")
@click.argument("names", nargs=-1, metavar="NAME...")
@_REGEX
@_INTERNAL
@click.option("--partition", "partitions", multiple=True, type=click.IntRange(0),
              help="Only of this one; may be repeated.")  # fmt: skip
@click.option("--before-offset", type=click.IntRange(0), help="Records below this offset.")
@click.option("--before-time", callback=time_option, metavar="TIME",
              help='Records before the first of this time: "2026-11-30T08:00:00Z".')  # fmt: skip
@click.option("--to-end", is_flag=True, help="All records that are there now.")
@_YES
@json_option
@cluster_options
def records_delete(
    *,
    names: tuple[str, ...],
    regex: str | None,
    internal: bool,
    partitions: tuple[int, ...],
    before_offset: int | None,
    before_time: int | None,
    to_end: bool,
    yes: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Delete the oldest records of partitions. Asks, unless --yes is there."""
    if [before_offset is not None, before_time is not None, to_end].count(True) != 1:
        raise click.UsageError("expected one of --before-offset, --before-time, --to-end")
    chosen = topics_to_change(cluster, names, regex, internal=internal)
    with progress("asking the servers"):
        plan = topic_plans.truncations(cluster, chosen, partitions, before_offset, before_time)
    rows = [list(one.values()) for one in plan]
    heads = ("topic", ">partition", ">start", ">end", ">new start", ">records")
    _planned(
        {"partitions": plan},
        lambda: table(heads, rows),
        lambda: topic_plans.truncate(cluster, plan),
        question=f"Delete {sum(one['records'] or 0 for one in plan)} records?",
        is_consented=yes,
        as_json=as_json,
    )


def _known(number: int | None, otherwise: str) -> object:
    return otherwise if number is None else number


def _planned(
    plan: dict[str, Any],
    show: Callable[[], object],
    apply: Callable[[], dict[str, str]],
    *,
    question: str,
    is_consented: bool,
    as_json: bool,
) -> None:
    """Show the plan, ask, do it. With --json the plan alone is shown unless there is consent."""
    if as_json:
        refused = apply() if is_consented else {}
        emit(True, {"applied": is_consented, **plan, "errors": refused}, show)
    else:
        show()
        consent(question, is_given=is_consented)
        refused = apply()
    fail_for(refused)
