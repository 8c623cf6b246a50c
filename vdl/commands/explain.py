"""`vdl explain`: why something is as it is, in words with the next step, and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from vdl.commands.checks.cluster_facts import collect_facts
from vdl.commands.cluster.bootstrap_option import addresses, client_settings
from vdl.commands.output import emit, json_option
from vdl.commands.terminal_text import visible_text
from vdl.kafka.client import Unreachable
from vdl.kafka.security.client_settings import ClientSettingsError
from vdl.server.explain.facts import clock_text
from vdl.server.explain.questions import About, Question
from vdl.server.explain.questions import explain as answer_to

ALSO_MAX = 5
"""Other findings that are shown to people; `--json` has all of them."""
_PARTITION = click.IntRange(min=0)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bootstrap", default="127.0.0.1:9092", show_default=True,
    help="Kafka addresses of one or more servers, separated by commas.",
)  # fmt: skip
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE",
    help=(
        "File with client properties for TLS and login, such as client.properties of `vdl up "
        "--secure`."
    ),
)  # fmt: skip
@click.pass_context
def explain(context: click.Context, *, bootstrap: str, config: Path | None) -> None:
    """Say why something is as it is: the cause with its time and server, and the next step.

    All servers that answer are asked for their state and their latest events, which they keep in
    memory. Exit code 1 if something is wrong.
    """
    context.obj = bootstrap, config


def _question(name: str) -> Callable[[Callable[..., Question]], click.Command]:
    """Make a subcommand of a function that returns its question."""

    def made(function: Callable[..., Question]) -> click.Command:
        @click.pass_context
        def run(context: click.Context, /, *, as_json: bool, **values: Any) -> int:
            bootstrap, config = context.obj
            return _run(function(**values), bootstrap, config, as_json=as_json)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        return explain.command(name=name)(json_option(run))

    return made


def _run(question: Question, bootstrap: str, config: Path | None, *, as_json: bool) -> int:
    try:
        facts = collect_facts(
            addresses(bootstrap), client_settings(config),
            topic=question.topic, group=question.group,
        )  # fmt: skip
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
    return "\n".join(visible_text(line).replace("\n", "\\x0a") for line in lines_of(found))


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
