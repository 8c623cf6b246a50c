"""`vdl config`: settings of topics, brokers and groups, and what a setting means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options
from vdl.commands.output import emit, fail, json_option, progress, say, table
from vdl.commands.resources.broker_defaults import alter_all_brokers, settings_of_all_brokers
from vdl.commands.resources.config_layers import Explained, explain_in_cluster, explain_server_key
from vdl.commands.resources.topic_facts import DEFAULT, alter_settings, fail_for, settings
from vdl.commands.selection import key_values

_KINDS = ("topic", "broker", "group")
ALL = "all"
"""NAME of what all brokers inherit from. Kafka's tools call it the default entity."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Read and change settings of topics, brokers and groups.

    Of brokers, NAME is an id, or "all": what all of them inherit from.
    """


def _resource(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.argument("name")(function)
    return click.argument("kind", type=click.Choice(_KINDS))(function)


def _check_name(cluster: Cluster, kind: str, name: str) -> None:
    """Raise click.UsageError for what is no broker, click.ClickException for one that is not there:
    a request to it would wait for it in vain."""
    if kind != "broker" or name == ALL:
        return
    if not name.isdecimal():
        raise click.UsageError(f'{name!r}: a broker is an id, or "{ALL}"')
    asked = cluster.admin().describe_cluster(request_timeout=cluster.timeout_seconds)
    present = sorted(node.id for node in cluster.result(asked).nodes)
    if (name.lstrip("0") or "0") not in map(str, present):
        told = ", ".join(map(str, present))
        fail(f"broker {name} is not there or does not answer; those that do: {told}")


@config.command()
@_resource
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--all", "show_all", is_flag=True, help="Settings with their default value, too.")
@json_option
@cluster_options
def get(
    *, kind: str, name: str, keys: tuple[str, ...], show_all: bool, as_json: bool, cluster: Cluster
) -> None:
    """Show settings and their sources: those that differ from the default, or some KEYs."""
    _check_name(cluster, kind, name)
    some = (
        settings_of_all_brokers(cluster)
        if kind == "broker" and name == ALL
        else settings(cluster, kind.upper(), [name])[name]
    )
    found = {one.name: one for one in some}
    if missing := sorted(set(keys) - set(found)):
        fail(f"{missing[0]}: {kind} {name} has no such setting")
    wanted = keys or [key for key in sorted(found) if show_all or found[key].source != DEFAULT]
    data = {"kind": kind, "name": name, "configs": [found[key].as_json() for key in wanted]}
    rows = [[key, found[key].value, found[key].source] for key in wanted]
    emit(as_json, data, lambda: table(("setting", "value", "source"), rows))


_VALIDATE = click.option("--validate-only", is_flag=True, help="Only ask whether it is accepted.")


@config.command(name="set")
@_resource
@click.argument("values", nargs=-1, required=True, metavar="KEY=VALUE...")
@_VALIDATE
@json_option
@cluster_options
def set_some(
    *,
    kind: str,
    name: str,
    values: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Set settings. Others stay as they are."""
    wanted: dict[str, str | None] = {**key_values(values)}
    _alter(cluster, kind, name, wanted, validate_only=validate_only, as_json=as_json)


@config.command()
@_resource
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_VALIDATE
@json_option
@cluster_options
def unset(
    *,
    kind: str,
    name: str,
    keys: tuple[str, ...],
    validate_only: bool,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Return settings to what they inherit."""
    wanted = dict.fromkeys(keys)
    _alter(cluster, kind, name, wanted, validate_only=validate_only, as_json=as_json)


def _alter(
    cluster: Cluster,
    kind: str,
    name: str,
    wanted: dict[str, str | None],
    *,
    validate_only: bool,
    as_json: bool,
) -> None:
    _check_name(cluster, kind, name)
    if kind == "broker" and name == ALL:
        refused = alter_all_brokers(cluster, wanted, validate_only=validate_only)
    else:
        changes = {name: wanted}
        refused = alter_settings(cluster, kind.upper(), changes, validate_only=validate_only)
    data = {
        "kind": kind,
        "name": name,
        "validate_only": validate_only,
        "changes": [{"key": key, "to": value} for key, value in wanted.items()],
        "errors": refused,
    }
    emit(as_json, data, lambda: None)
    fail_for(refused)


@config.command()
@click.argument("key")
@click.option("--topic", metavar="NAME", help="Its value for this topic.")
@click.option("--broker", type=int, metavar="ID", help="Its value on this server.")
@click.option("--group", metavar="NAME", help="Its value for this group.")
@click.option("--file", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              metavar="FILE", help="Its value in this file of `vdl serve`.")  # fmt: skip
@json_option
@cluster_options
def explain(
    *,
    key: str,
    topic: str | None,
    broker: int | None,
    group: str | None,
    file: Path | None,
    as_json: bool,
    cluster: Cluster,
) -> None:
    """Explain a setting: meaning, default, range, and where its value comes from.

    KEY is a setting of a topic, a broker or a group, as the cluster describes it, or a key of the
    file of `vdl serve`, such as raft.election_timeout.
    """
    found: list[Explained] = []
    own = explain_server_key(key, file)
    if own is not None:
        found.append(own)
    is_of_the_file_alone = own is not None and own.key == key
    if not is_of_the_file_alone or topic is not None or broker is not None or group is not None:
        with progress("asking the servers"):
            found += explain_in_cluster(cluster, key, topic=topic, broker=broker, group=group)
    if not found:
        fail(f"{key}: no such setting")
    data = {"key": key, "found": [one.as_json() for one in found]}
    emit(as_json, data, lambda: _show(found))


def _show(found: list[Explained]) -> None:
    for number, one in enumerate(found):
        if number:
            say()
        where = {"file": "a key of the file of `vdl serve`"}.get(one.kind, f"a {one.kind} setting")
        say(f"{one.key}: {where}" + (f", here of {one.name}" if one.name else ""))
        if one.meaning:
            say(click.wrap_text(one.meaning, 100, "  ", "  "))
        rows = [
            [label, value]
            for label, value in (
                ("type", one.type), ("default", one.default), ("range", one.range),
                ("value", one.value), ("source", one.source), ("set with", one.set_with),
            )
            if value is not None
        ]  # fmt: skip
        table(("", ""), rows)
        if len(one.layers) > 1:
            table(
                ("source", "setting", "value"),
                [[layer.source, layer.name, layer.value] for layer in one.layers],
            )
