"""Moves that are carried out, step by step, as Kafka's own reassignments.

The servers move what they were asked to, at their own rates. Each step is asked for when the one
before has ended, and only if each of its partitions can move now. The cluster is read once between
two steps: what the one has reached is what the next begins with.
What a step has begun goes on when the command is interrupted; `stop` cancels it.

Does not depend on who planned the moves.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ids import ServerId
from vdl.commands.changes.live_cluster import REQUEST_MS, LiveCluster, read_cluster, reassignments
from vdl.commands.changes.steps import Planner, Step, told
from vdl.commands.cluster.admin_requests import check, with_client, words
from vdl.commands.cluster.connection import Connection
from vdl.commands.output import fail, progress, say
from vdl.errors import ErrorCode
from vdl.kafka.wire import alter_partition_reassignments as alter
from vdl.kafka.wire.elect_leaders import ElectLeadersRequest, TopicPartitions
from vdl.server.problem import counted
from vdl.state.balance import Change, Where

ELECT_LEADERS, ALTER_PARTITION_REASSIGNMENTS = 43, 45
POLL_SECONDS = 0.5
PATIENCE_SECONDS = 5.0
"""Time without an end of a move after which the command says what it waits for."""
SHOWN_MAX = 5
"""Partitions that a message names."""
_NOT_ELECTED = {ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED}


@dataclass(frozen=True, slots=True)
class Done:
    """Moves that were carried out."""

    partitions: int
    moved_bytes: int
    seconds: float
    elected: int
    not_elected: list[str]
    """Partitions whose preferred leader could not take over yet; it does by itself later."""


def execute(connection: Connection, steps: Sequence[Step], *, rate: int) -> Done:
    """Carry out the moves of some steps. Raises click.ClickException, also if a step cannot be
    taken now: the steps before it are done."""
    began = time.monotonic()
    changes = [change for step in steps for change in step.changes]
    live = read_cluster(connection) if changes else None
    with progress("moves", len(changes), unit="partitions") as bar:
        for step in steps:
            if live is None or not step.changes:
                continue
            planner = Planner(live, rate=rate)
            found = {one.where: planner.anew(one) for one in step.changes}
            now = [one for one in found.values() if one.before != one.after]
            blocked = {one.where: why for one in now if (why := planner.why_not_begun(one))}
            for planned in step.changes:
                if found[planned.where].before not in (planned.before, planned.after):
                    blocked[planned.where] = "its replicas were changed since the plan"
            if blocked:
                fail(f"stopped before a step that cannot be taken now: {_named(blocked)}")
            may_resize = any(len(one.before) != len(one.after) for one in now)
            alter_reassignments(
                connection, {one.where: one.after for one in now}, may_resize=may_resize
            )
            _wait(connection, {one.where for one in now}, rate)
            live = read_cluster(connection)
            _check_reached(live, now)
            bar.advance(len(step.changes))
    seconds = time.monotonic() - began
    elected, not_elected = elect(connection, [c.where for c in changes if c.leads_elsewhere])
    moved = sum(change.moved_bytes for change in changes)
    return Done(len(changes), moved, round(seconds, 1), elected, not_elected)


def stop(connection: Connection) -> int:
    """Cancel the moves in progress, except those of servers that are being removed. Return their
    number. Raises click.ClickException."""
    live = read_cluster(connection)
    leaving = {s for s, one in live.servers.items() if one.member.standing == "leaving"}
    moving = [
        where
        for where, found in reassignments(connection).items()
        if leaving.isdisjoint(found.replicas)
    ]
    if moving:
        alter_reassignments(connection, dict.fromkeys(moving))
    return len(moving)


def alter_reassignments(
    connection: Connection,
    targets: Mapping[Where, Sequence[ServerId] | None],
    *,
    may_resize: bool = False,
) -> None:
    """Begin moves; None cancels one. Raises click.ClickException if any is refused.

    `may_resize`: a partition may get another number of replicas than its topic has (KIP-860).
    """
    topics: dict[str, list[alter.ReassignablePartition]] = {}
    for (topic, partition), servers in sorted(targets.items()):
        replicas: list[int] | None = None if servers is None else [*servers]
        topics.setdefault(topic, []).append(alter.ReassignablePartition(partition, replicas))
    request = alter.AlterPartitionReassignmentsRequest(
        REQUEST_MS,
        may_resize,
        [alter.ReassignableTopic(name, some) for name, some in topics.items()],
    )
    answer = with_client(connection, lambda c: c.request(ALTER_PARTITION_REASSIGNMENTS, request))
    check(answer.error_code, answer.error_message)
    refused = {
        (topic.name, one.partition_index): words(one.error_code, one.error_message)
        for topic in answer.responses
        for one in topic.partitions
        if one.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    }
    if refused:
        fail(f"refused: {_named(refused)}")


def elect(connection: Connection, wheres: Iterable[Where]) -> tuple[int, list[str]]:
    """Elect the preferred leaders of partitions. Return how many lead, and which do not yet."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(wheres):
        topics.setdefault(topic, []).append(partition)
    if not topics:
        return 0, []
    request = ElectLeadersRequest(
        0, [TopicPartitions(name, some) for name, some in topics.items()], REQUEST_MS
    )
    answer = with_client(
        connection, lambda c: c.request(ELECT_LEADERS, request), timeout_seconds=30.0
    )
    check(answer.error_code, None)
    results = [
        (told((topic.topic, one.partition_id)), one.error_code)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]
    left = [name for name, code in results if code not in _NOT_ELECTED]
    return len(results) - len(left), left


def _wait(connection: Connection, wheres: Collection[Where], rate: int) -> None:
    """Wait until some moves have ended. After a while, say what keeps those that are left."""
    left, last, told_last = len(wheres) + 1, time.monotonic(), ""
    while True:
        moving = reassignments(connection).keys() & set(wheres)
        if not moving:
            return
        if len(moving) < left:
            left, last = len(moving), time.monotonic()
        elif time.monotonic() - last > PATIENCE_SECONDS:
            last = time.monotonic()
            planner = Planner(read_cluster(connection), rate=rate)
            text = _named({w: planner.why_kept(w) for w in sorted(moving)[:SHOWN_MAX]})
            if text != told_last:
                say(f"{counted(len(moving), 'partition')} left; {text}", err=True)
                told_last = text
        time.sleep(POLL_SECONDS)


def _check_reached(live: LiveCluster, changes: Iterable[Change]) -> None:
    """Raise click.ClickException if moves were cancelled or changed."""
    others = {
        change.where: "it has other replicas than were asked for"
        for change in changes
        if (one := live.partitions.get(change.where)) is not None and one.replicas != change.after
    }
    if others:
        fail(f"stopped by another request: {_named(others)}")


def _named(reasons: Mapping[Where, str]) -> str:
    """Return some partitions with their reasons."""
    texts = [f"{told(where)}: {why}" for where, why in sorted(reasons.items())]
    more = f"; and {len(texts) - SHOWN_MAX} more" if len(texts) > SHOWN_MAX else ""
    return "; ".join(texts[:SHOWN_MAX]) + more
