"""`vdl produce`: records into a topic of any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options, kafka_exception
from vdl.commands.interrupts import Interrupts
from vdl.commands.output import DONE, FAILED, fail, progress, say
from vdl.commands.records.partition_ranges import partition_numbers
from vdl.commands.records.record_input import (
    file_record,
    json_record,
    line_record,
    parse_header,
    parts,
    unescaped,
    whole_reads,
)
from vdl.commands.records.record_json import ANY_PARTITION, PARTITION_MAX, BadRecord, NewRecord
from vdl.commands.records.record_sender import (
    PROPERTIES,
    Outcome,
    RecordSender,
    delivery_properties,
)
from vdl.commands.records.transaction import Ending, Transaction


class BytesOption(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    r"""Bytes with the escapes \n, \t, \r, \0, \\ and \xHH."""

    name = "TEXT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            found = unescaped(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not found:
            self.fail("expected at least one character", param, ctx)
        return found


class HeaderOption(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.5
    """A header, `name=value`."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if isinstance(value, tuple) else parse_header(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of every record by the options of the command."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    tombstones: bool = False

    def apply(self, record: NewRecord) -> NewRecord:
        """Change a record in place; return it."""
        if self.key is not None:
            record.key = self.key
        if self.headers:
            record.headers += self.headers
        if self.partition is not None:
            record.partition = self.partition
        if self.tombstones and not record.value:
            record.value = None
        return record


EXAMPLES = """\b
Examples:
  seq 1000 | vdl produce numbers
  vdl produce orders orders.txt --key-separator : -H source=shop
  vdl consume orders --json | vdl produce copy --json-lines
"""


@click.command(epilog=EXAMPLES)
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@cluster_options
@click.option("--delimiter", "-D", type=BytesOption(), default=r"\n", show_default=True,
              help="End of a record in the input.")  # fmt: skip
@click.option("--key-separator", "-K", type=BytesOption(), help="Between key and value of a line.")
@click.option("--json-lines", is_flag=True,
              help="Lines as `vdl consume --json` writes them.")  # fmt: skip
@click.option("--file", "whole_files", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="One record: the whole file; may be repeated.")  # fmt: skip
@click.option("--key", "-k", type=BytesOption(), help="The key of every record.")
@click.option("--header", "-H", "headers", type=HeaderOption(), multiple=True,
              help="A header of every record; may be repeated.")  # fmt: skip
@click.option("--partition", "-p", type=click.IntRange(0, PARTITION_MAX),
              help="The partition of every record.")  # fmt: skip
@click.option("--any-partition", is_flag=True, help="Partitions by key, also with --json-lines.")
@click.option("--tombstone", "-Z", "tombstones", is_flag=True, help="An empty value is null.")
@click.option("--compression", "-z", default="none", show_default=True,
              type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]))  # fmt: skip
@click.option("--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="Records in a second at most.")  # fmt: skip
@click.option("--transactional-id", metavar="ID", help="All in one transaction, or nothing.")
@click.option("--value-schema", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              metavar="FILE", help="Values are JSON, written by this .avsc, .proto or .json.",
              )  # fmt: skip
@click.option("--schema-registry", metavar="URL", envvar="VDL_SCHEMA_REGISTRY",
              help="Registry for --value-schema.")  # fmt: skip
@click.option("--create-topic", is_flag=True, help="Let the cluster create a missing topic.")
@click.option("--quiet", "-q", is_flag=True, help="No report of what was written.")
def produce(
    *,
    cluster: Cluster,
    topic: str,
    files: tuple[Path, ...],
    delimiter: bytes,
    key_separator: bytes | None,
    json_lines: bool,
    whole_files: tuple[Path, ...],
    key: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    partition: int | None,
    any_partition: bool,
    tombstones: bool,
    compression: str,
    acks: str,
    rate: float | None,
    transactional_id: str | None,
    value_schema: Path | None,
    schema_registry: str | None,
    create_topic: bool,
    quiet: bool,
) -> int:
    """Write records to TOPIC: the lines of standard input or of FILES.

    Exits with 1 if a record was not acknowledged. ^C and SIGTERM write what was taken and end; a
    transaction is then aborted.
    """
    if json_lines and key_separator is not None:
        raise click.UsageError("--json-lines excludes --key-separator")
    if key is not None and key_separator is not None:
        raise click.UsageError("--key excludes --key-separator")
    if any_partition and partition is not None:
        raise click.UsageError("--any-partition excludes --partition")
    if transactional_id is not None and acks != "all":
        raise click.UsageError("--transactional-id needs --acks all")
    encode = _encoder(topic, value_schema, schema_registry)
    if not create_topic:
        numbers = partition_numbers(cluster, [topic])[topic]
        if partition is not None and partition not in numbers:
            fail(f"topic {topic!r} has no partition {partition}; it has {len(numbers)}")
    else:
        cluster.metadata(topic)
    changes = Changes(
        key, headers, ANY_PARTITION if any_partition else partition, tombstones
    )  # fmt: skip
    parse = _parser(json_lines, key_separator)
    properties = {
        **PROPERTIES,
        **delivery_properties(acks, cluster.extra),
        "compression.type": compression,
    }
    if transactional_id is not None:
        properties |= {"transactional.id": transactional_id}
        properties.pop("message.timeout.ms")  # at most that of the transaction, which is shorter
    # A property that is given wins over the command's own.
    producer = cluster.producer(**{**properties, **cluster.extra})
    cluster.outage.is_told = True
    source = _records(files, whole_files, delimiter, parse)
    problem, code = "", FAILED
    with Interrupts() as interrupts:
        sender = RecordSender(
            producer, topic, rate=rate or 0.0, interrupts=interrupts, outage=cluster.outage
        )
        transaction = Transaction(producer, interrupts, cluster.words)
        try:
            with transaction.around() if transactional_id is not None else nullcontext():
                code = _send_all(sender, source, changes, encode, interrupts)
                transaction.is_complete = code == DONE
        except kafka_exception() as error:
            problem = cluster.words(error)
        except BadInput as error:
            problem = str(error)
        except click.ClickException as error:
            problem = error.message
        except KeyboardInterrupt:
            code = interrupts.code
        with interrupts.held(breakable=False):
            # The client ends with its last owner, and calls back: a signal would be lost there.
            outcome = sender.outcome
            transaction.release()
            del producer, sender
    if transactional_id is not None:
        code = _ended(transaction, code, interrupts)
    elif interrupts.count:
        code = interrupts.code
    _report(outcome, transaction, quiet=quiet)
    if problem:
        fail(problem)
    return code


def _ended(transaction: Transaction, code: int, interrupts: Interrupts) -> int:
    """Return the exit code of a command whose records were to end with `code`."""
    if transaction.ending is Ending.COMMITTED:
        return DONE  # also if a signal came meanwhile
    if transaction.problem:
        return FAILED
    return interrupts.code if interrupts.count else code or FAILED


class BadInput(Exception):
    """Input that is no record: where it stands and what is wrong."""


def _parser(json_lines: bool, separator: bytes | None) -> Callable[[bytes], NewRecord | None]:
    return json_record if json_lines else lambda line: line_record(line, separator)


def _records(
    files: tuple[Path, ...],
    whole_files: tuple[Path, ...],
    delimiter: bytes,
    parse: Callable[[bytes], NewRecord | None],
) -> Iterator[NewRecord]:
    """Yield the records of whole files, then of files, or of standard input if there is no file.
    Raises BadInput."""
    for path in whole_files:
        try:
            yield file_record(path)
        except (BadRecord, OSError) as error:
            raise BadInput(f"{path}: {error}") from None
    if not files and not whole_files:
        yield from _parsed("standard input", whole_reads(sys.stdin.buffer.raw), delimiter, parse)  # type: ignore[union-attr]  # a buffered reader has it
    for path in files:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(path.open("rb", buffering=0))
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}") from None
            yield from _parsed(str(path), whole_reads(file), delimiter, parse)


def _parsed(
    name: str,
    read: Callable[[int], bytes],
    delimiter: bytes,
    parse: Callable[[bytes], NewRecord | None],
) -> Iterator[NewRecord]:
    pieces = parts(read, delimiter)
    number = 0
    try:
        while True:
            number += 1
            part = next(pieces, None)
            if part is None:
                return
            record = parse(part)
            if record is not None:
                yield record
    except (BadRecord, OSError) as error:
        raise BadInput(f"{name}, record {number}: {error}") from None


def _send_all(
    sender: RecordSender,
    source: Iterable[NewRecord],
    changes: Changes,
    encode: Callable[[NewRecord], bytes | None] | None,
    interrupts: Interrupts,
) -> int:
    """Send all records and wait for the answers; return the exit code. After a signal it waits for
    those that were taken, after a second one it does not. Raises BadInput, click.ClickException
    when those before it are sent."""
    try:
        with suppress(KeyboardInterrupt):
            _send_each(sender, source, changes, encode, interrupts)
    finally:
        _wait_for_answers(sender, interrupts)
    if interrupts.count:
        return interrupts.code
    return FAILED if sender.outcome.failed else DONE


def _send_each(
    sender: RecordSender,
    source: Iterable[NewRecord],
    changes: Changes,
    encode: Callable[[NewRecord], bytes | None] | None,
    interrupts: Interrupts,
) -> None:
    numbered = enumerate(source, 1)
    with progress("produced", unit="records") as steps:
        while True:
            # Before the record is taken: an interrupted wait must not lose one.
            sender.wait_for_turn()
            taken = next(numbered, None)
            if taken is None:
                return
            number, record = taken
            with interrupts.held():
                if encode is not None and record.value is not None:
                    try:
                        record.value = encode(record)
                    except BadRecord as error:
                        raise BadInput(f"record {number}: {error}") from None
                sender.send(changes.apply(record))
            interrupts.check()
            steps.advance()


def _wait_for_answers(sender: RecordSender, interrupts: Interrupts) -> None:
    """Return when all that was sent is answered for, or given up after a second signal."""
    for _ in range(2):
        if interrupts.count > 1:
            break
        try:
            sender.flush()
        except KeyboardInterrupt:
            continue
        return
    sender.abandon()


def _encoder(
    topic: str, schema: Path | None, registry: str | None
) -> Callable[[NewRecord], bytes | None] | None:
    """Return a function that writes values by a schema; None without one. Raises
    click.UsageError."""
    if schema is None:
        return None
    if registry is None:
        raise click.UsageError("--value-schema needs --schema-registry")
    from vdl.commands.records.registered_forms import registered_writer

    return registered_writer(topic, schema, registry)


def _counts(outcome: Outcome) -> str:
    records = "record" if outcome.acknowledged == 1 else "records"
    size = "byte" if outcome.value_bytes == 1 else "bytes"
    done = f"{outcome.acknowledged:,} {records}, {outcome.value_bytes:,} {size}"
    return f"{done}; {outcome.failed:,} failed" if outcome.failed else done


_ENDINGS = {
    Ending.OPEN: "the transaction was not committed, and the cluster aborts it after its timeout",
    Ending.LEFT_OPEN: "the transaction was not committed, and its abort failed",
    Ending.ABORTED: "the transaction was aborted",
    Ending.UNKNOWN: "the cluster did not say if the transaction was committed",
}
"""Words for a transaction that is not known to be committed."""


def _report(outcome: Outcome, transaction: Transaction, *, quiet: bool) -> None:
    """Report on standard error how much was written, and what failed."""
    if words := _ENDINGS.get(transaction.ending):
        reason = f": {transaction.problem}" if transaction.problem else ""
        say(f"vdl: {words}, with {_counts(outcome)}{reason}", err=True)
    elif not quiet or outcome.failed:
        where = ""
        if outcome.last is not None:
            topic, partition, offset = outcome.last
            where = f"; the last is at {topic}[{partition}]" + (
                f" offset {offset}" if offset >= 0 else ""
            )
        say(f"{_counts(outcome)}{where}", err=True)
    for reason, count in outcome.reasons.most_common():
        say(f"vdl: {count:,} failed: {reason}", err=True)
