"""`vdl explain`: why something is as it is, in words with the next step, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vdl.commands.checks.cluster_facts import collect_facts
from vdl.commands.cluster.admin_requests import admin_settings, connection_parameters
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.connection import Connection, resolve
from vdl.commands.output import emit, json_option, progress
from vdl.commands.terminal_text import visible_line
from vdl.kafka.client import Unreachable
from vdl.kafka.security.client_settings import ClientSettingsError
from vdl.server.explain.facts import clock_text
from vdl.server.explain.questions import About, Question
from vdl.server.explain.questions import explain as answer_to

ALSO_MAX = 5
"""Other findings that are shown to people; `--json` has all of them."""
_PARTITION = click.IntRange(min=0)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@connection_parameters
@click.pass_context
def explain(context: click.Context, /, **where: Any) -> None:
    """Say why something is as it is: the cause with its time and server, and the next step.

    All servers that answer are asked for their state and their latest events, which they keep in
    memory. Exit code 1 if something is wrong.
    """
    context.obj = where


def _question(name: str) -> Callable[[Callable[..., Question]], click.Command]:
    """Make a subcommand of a function that returns its question. Where to connect may be said
    before its name and behind it; an option behind it wins."""

    def made(function: Callable[..., Question]) -> click.Command:
        @click.pass_context
        def run(
            context: click.Context,
            /,
            *,
            profile: str | None,
            bootstrap: str | None,
            config: Path | None,
            timeout: float | None,
            as_json: bool,
            **values: Any,
        ) -> int:
            where: dict[str, Any] = {"profile": profile, "bootstrap": bootstrap, "config": config}
            if all(text is None for text in where.values()):
                where |= {name: context.obj[name] for name in where}
            where["timeout"] = context.obj["timeout"] if timeout is None else timeout
            return _run(function(**values), resolve(**where), as_json=as_json)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return explain.command(name=name)(json_option(connection_parameters(run)))

    return made


def _run(question: Question, where: Connection, *, as_json: bool) -> int:
    try:
        settings = admin_settings(where)
        with progress("asking the servers"):
            facts = collect_facts(
                addresses(where.bootstrap),
                settings,
                topic=question.topic,
                group=question.group,
                timeout_seconds=where.timeout_seconds,
            )
    except (Unreachable, ClientSettingsError) as error:
        raise click.ClickException(str(error)) from error
    found = answer_to(question, facts)
    emit(as_json, found, lambda: click.echo(shown(found)))
    return 0 if found["ok"] else 1


@_question("partition")
@click.argument("topic")
@click.argument("number", metavar="PARTITION", type=_PARTITION)
def partition(*, topic: str, number: int) -> Question:
    """Say why a partition takes no writes."""
    return Question(About.PARTITION, topic=topic, partition=number)


@_question("leader")
@click.argument("topic")
@click.argument("number", metavar="[PARTITION]", type=_PARTITION, default=0)
def leader(*, topic: str, number: int) -> Question:
    """Say why the leader of a partition changed. TOPIC may be "catalog", or "coordinator"."""
    return Question(About.LEADER, topic=topic, partition=number)


@_question("group")
@click.argument("name")
def group(*, name: str) -> Question:
    """Say why a consumer group rebalances."""
    return Question(About.GROUP, group=name)


@_question("lag")
@click.argument("name", metavar="GROUP")
@click.argument("topic", required=False, default="")
def lag(*, name: str, topic: str) -> Question:
    """Say why a consumer group is behind, in all topics or in one."""
    return Question(About.LAG, group=name, topic=topic)


@_question("slow")
@click.option("--api", default="", metavar="NAME", help='Only requests of it, such as "Produce".')
def slow(*, api: str) -> Question:
    """Say why requests are slow."""
    return Question(About.SLOW, api=api)


@_question("server")
@click.argument("number", metavar="ID", type=click.IntRange(min=1))
def server(*, number: int) -> Question:
    """Say what is wrong with a server."""
    return Question(About.SERVER, server=number)


@_question("cluster")
def cluster() -> Question:
    """Say what is wrong with the cluster."""
    return Question(About.CLUSTER)


def shown(found: dict[str, Any]) -> str:
    """Return an answer as text for people. A text of a client can neither control a terminal nor
    look like a line of the answer."""
    return "\n".join(visible_line(line) for line in lines_of(found))


def lines_of(found: dict[str, Any]) -> list[str]:
    """Return an answer as lines for people. Texts may have any character."""
    lines = [found["summary"], f"  cause: {found['cause']}", f"  next:  {found['next']}"]
    lines.append(f"  page:  {found['page']}")
    if found["evidence"]:
        lines.append("  seen:")
        lines += [_seen(one) for one in found["evidence"]]
    also = [one for one in found["also"] if one["wrong"] or found["ok"]]
    for one in also[:ALSO_MAX]:
        lines.append(f"also: {one['summary']} {one['cause']}")
    if len(also) > ALSO_MAX:
        lines.append(f"also: {len(also) - ALSO_MAX} more; --json has all")
    lines += [f"not known: {text}" for text in found["unknown"]]
    return lines


def _seen(one: dict[str, Any]) -> str:
    when = clock_text(one["first_ms"])
    if one["count"] > 1:
        when += f" to {clock_text(one['last_ms'])}, {one['count']} times"
    return f"    {when} server {one['server']}: {one['text']}"
