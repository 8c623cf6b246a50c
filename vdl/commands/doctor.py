"""`vdl doctor`: what is wrong with a cluster, or with a machine for a server, and what to do."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Generator, Iterator
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path

import click

from vdl.commands.checks.cluster_checks import SERVER, cluster_findings, vdl_findings
from vdl.commands.checks.finding import Finding, Verdict, fail, ok, skip, warn
from vdl.commands.checks.machine_checks import configuration, machine_findings
from vdl.commands.cluster.bootstrap_option import addresses
from vdl.commands.cluster.cluster_options import Cluster, cluster_options, kafka_exception
from vdl.commands.interrupts import Interrupts
from vdl.commands.output import DONE, FAILED, emit, json_option, say
from vdl.commands.records.record_json import NewRecord
from vdl.commands.records.record_sender import RecordSender
from vdl.commands.resources.temporary_topic import delete_temporary
from vdl.commands.terminal_text import visible_text
from vdl.kafka.security.client_settings import ClientSettingsError, parse_client_settings

PREFIX = "vdl-doctor-"
WRITE_SECONDS = 30.0
CLOCK_WARN_MS, CLOCK_FAIL_MS = 1_000, 60_000
"""Kafka refuses records that are an hour in the future; retention by time follows the clocks."""
_COLOURS = {
    Verdict.OK: "green",
    Verdict.SKIP: "bright_black",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "red",
}


@click.command()
@cluster_options
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR",
              help="Check this machine for a server with this data directory.")  # fmt: skip
@click.option("--server-config", type=click.Path(path_type=Path), metavar="FILE",
              help="Check this machine for a server with this file.")  # fmt: skip
@click.option("--write", "writes", is_flag=True,
              help="Also write a record to a topic made for it, read it back, compare clocks.",
              )  # fmt: skip
@json_option
def doctor(
    *,
    cluster: Cluster,
    data: Path | None,
    server_config: Path | None,
    writes: bool,
    as_json: bool,
) -> int:
    """Check a cluster; with --data or --server-config, the machine of a server.

    Each line has a verdict: ok, warn, fail, or skip for what cannot be looked at. Below it stands
    the next step. Exits with 1 if anything fails.
    """
    if data is None and server_config is None:
        found = _cluster(cluster, writes=writes)
    elif writes:
        raise click.UsageError("--write is for a cluster, --data and --server-config for a machine")
    else:
        found = _machine(data, server_config)
    seen: list[Finding] = []
    with Interrupts() as interrupts:
        try:
            with closing(found):
                for finding in found:
                    seen.append(finding)
                    if not as_json:
                        _print(finding)
        except KeyboardInterrupt:
            return interrupts.code
    failed = sum(finding.verdict is Verdict.FAIL for finding in seen)
    warned = sum(finding.verdict is Verdict.WARN for finding in seen)
    document = {
        "failed": failed,
        "warned": warned,
        "findings": [finding.document() for finding in seen],
    }
    emit(as_json, document, lambda: click.echo(f"\n{len(seen)} looked at: {failed} failed, "
                                               f"{warned} with a warning"))  # fmt: skip
    return FAILED if failed else DONE


def _print(finding: Finding) -> None:
    """Print a finding at once: some take seconds."""
    verdict = click.style(f"{finding.verdict.value:4}", fg=_COLOURS[finding.verdict])
    click.echo(f"{verdict}  {visible_text(finding.name)}: {visible_text(finding.text)}")
    if finding.step:
        say(f"      → {finding.step}")
    sys.stdout.flush()


def _machine(data: Path | None, path: Path | None) -> Generator[Finding]:
    config, finding = configuration(path, data)
    yield finding
    if config is not None:
        yield from machine_findings(config, data)


def _cluster(cluster: Cluster, *, writes: bool) -> Generator[Finding]:
    where, wait = addresses(cluster.connection.bootstrap), cluster.timeout_seconds
    try:
        # The names are those of librdkafka, so a file of a Java client serves as well.
        settings = parse_client_settings(cluster.properties(), cluster.connection.source, Path())
    except ClientSettingsError as error:
        yield skip("servers", f"not tried one by one: {error}")
        yield from _metadata(cluster)
    else:
        is_reached = False
        for finding in cluster_findings(where, settings, timeout_seconds=wait):
            is_reached = is_reached or finding.name.startswith(SERVER)
            yield finding
        if is_reached:
            yield from vdl_findings(where, settings, timeout_seconds=wait)
    if writes:
        yield from _written(cluster)
    else:
        yield skip("clocks", "no request tells a server's time", "--write compares them")


def _metadata(cluster: Cluster) -> Iterator[Finding]:
    """Yield one finding: with a login that only librdkafka knows, a cluster answers or does not."""
    try:
        found = cluster.metadata()
    except click.ClickException as error:
        yield fail("cluster", error.message, "compare addresses and login with the servers'")
        return
    yield ok("cluster", f"{len(found.brokers)} servers, {len(found.topics)} topics")


def _written(cluster: Cluster) -> Iterator[Finding]:
    """Write a record to a topic of its own and read it back. Yield whether that works, and how far
    the leader's clock is from this machine's."""
    from confluent_kafka.admin import NewTopic

    name = f"{PREFIX}{secrets.token_hex(6)}"
    config = {"message.timestamp.type": "LogAppendTime"}
    try:
        admin = cluster.admin()
    except click.ClickException as error:
        yield fail("cluster", error.message, "compare addresses and login with the servers'")
        return
    new = NewTopic(name, num_partitions=1, replication_factor=-1, config=config)
    created = admin.create_topics([new])[name]
    try:
        try:
            cluster.result(created)
        except click.ClickException as error:
            step = "allow this user to create topics, or leave --write out"
            yield fail("topic", error.message, step)
        else:
            try:
                yield from _round_trip(cluster, name)
            except kafka_exception() as error:
                yield fail("write", cluster.words(error), "look at the servers' logs")
        finally:
            wait([created], WRITE_SECONDS)  # it cannot be deleted before it is there
    except BaseException:
        if problem := delete_temporary(cluster, name):
            say(f"vdl: {problem}", err=True)
        raise
    if problem := delete_temporary(cluster, name):
        yield fail("topic", problem, f"delete it: vdl topic delete {name}")


def _round_trip(cluster: Cluster, topic: str) -> Iterator[Finding]:
    from confluent_kafka import TopicPartition

    producer = cluster.producer(**{"message.timeout.ms": int(WRITE_SECONDS * 1_000)})
    sender = RecordSender(producer, topic)
    try:
        sender.send(NewRecord(b"first"))  # waits for metadata and a connection
        sender.flush()
        before_ms = time.time_ns() // 1_000_000
        began = time.monotonic()
        sender.send(NewRecord(b"second"))
        sender.flush()
        took_ms = (time.monotonic() - began) * 1_000
    finally:
        producer.close()  # one that is left may have the topic created anew when it is deleted
    if sender.outcome.failed:
        reason = next(iter(sender.outcome.reasons))
        yield fail("write", reason, "look at `replicas` above and at the servers' logs")
        return
    yield ok("write", f"a record was acknowledged in {took_ms:.1f} ms")
    consumer = cluster.consumer(**{"group.id": PREFIX, "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 1)])
        message = consumer.poll(WRITE_SECONDS)
    finally:
        consumer.close()
    if message is None or message.error() is not None or message.value() != b"second":
        why = "nothing arrived" if message is None else str(message.error() or message.value())
        yield fail("read", why, "look at the log of the partition's leader")
        return
    yield ok("read", "it was read back")
    yield clocks(message.timestamp()[1], before_ms, before_ms + took_ms)


def clocks(server_ms: float, before_ms: float, after_ms: float) -> Finding:
    """Return a finding about the clock of a server that stamped a record between two times of this
    machine."""
    name = "clocks"
    ahead_ms = max(server_ms - after_ms, 0) - max(before_ms - server_ms, 0)
    text = f"the leader's is {abs(ahead_ms) / 1_000:.3f} s {'ahead' if ahead_ms > 0 else 'behind'}"
    step = "synchronise the clocks of this machine and the servers (chrony, systemd-timesyncd)"
    if abs(ahead_ms) > CLOCK_FAIL_MS:
        return fail(name, text, step)
    if abs(ahead_ms) > CLOCK_WARN_MS:
        return warn(name, text, step)
    return ok(name, "no difference" if not ahead_ms else text)
