"""`vdl produce`: records into a topic of any cluster that speaks Kafka's protocol."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vdl.commands.cluster.cluster_options import Cluster, cluster_options, kafka_exception
from vdl.commands.output import DONE, FAILED, fail, progress
from vdl.commands.records.partition_ranges import partition_numbers
from vdl.commands.records.record_input import (
    file_record,
    json_record,
    line_record,
    parse_header,
    parts,
    unescaped,
)
from vdl.commands.records.record_json import ANY_PARTITION, PARTITION_MAX, BadRecord, NewRecord
from vdl.commands.records.record_sender import PROPERTIES, Outcome, RecordSender

if TYPE_CHECKING:
    from confluent_kafka import Producer

INTERRUPTED = 130
TRANSACTION_SECONDS = 60.0
"""Longest wait for the answer to one step of a transaction."""


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


@click.command()
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
    r"""Write records to TOPIC: the lines of standard input or of FILES.

    Exits with 1 if a record was not acknowledged. ^C writes what was read and ends; a transaction
    is then aborted.

    \b
      seq 1000 | vdl produce numbers
      vdl produce orders orders.txt --key-separator : -H source=shop
      vdl consume orders --json | vdl produce copy --json-lines
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
    properties = {**PROPERTIES, "compression.type": compression, "acks": acks}
    if transactional_id is not None:
        properties |= {"transactional.id": transactional_id}
        properties.pop("message.timeout.ms")  # at most that of the transaction, which is shorter
    # A property that is given wins over the command's own.
    producer = cluster.producer(**{**properties, **cluster.extra})
    sender = RecordSender(producer, topic, rate=rate or 0.0)
    source = _records(files, whole_files, delimiter, parse)
    try:
        with _transaction(producer, transactional_id is not None) as transaction:
            code = _send_all(sender, source, changes, encode)
            transaction.is_complete = code == DONE
    except kafka_exception() as error:
        fail(f"{_counts(sender.outcome)}; {cluster.words(error)}")
    except BadInput as error:
        _report(sender.outcome, is_aborted=transactional_id is not None, quiet=quiet)
        fail(str(error))
    is_aborted = transactional_id is not None and code != DONE
    _report(sender.outcome, is_aborted=is_aborted, quiet=quiet)
    return code


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
        yield from _parsed("standard input", sys.stdin.buffer.raw.read, delimiter, parse)  # type: ignore[union-attr]  # a buffered reader has it
    for path in files:
        with ExitStack() as stack:
            try:
                file = stack.enter_context(path.open("rb", buffering=0))
            except OSError as error:
                raise BadInput(f"{path}: {error.strerror}") from None
            yield from _parsed(str(path), file.read, delimiter, parse)


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
) -> int:
    """Send all records and wait for the answers; return the exit code. After ^C it waits for those
    that were read, after a second one it does not. Raises BadInput when those before it are
    sent."""
    code = 0
    try:
        try:
            with progress("produced", unit="records") as steps:
                for number, record in enumerate(source, 1):
                    if encode is not None and record.value is not None:
                        try:
                            record.value = encode(record)
                        except BadRecord as error:
                            raise BadInput(f"record {number}: {error}") from None
                    sender.send(changes.apply(record))
                    steps.advance()
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            sender.flush()
    except KeyboardInterrupt:
        sender.abandon()
        code = INTERRUPTED
    return code or (FAILED if sender.outcome.failed else DONE)


class _Transaction:
    """A transaction; it is committed if the block says that it is complete."""

    is_complete = False


@contextmanager
def _transaction(producer: Producer, is_one: bool) -> Iterator[_Transaction]:
    """Commit what is sent in the block if it is complete, or abort it."""
    found = _Transaction()
    if not is_one:
        yield found
        return
    producer.init_transactions(TRANSACTION_SECONDS)
    producer.begin_transaction()
    try:
        yield found
    finally:
        if found.is_complete:
            producer.commit_transaction(TRANSACTION_SECONDS)
        else:
            producer.abort_transaction(TRANSACTION_SECONDS)


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


def _report(outcome: Outcome, *, is_aborted: bool, quiet: bool) -> None:
    """Tell on standard error how much was written, and what failed."""
    if is_aborted:
        click.echo(f"vdl: the transaction was aborted, with {_counts(outcome)}", err=True)
    elif not quiet or outcome.failed:
        where = ""
        if outcome.last is not None:
            topic, partition, offset = outcome.last
            where = f"; the last is at {topic}[{partition}]" + (
                f" offset {offset}" if offset >= 0 else ""
            )
        click.echo(f"{_counts(outcome)}{where}", err=True)
    for reason, count in outcome.reasons.most_common():
        click.echo(f"vdl: {count:,} failed: {reason}", err=True)
