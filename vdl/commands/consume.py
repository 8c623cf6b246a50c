"""`vdl consume`: the records of topics, from any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options
from vdl.commands.interrupts import Interrupts
from vdl.commands.output import FAILED, fail, say
from vdl.commands.records.partition_ranges import (
    PartitionRange,
    chosen_partitions,
    partition_numbers,
)
from vdl.commands.records.partition_ranges import ranges as ranges_of
from vdl.commands.records.read_point import START, Kind, Point, parse_point
from vdl.commands.records.record_decoding import PLAIN_FORMS, REGISTERED_FORMS, Form, plain_form
from vdl.commands.records.record_filter import BadFilter, Filter, compile_grep, json_or_text
from vdl.commands.records.record_input import unescaped
from vdl.commands.records.record_json import Received
from vdl.commands.records.record_output import Problems, RecordFile, json_writer, text_writer
from vdl.commands.records.record_reader import PROPERTIES, RecordReader
from vdl.commands.records.record_template import BadTemplate, Write
from vdl.commands.resources.group_facts import is_left_out

COUNT_MAX = 1 << 62
_FORMS = click.Choice([*PLAIN_FORMS, *REGISTERED_FORMS])
_NAMED_GROUP = "--group reads from the group's offsets; --from may only be start or end"


class PointOption(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A point of `read_point.py`."""

    name = "POINT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Point:
        if isinstance(value, Point):
            return value
        try:
            return parse_point(value, now_ms=time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records that are wanted: of which partitions, from where to where."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    start: Point
    until: Point | None
    follow: bool
    committed: bool
    group: str | None
    stall_seconds: float


EXAMPLES = """\b
Examples:
  vdl consume orders --from '15m ago' --filter "value.user == 'x'"
  vdl consume orders --follow --format '%p %o %k %v\\n'
  vdl consume orders --json | vdl produce copy --json-lines
"""


@click.command(epilog=EXAMPLES)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@cluster_options
@click.option("--from", "start", type=PointOption(), help="Where to begin; the start by default.")
@click.option("--until", type=PointOption(), help="Where to stop (exclusive).")
@click.option("--count", "-n", type=click.IntRange(1, COUNT_MAX), metavar="N",
              help="Stop after N records that are printed.")  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Wait for new records at the end.")
@click.option("--partition", "-p", "partitions", type=click.IntRange(0, (1 << 31) - 1),
              multiple=True, help="Only this partition; may be repeated.")  # fmt: skip
@click.option("--group", "-g", metavar="GROUP", help="Read as a member, and commit offsets.")
@click.option("--format", "template", metavar="TEMPLATE",
              help=r"As kcat's -f: %t %p %o %k %v %h %T %S %K; default '%v\n'.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for `vdl produce`.")
@click.option("--raw", is_flag=True, help="Exact bytes also on a terminal; no line end is added.")
@click.option("--null", "null_text", default="", metavar="TEXT", help="Shown for null.")
@click.option("--key", "key_form", type=_FORMS, default="string", help="Form of keys.")
@click.option("--value", "value_form", type=_FORMS, help="Form of values; string by default.")
@click.option("--schema-registry", metavar="URL", envvar="VDL_SCHEMA_REGISTRY",
              help="Registry with the schemas of avro, protobuf, json-schema.")  # fmt: skip
@click.option("--filter", "expression", metavar="JMESPATH",
              help="Only records for which it is true: \"value.user == 'x'\".")  # fmt: skip
@click.option("--grep", metavar="RE2", help="Only records whose key or value has a match.")
@click.option("--isolation", type=click.Choice(["read_uncommitted", "read_committed"]),
              default="read_committed", show_default=True)  # fmt: skip
@click.option("--timeout", "stall_seconds", type=click.FloatRange(min=1), default=60.0,
              show_default=True, metavar="SECONDS",
              help="Fail if nothing arrives for this long.")  # fmt: skip
def consume(
    *,
    cluster: Cluster,
    topics: tuple[str, ...],
    start: Point | None,
    until: Point | None,
    count: int | None,
    follow: bool,
    partitions: tuple[int, ...],
    group: str | None,
    template: str | None,
    as_json: bool,
    raw: bool,
    null_text: str,
    key_form: str,
    value_form: str | None,
    schema_registry: str | None,
    expression: str | None,
    grep: str | None,
    isolation: str,
    stall_seconds: float,
) -> int:
    """Print records.

    Without --follow it stops at the ends of the partitions as they were when it began. A POINT is
    start, end, an offset, -N (N before the end of each partition), @SECONDS or @MILLISECONDS since
    1970, an ISO time, or a duration such as '15m ago'.
    """
    if group is not None and (until or partitions or (start and start.kind not in _GROUP_STARTS)):
        raise click.UsageError(f"{_NAMED_GROUP}; --until and --partition need no group")
    if as_json and (template is not None or raw):
        raise click.UsageError("--json excludes --format and --raw")
    wanted = Wanted(
        tuple(dict.fromkeys(topics)), partitions, start or START, until, follow,
        isolation == "read_committed", group, stall_seconds,
    )  # fmt: skip
    problems = Problems()
    forms = {
        "key": form_of(key_form, "key", schema_registry),
        "value": form_of(value_form or "string", "value", schema_registry),
    }
    for_terminal = sys.stdout.isatty() and not raw
    try:
        if as_json:
            write = json_writer(**forms, for_terminal=for_terminal, problems=problems)
        else:
            write = text_writer(
                template if template is not None else "%v" if raw else r"%v\n",
                **forms, null=unescaped(null_text), for_terminal=for_terminal, problems=problems,
            )  # fmt: skip
        keeps = _conditions(expression, grep, key=forms["key"] if key_form != "string" else None,
                            value=forms["value"] if value_form else None)  # fmt: skip
    except BadFilter as error:
        raise click.UsageError(f"--filter or --grep: {error}") from None
    except (BadTemplate, ValueError) as error:
        raise click.UsageError(f"--format or --null: {error}") from None
    cluster.outage.is_told = True
    with Interrupts() as interrupts:
        file = RecordFile(sys.stdout.buffer, interrupts=interrupts)
        printing = Printing(file, write, keeps, COUNT_MAX if count is None else count)
        try:
            _read(cluster, wanted, printing, interrupts)
        except BrokenPipeError:
            # The reader of the pipe has what it wants. Nothing may be written at exit either.
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            _report(problems, keeps)
            fail(f"standard output: {error.strerror}")
        except KeyboardInterrupt:
            _report(problems, keeps)
            return interrupts.code
        except click.ClickException:
            _report(problems, keeps)
            raise
        return _report(problems, keeps)


_GROUP_STARTS = (Kind.START, Kind.END)


class Conditions:
    """The conditions that a record must meet to be printed."""

    def __init__(self) -> None:
        self.all: list[Callable[[Received], bool]] = []
        self.filter: Filter | None = None


class Printing:
    """Prints the records that meet the conditions, up to a number."""

    def __init__(self, file: RecordFile, write: Write, keeps: Conditions, count: int) -> None:
        self.file = file
        self._write = write
        self._conditions = keeps.all
        self._left = count

    def receive(self, record: Received) -> bool:
        """Print a record, or not. Return False if no more are wanted."""
        if all(keeps(record) for keeps in self._conditions):
            self.file.write(self._write(record))
            self._left -= 1
        return self._left > 0


def _conditions(
    expression: str | None, grep: str | None, *, key: Form | None, value: Form | None
) -> Conditions:
    """Return the conditions. A filter sees values in their form; without one, as JSON if they are
    JSON. Raises BadFilter."""
    found = Conditions()
    if grep is not None:
        found.all.append(compile_grep(grep))
    if expression is not None:
        look = [
            json_or_text if form is None else lambda data, form=form: form.field(data)[1]
            for form in (key, value)
        ]
        found.filter = Filter(expression, key=look[0], value=look[1])
        found.all.append(found.filter.keeps)
    return found


def form_of(name: str, field: str, schema_registry: str | None) -> Form:
    """Return the form of keys or values. Raises click.UsageError."""
    if name in PLAIN_FORMS:
        return plain_form(name)
    if schema_registry is None:
        raise click.UsageError(f"--{field} {name} needs --schema-registry")
    from vdl.commands.records.registered_forms import registered_form

    return registered_form(name, schema_registry)


def _read(cluster: Cluster, wanted: Wanted, printing: Printing, interrupts: Interrupts) -> None:
    """Read what is wanted. Raises click.ClickException, BrokenPipeError, KeyboardInterrupt."""
    properties = {
        **PROPERTIES,
        "isolation.level": "read_committed" if wanted.committed else "read_uncommitted",
        # A consumer must have one, also if it never joins.
        "group.id": wanted.group or f"vdl-consume-{os.getpid()}",
        "auto.offset.reset": "latest" if wanted.start.kind is Kind.END else "earliest",
    }
    ranges: list[PartitionRange] = []
    if wanted.group is None:
        places = chosen_partitions(cluster, wanted.topics, wanted.partitions)
        ranges = ranges_of(
            cluster, places, start=wanted.start, until=wanted.until, follow=wanted.follow,
            committed=wanted.committed,
        )  # fmt: skip
        _note_ranges(ranges, wanted.start)
    else:
        partition_numbers(cluster, wanted.topics)  # fails for one that does not exist
    # A property that is given wins over the command's own.
    consumer = cluster.consumer(**{**properties, **cluster.extra})
    reader = RecordReader(
        cluster, consumer,
        received=printing.receive, flush=printing.file.flush,
        flush_at_once=printing.file.flush_at_once, interrupts=interrupts,
        is_left_out=lambda one: is_left_out(cluster, one, wanted.group or ""),
        is_stopped=lambda: printing.file.is_closed, stall_seconds=wanted.stall_seconds,
    )  # fmt: skip
    try:
        if wanted.group is None:
            reader.read_ranges(ranges)
        else:
            reader.read_as_member(
                list(wanted.topics), follow=wanted.follow, committed=wanted.committed
            )
    finally:
        consumer.close()


def _note_ranges(ranges: list[PartitionRange], start: Point) -> None:
    """Tell of a start that the partitions do not have."""
    if start.kind is not Kind.OFFSET:
        return
    for one in ranges:
        if start.number > one.high:
            say(f"{one.topic}[{one.partition}] ends at {one.high}", err=True)
        elif start.number < one.low:
            say(f"{one.topic}[{one.partition}] begins at {one.low}", err=True)


def _report(problems: Problems, keeps: Conditions) -> int:
    """Tell what could not be decoded or filtered; return the exit code."""
    code = 0
    if problems.count:
        say(f"vdl: {problems.count} not decoded; the first: {problems.first}", err=True)
        code = FAILED
    if keeps.filter is not None and keeps.filter.failed:
        told = f"{keeps.filter.failed} left out; the first: {keeps.filter.problem}"
        say(f"vdl: --filter does not apply: {told}", err=True)
        code = FAILED
    return code
