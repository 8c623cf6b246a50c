"""The state of the set: servers, problems, counts and rates.

Does not depend on HTTP.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from vdl.console.cluster_watch import (
    RUNBOOK,
    ClusterWatch,
    Report,
    led_elsewhere,
    may_see_all,
    own_problems,
    problem_rows,
)
from vdl.console.groups import list_groups
from vdl.console.parameters import INT64_MAX, Parameters, long
from vdl.console.points import INTERVAL_MS, POINTS_MAX, Point
from vdl.console.problems import ConsoleError, check_code
from vdl.console.question import Address, Question
from vdl.console.topics import BROKER_RESOURCE, settings
from vdl.kafka.client import Unreachable
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS, Problem

SERVER: Final = ("server",)
SERIES: Final = ("since",)
EXPLAIN: Final = ("kind",)
_RATES: Final = (
    "records_in_per_second",
    "bytes_in_per_second",
    "bytes_out_per_second",
    "requests_per_second",
)
_ID_MAX: Final = (1 << 31) - 1


def overview(
    question: Question, watch: ClusterWatch, local: Address, points: Sequence[Point]
) -> dict[str, Any]:
    """Answer `GET overview`. `local`: the HTTP port of this server."""
    rows, reports, described = _servers(question, watch)
    known = question.metadata(None)
    topics = [one for one in known.topics if not one.error_code]
    partitions = [one for topic in topics for one in topic.partitions]
    if reports is None:
        own = [(question.settings.server, one) for one in own_problems(local)]
        problems = problem_rows(own, None)
    else:
        problems = problem_rows(_led(reports, topics), {one.name for one in topics})
    try:
        groups: int | None = len(list_groups(question)[0])
    except ConsoleError:
        groups = None
    up = sum(row["state"] == "up" for row in rows)
    is_ok = not any(row["is_wrong"] for row in problems) and up == len(rows)
    return {
        "now_ms": time.time_ns() // 1_000_000,
        "cluster": described.cluster_id,
        "is_ok": is_ok and all(one.leader_id >= 0 for one in partitions),
        "servers": rows,
        "problems": problems,
        "problems_of": "server" if reports is None else "cluster",
        "counts": {
            "servers": len(rows),
            "servers_up": up,
            "topics": sum(not one.is_internal for one in topics),
            "internal_topics": sum(one.is_internal for one in topics),
            "partitions": len(partitions),
            "partitions_without_leader": sum(one.leader_id < 0 for one in partitions),
            "under_replicated": sum(
                len(one.isr_nodes) < len(one.replica_nodes) for one in partitions
            ),
            "groups": groups,
        },
        "rates": {name: points[-1][name] for name in _RATES} if points else None,
    }


def _led(reports: Mapping[int, Report], topics: Sequence[Any]) -> list[tuple[int, Problem]]:
    found = [(server, one) for server, report in reports.items() for one in report.problems]
    leaders = {
        f"{topic.name}-{one.partition_index}"
        for topic in topics
        for one in topic.partitions
        if one.leader_id >= 0
    }
    return led_elsewhere(found, leaders)


def servers(question: Question, watch: ClusterWatch) -> dict[str, Any]:
    """Answer `GET servers`."""
    return {"servers": _servers(question, watch)[0]}


def server(question: Question, watch: ClusterWatch, given: Parameters) -> dict[str, Any]:
    """Answer `GET server`."""
    number = given.integer("server", 1, _ID_MAX)
    rows = [row for row in _servers(question, watch)[0] if row["id"] == number]
    if not rows:
        raise ConsoleError("not_found", f"server {number}: not a member of the set")
    found: list[dict[str, Any]] | None = None
    reason = ""
    try:
        found = settings(question, BROKER_RESOURCE, str(number), number)
    except Unreachable as error:
        reason = str(error)
    except ConsoleError as error:
        if error.kind != "forbidden":
            raise
        reason = error.message
    return {"server": rows[0], "settings": found, "settings_missing": reason}


def _servers(
    question: Question, watch: ClusterWatch
) -> tuple[list[dict[str, Any]], dict[int, Report] | None, Any]:
    """Return the rows of all servers, their reports if the user may see them, and the answer to
    DescribeCluster."""
    described = question.described_cluster()
    check_code(described.error_code, "the cluster", described.error_message)
    brokers = sorted(described.brokers, key=lambda one: int(one.broker_id))
    reports = None
    if may_see_all(described):
        alive = [one.broker_id for one in brokers if not one.is_fenced]
        reports = watch.reports(question, alive)
    leading, replicas = _counts(question)
    rows = []
    for one in brokers:
        report = None if reports is None else reports.get(one.broker_id)
        state, reason = _state(question, one, report)
        rows.append(
            {
                "id": one.broker_id,
                "host": one.host,
                "port": one.port,
                "rack": one.rack or "",
                "state": state,
                "is_this": one.broker_id == question.settings.server,
                "controller": one.broker_id == described.controller_id,
                "reason": reason,
                "version": None if report is None else report.version,
                "uptime_ms": None if report is None else long(report.uptime_ms),
                "replicas": replicas.get(one.broker_id, 0),
                "leading": leading.get(one.broker_id, 0),
            }
        )
    return rows, reports, described


def _state(question: Question, broker: Any, report: Report | None) -> tuple[str, str]:
    """Return (state, reason)."""
    if broker.broker_id == question.settings.server:
        return "up", ""
    if broker.is_fenced:
        return "down", "the controller has no connection to it"
    if report is not None and not report.reason:
        return "up", ""
    try:
        with question.client((broker.host, broker.port)):
            return "up", "" if report is None else report.reason
    except Unreachable as error:
        return "down", error.reason


def _counts(question: Question) -> tuple[dict[int, int], dict[int, int]]:
    """Return the partitions that each server leads, and has, of topics that the user may see."""
    leading: dict[int, int] = {}
    replicas: dict[int, int] = {}
    for topic in question.metadata(None).topics:
        for one in topic.partitions:
            leading[one.leader_id] = leading.get(one.leader_id, 0) + 1
            for number in one.replica_nodes:
                replicas[number] = replicas.get(number, 0) + 1
    return leading, replicas


def series(given: Parameters, points: Sequence[Point]) -> dict[str, Any]:
    """Answer `GET series`."""
    since_ms = given.integer("since", 0, INT64_MAX, 0)
    some = [point for point in points if (point["ms"] or 0) > since_ms]
    names = sorted(name for name in (points[-1] if points else ()) if name != "ms")
    return {
        "interval_ms": INTERVAL_MS,
        "keep_ms": INTERVAL_MS * POINTS_MAX,
        "now_ms": time.time_ns() // 1_000_000,
        "times": [point["ms"] for point in some],
        "values": {name: [point[name] for point in some] for name in names},
    }


def explain(
    question: Question, watch: ClusterWatch, local: Address, given: Parameters
) -> dict[str, Any]:
    """Answer `GET explain`."""
    kind = given.text("kind", "", most=64)
    described = question.described_cluster()
    check_code(described.error_code, "the cluster", described.error_message)
    if may_see_all(described):
        alive = [one.broker_id for one in described.brokers if not one.is_fenced]
        topics = [one for one in question.metadata(None).topics if not one.error_code]
        found = _led(watch.reports(question, alive), topics)
        rows = problem_rows(found, {one.name for one in topics})
    else:
        own = [(question.settings.server, one) for one in own_problems(local)]
        rows = problem_rows(own, None)
    rows = [row | {"is_present": True} for row in rows if kind in ("", row["kind"])]
    if kind and not rows:
        meaning = {**SERVER_KINDS, **CLUSTER_KINDS}.get(kind)
        if meaning is None:
            raise ConsoleError("not_found", f"{kind}: no kind of problem")
        rows = [
            {
                "kind": kind,
                "texts": [],
                "meaning": meaning,
                "runbook": RUNBOOK + kind,
                "is_wrong": False,
                "server": None,
                "is_present": False,
            }
        ]
    return {"explanations": rows}
