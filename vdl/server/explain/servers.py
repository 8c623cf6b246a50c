"""Faults of a server and of a cluster; why requests are slow.

Does not depend on how facts are collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from rpc.admin import Role
from vdl.server.explain.answer import EVIDENCE_MAX, NOTHING_WRONG, Finding
from vdl.server.explain.facts import RECENT_MS, Facts, Seen, ServerFacts, clock_text, listed
from vdl.server.problem import (
    CLUSTER_KINDS,
    NO_LEADER,
    NOT_WRONG,
    SERVER_KINDS,
    Problem,
    counted,
)

_STEPS: Final = {
    "disk_full": "Make room on the disk, or reduce retention.",
    "no_quorum": "Mend the network between the servers, or start those that are down.",
    "peer_unreachable": "Start the server that is down, or mend the link.",
    "overloaded": "Take load from it, or give it more processor time.",
    "clock_wrong": "Correct the clock of the server: NTP.",
    "flush_stalled": "Look at the disk: dmesg, iostat.",
    "no_leader": "vdl explain partition TOPIC PARTITION.",
    "under_min_isr": "vdl explain partition TOPIC PARTITION.",
    "under_replicated": "Bring the servers back whose replicas are missing.",
}
_READ_PAGE: Final = "Read the page of the runbook."
_EVENT_OF: Final = {
    "no_quorum": "quorum_lost",
    "clock_wrong": "clock_disagrees",
    "under_replicated": "isr_shrunk",
    "under_min_isr": "isr_shrunk",
    "no_leader": "resigned",
    "peer_unreachable": "dial_failed",
}
_SERIOUS: Final = [*SERVER_KINDS, *CLUSTER_KINDS]


def explain_server(facts: Facts, server_id: int) -> list[Finding]:
    """Return what is wrong with one server."""
    server = facts.server(server_id)
    if server is None:
        return [
            Finding(
                "unknown_server", f"There is no server {server_id}.",
                "No server of the cluster has this id.", "Check the number: vdl status.", "look",
            )
        ]  # fmt: skip
    if server.unreachable:
        return [_unreachable(facts, server)]
    found = [_of_problem(facts, problem, server_id) for problem in server.problems]
    events = [seen for seen in facts.events("disk_hung") if seen.server == server_id]
    if events and facts.is_recent(events[0]):
        found.append(
            Finding(
                "disk_slow", f"The disk of server {server_id} is slow.",
                f"A write to its journal hung, last at {clock_text(events[0].last_ms)}.",
                "Look at the disk: dmesg, iostat.", "slow_requests", events,
            )
        )  # fmt: skip
    found += _restarted(facts, server)
    return _or_well(found, f"server {server_id} works", "It reports no problem.")


def _unreachable(facts: Facts, server: ServerFacts) -> Finding:
    told = [
        problem.text
        for other in facts.servers
        for problem in other.problems
        if problem.kind in ("peer_unreachable", "link_refused") and str(server.id) in problem.text
    ]
    witness = "the other servers have lost their links to it, too" if told else ""
    if not told and any(other.status is not None for other in facts.servers):
        witness = "the other servers are still linked to it"
    evidence = [
        seen
        for seen in facts.events("dial_failed", "isr_shrunk", "elected", "link_refused")
        if server.id in (seen.number("peer"), seen.number("replica"), seen.number("before"))
    ]
    return Finding(
        "server_unreachable", f"Server {server.id} does not answer.",
        f"{server.unreachable.capitalize()}{'; ' + witness if witness else ''}.",
        "Look at its process and the end of its log; start it if it has ended.",
        "peer_unreachable", evidence, server=server.id,
    )  # fmt: skip


def _of_problem(facts: Facts, problem: Problem, server_id: int) -> Finding:
    kind = problem.kind
    event = _EVENT_OF.get(kind, kind)
    of_server = (one for one in facts.events(event) if one.server == server_id)
    seen = list(islice(of_server, EVIDENCE_MAX))
    meaning = SERVER_KINDS.get(kind) or CLUSTER_KINDS.get(kind) or kind
    return Finding(
        kind, f"Server {server_id} reports {kind}: {problem.text}.",
        f"{meaning[:1].upper()}{meaning[1:]}.", _STEPS.get(kind, _READ_PAGE), kind, seen,
        server=server_id, is_wrong=kind not in NOT_WRONG,
    )  # fmt: skip


def _restarted(facts: Facts, server: ServerFacts) -> Iterator[Finding]:
    if server.status is None or server.status.uptime_ms > RECENT_MS:
        return
    seen = [one for one in facts.events("recovered", "serving") if one.server == server.id]
    took = next((one.fields.get("seconds") for one in seen if one.event == "recovered"), None)
    yield Finding(
        "restarted", f"Server {server.id} was started {server.status.uptime_ms // 1_000} s ago.",
        f"It read its data in {took} s." if took is not None else "It serves clients again.",
        "Nothing, if the restart was planned; otherwise read the end of its earlier log.",
        "starting", seen, server=server.id, is_wrong=False,
    )  # fmt: skip


def explain_cluster(facts: Facts) -> list[Finding]:
    """Return what is wrong with a cluster, the most serious first."""
    found = [_unreachable(facts, server) for server in facts.servers if server.unreachable]
    led = {
        group.name
        for server in facts.servers
        if server.status is not None
        for group in server.status.groups
        if group.role is Role.LEADER
    } if len(facts.servers) > 1 else set()  # fmt: skip
    told: set[tuple[str, str]] = set()
    problems = []
    for server in facts.servers:
        for problem in server.problems:
            key = problem.kind, problem.text if problem.kind in CLUSTER_KINDS else str(server.id)
            isolated = problem.kind == "no_leader" and problem.text.removesuffix(NO_LEADER) in led
            if key not in told and not isolated:
                told.add(key)
                problems.append(_of_problem(facts, problem, server.id))
    problems.sort(key=lambda one: _SERIOUS.index(one.kind) if one.kind in _SERIOUS else 0)
    found += problems
    for kind, event, summary, step in (
        ("writes_refused", "produce_refused", "Batches of producers were refused lately",
         "vdl explain partition TOPIC PARTITION."),
        ("requests_slow", "slow_request", "Requests were slow lately", "vdl explain slow."),
        ("members_lost", "member_timed_out", "Consumer groups lost members lately",
         "vdl explain group NAME."),
        ("clients_throttled", "throttled", "Clients were throttled lately", "vdl quota list."),
    ):  # fmt: skip
        seen = [one for one in facts.events(event) if facts.is_recent(one)]
        if seen:
            count, last = sum(one.count for one in seen), listed([seen[0].server])
            page = {"slow_request": "slow_requests", "member_timed_out": "rebalancing"}
            found.append(
                Finding(
                    kind, f"{summary}: {counted(count, 'time')}.", f"The last was on {last}.",
                    step, page.get(event, "producer_refused"), seen, is_wrong=False,
                )
            )  # fmt: skip
    return _or_well(
        found, f"all {len(facts.servers)} servers answer", "No server reports a problem."
    )


def _or_well(found: list[Finding], what: str, cause: str) -> list[Finding]:
    if not any(one.is_wrong for one in found):
        well = Finding(
            NOTHING_WRONG, f"Nothing is wrong: {what}.", cause, "Nothing.", "look", is_wrong=False
        )
        found.insert(0, well)
    return found


# --- slow requests --------------------------------------------------------------------------------
_PHASES: Final = ("queue_ms", "work_ms", "wait_ms", "send_ms")
_OF_PHASE: Final = {
    "queue_ms": ("slow_queue", "it waited to be started: the server had other work",
                 "Take load from the server: vdl explain server {server}."),
    "work_ms": ("slow_work", "its work took long on the server's event loop",
                "Look for large requests, and for load: vdl explain server {server}."),
    "wait_ms": ("slow_wait", "it waited for other servers or clients",
                "vdl explain cluster."),
    "send_ms": ("slow_send", "its client did not read the answer, or earlier answers were late",
                "Look at the client and the network to it."),
}  # fmt: skip


def explain_slow(facts: Facts, api: str) -> list[Finding]:
    """Return why requests are slow, of one API or of all; the slowest first."""
    seen = [one for one in facts.events("slow_request") if not api or one.text("api") == api]
    found = [_slow(facts, one, seen) for one in _slowest(seen)]
    what = f"no {api} request was slow" if api else "no request was slow"
    return _or_well(found, what, "None took longer than request.slow in the last five minutes.")


def _slowest(seen: list[Seen]) -> list[Seen]:
    """Return the slowest request for each phase that took most of it."""
    by_phase: dict[str, Seen] = {}
    for one in sorted(seen, key=lambda one: one.number("total_ms"), reverse=True):
        by_phase.setdefault(_phase(one), one)
    return list(by_phase.values())


def _phase(seen: Seen) -> str:
    return max(_PHASES, key=seen.number)


def _slow(facts: Facts, seen: Seen, others: list[Seen]) -> Finding:
    phase, server = _phase(seen), seen.server
    kind, words, step = _OF_PHASE[phase]
    evidence = [seen, *(one for one in others if one is not seen and _phase(one) == phase)]
    if phase == "wait_ms" and seen.text("api") == "Produce":
        kind, words = "slow_replication", "it waited until a majority had it on disk"
        near = [
            one
            for one in facts.events("disk_hung", "flush_stalled", "isr_shrunk", "quorum_lost")
            if one.last_ms >= seen.first_ms - RECENT_MS
        ]
        step = f"Look at the disks and links of the replicas: vdl explain server {server}."
        if near:
            words += f", while server {near[0].server} reported {near[0].event}"
            evidence += near
    return Finding(
        kind,
        f"{seen.text('api')} of {seen.text('client')} took {seen.number('total_ms')} ms on server "
        f"{server}.",
        f"For {seen.number(phase)} ms {words}.", step.replace("{server}", str(server)),
        "slow_requests", evidence, is_wrong=facts.is_recent(seen),
    )  # fmt: skip
