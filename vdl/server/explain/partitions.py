"""Why a partition takes no writes, and why its leader changed.

Does not depend on how facts are collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final, NamedTuple

from rpc.admin import GroupStatus
from vdl.server.explain.answer import NOTHING_WRONG, Finding
from vdl.server.explain.event_words import ELECTED, OUT_OF_SYNC, TRANSFERRED, reason_of
from vdl.server.explain.facts import Facts, Seen, clock_text, listed, server_of

FLAPS_MIN: Final = 4
"""Elections within `RECENT_MS` from which a leader changes too often."""
_TRANSFER_MS: Final = 30_000
"""Longest time between the start of a transfer and the election that ends it."""
_UPDATE_LATE_MS: Final = 10_000
"""Time in which clients learn of a new leader."""


class _Refusal(NamedTuple):
    kind: str
    words: str
    next: str
    page: str


_CLIENT: Final = "producer_refused"
_TOO_FEW: Final = _Refusal(
    "below_min_isr", "too few replicas are in sync", "Bring the missing replicas back.",
    "under_min_isr",
)  # fmt: skip
_FENCED: Final = _Refusal(
    "producer_fenced", "another producer has taken over its transactional id, or its epoch is old",
    "Make sure that each transactional id is used by one process only; restart the fenced one.",
    _CLIENT,
)  # fmt: skip
_TOO_LARGE: Final = _Refusal(
    "record_too_large", "a batch is larger than max.message.bytes of the topic",
    "Send smaller batches, or raise max.message.bytes: vdl config set.", _CLIENT,
)  # fmt: skip
_ORDER: Final = _Refusal(
    "out_of_order", "a sequence number is not the next one of its producer",
    "Restart the producer; look for batches that it gave up before.", _CLIENT,
)  # fmt: skip
_BAD: Final = _Refusal(
    "bad_batch", "a batch breaks a rule of the topic or of the format",
    "Correct the client; the event has its name and the error.", _CLIENT,
)  # fmt: skip
_REFUSALS: Final = {
    "MESSAGE_TOO_LARGE": _TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": _TOO_LARGE,
    "NOT_ENOUGH_REPLICAS": _TOO_FEW,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _TOO_FEW,
    "KAFKA_STORAGE_ERROR": _Refusal(
        "disk_full", "the disk of the leader is full", "Make room on the disk.", "disk_full"
    ),
    "REQUEST_TIMED_OUT": _Refusal(
        "not_acknowledged", "no majority acknowledged in time",
        "Look at the links and disks of the replicas: vdl explain cluster.", "no_leader",
    ),
    "NOT_LEADER_OR_FOLLOWER": _Refusal(
        "not_leader", "clients wrote to a server that does not lead the partition",
        "Nothing, if it ends within seconds: clients look for the new leader. Otherwise check that "
        "they reach all advertised addresses.", "leader_changed",
    ),
    "INVALID_PRODUCER_EPOCH": _FENCED,
    "PRODUCER_FENCED": _FENCED,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": _ORDER,
    "UNKNOWN_PRODUCER_ID": _ORDER,
}  # fmt: skip


def explain_partition(facts: Facts, topic: str, partition: int) -> list[Finding]:
    """Return why a partition takes no writes; that nothing is wrong if it does."""
    name = f"{topic}-{partition}"
    missing = missing_partition(facts, topic, partition)
    if missing is not None:
        return [missing]
    led = facts.leader_of(name)
    if led is None:
        return [_leaderless(facts, name)]
    server_id, status = led
    found = [*_of_leader(facts, name, server_id), *_of_copies(facts, name, server_id, status)]
    kinds = {one.kind for one in found}
    found += [one for one in _refusals(facts, name) if one.kind not in kinds]
    found += _throttles(facts)
    if not any(one.is_wrong for one in found):
        count = len(status.in_sync) or 1
        found.insert(
            0,
            Finding(
                NOTHING_WRONG,
                f"Nothing is wrong: {name} takes writes.",
                f"Server {server_id} leads it in term {status.term}, and {count} of "
                f"{len(status.voters)} replicas are in sync.",
                "Nothing.",
                "look",
                server=server_id,
                is_wrong=False,
            ),
        )
    return found


def missing_partition(facts: Facts, topic: str, partition: int) -> Finding | None:
    """Return a finding if the partition does not exist."""
    name = f"{topic}-{partition}"
    if name in facts.replicas or facts.replicas_of(name):
        return None
    deleted = [seen for seen in facts.events("partition_deleted") if seen.text("partition") == name]
    topics = {known.rpartition("-")[0] for known in facts.replicas}
    if topic in topics:
        count = sum(known.rpartition("-")[0] == topic for known in facts.replicas)
        return Finding(
            "unknown_partition",
            f"There is no partition {name}.",
            f"Topic {topic} has {count} partition{'' if count == 1 else 's'}, numbered from 0.",
            "Check the number, or add partitions: vdl topic alter.",
            "topic_unknown",
        )
    if deleted:
        return Finding(
            "topic_deleted",
            f"Topic {topic} does not exist any more.",
            f"It was deleted at {clock_text(deleted[0].last_ms)}.",
            "Stop its clients, or create the topic anew: vdl topic create.",
            "topic_unknown",
            deleted,
        )
    near = get_close_matches(topic, topics, n=1)
    return Finding(
        "unknown_topic",
        f"There is no topic {topic}.",
        "No server has it, or you may not see it." + (f" Did you mean {near[0]}?" if near else ""),
        "Check the name, or create the topic: vdl topic create.",
        "topic_unknown",
        [one for one in facts.events("topic_unknown") if one.text("topic") == topic],
    )


def _leaderless(facts: Facts, name: str) -> Finding:
    """Return why a partition has no leader."""
    summary = f"{name} takes no writes: it has no leader."
    servers = list(facts.replicas.get(name, ())) or sorted(facts.replicas_of(name))
    gone = [one for one in servers if one in facts.unreachable]
    evidence = of_partition(facts, name, "resigned", "isr_shrunk")
    isolated = [one.id for one in facts.servers if one.has("no_quorum")]
    if 2 * len(gone) >= len(servers):
        return Finding(
            "no_majority",
            summary,
            f"{listed(gone).capitalize()} of its {len(servers)} replicas "
            f"{'does' if len(gone) == 1 else 'do'} not answer, and a majority must.",
            f"Start {listed(gone)}, or let {'it' if len(gone) == 1 else 'them'} continue.",
            "no_leader",
            evidence,
            server=gone[0],
        )
    if isolated:
        return Finding(
            "no_quorum",
            summary,
            f"{listed(isolated).capitalize()} cannot reach a majority of the servers.",
            "Mend the network between the servers: vdl status shows the links.",
            "no_quorum",
            evidence + facts.events("quorum_lost"),
            server=isolated[0],
        )
    return Finding(
        "no_leader", summary, "An election is under way, or its replicas cannot lead.",
        "Ask again in ten seconds; then read the page.", "no_leader", evidence,
    )  # fmt: skip


def _of_leader(facts: Facts, name: str, server_id: int) -> Iterator[Finding]:
    """Yield problems of the leader's server that keep it from taking writes."""
    server = facts.server(server_id)
    if server is None:
        return
    for kind, event, words, step in (
        ("no_quorum", "quorum_lost", "it is not connected to a majority of the servers",
         "Mend the network between the servers: vdl status shows the links."),
        ("disk_full", "disk_full", "its disk is full",
         "Make room on the disk, or reduce retention."),
        ("flush_stalled", "flush_stalled", "a write to a segment does not return",
         "Look at the disk: dmesg, iostat."),
        ("late_for_long", "late_for_long", "it answers too late",
         "Take load from it, or give it more processor time."),
        ("overloaded", "overloaded", "it has more work than it can do",
         "Take load from it, or give it more processor time."),
    ):  # fmt: skip
        problem = server.has(kind)
        if problem is not None:
            seen = [one for one in facts.events(event) if one.server == server_id]
            yield Finding(
                kind, f"{name} takes writes badly or not at all.",
                f"Server {server_id} leads it, and {words}: {problem.text}.", step, kind, seen,
                server=server_id,
            )  # fmt: skip


def _of_copies(facts: Facts, name: str, server_id: int, status: GroupStatus) -> Iterator[Finding]:
    """Yield a finding if replicas are not in sync."""
    if not status.in_sync_min:
        return
    wanted = facts.replicas.get(name) or sorted(map(server_of, status.voters))
    missing = [one for one in wanted if one not in status.in_sync]
    if not missing:
        return
    evidence = [
        seen
        for seen in of_partition(facts, name, "isr_shrunk")
        if seen.number("replica") in missing
    ]
    causes = []
    for one in missing:
        left = next((seen for seen in evidence if seen.number("replica") == one), None)
        why = "it does not answer" if one in facts.unreachable else "the reason is not known"
        if left is not None:
            why = reason_of(OUT_OF_SYNC, left)
        causes.append(f"the replica on server {one} is not in sync: {why}")
    cause = "; ".join(causes).capitalize() + "."
    step = f"Bring {listed(missing)} back: vdl explain server {missing[0]}."
    count = f"{len(status.in_sync)} of {len(wanted)} replicas are in sync"
    if len(status.in_sync) < status.in_sync_min:
        yield Finding(
            "below_min_isr",
            f"{name} refuses writes with acks=all: {count}, and min.insync.replicas is "
            f"{status.in_sync_min}.",
            cause, step, "under_min_isr", evidence, server=missing[0],
        )  # fmt: skip
    else:
        yield Finding(
            "under_replicated", f"{name} takes writes, but only {count}.", cause, step,
            "under_replicated", evidence, server=missing[0],
        )  # fmt: skip


def _refusals(facts: Facts, name: str) -> Iterator[Finding]:
    """Yield one finding for each kind of recent refusals of batches."""
    by_kind: dict[str, list[Seen]] = {}
    known: dict[str, _Refusal] = {}
    for seen in of_partition(facts, name, "produce_refused"):
        refusal = _REFUSALS.get(seen.text("error"), _BAD)
        by_kind.setdefault(refusal.kind, []).append(seen)
        known[refusal.kind] = refusal
    for kind, evidence in by_kind.items():
        last, refusal = evidence[0], known[kind]
        count = sum(seen.count for seen in evidence)
        age_ms = facts.now_ms - last.last_ms
        is_wrong = age_ms <= _UPDATE_LATE_MS if kind == "not_leader" else facts.is_recent(last)
        said = f" ({last.text('message')})" if last.text("message") else ""
        yield Finding(
            kind,
            f"{name} refused {count} batch{'' if count == 1 else 'es'}: {refusal.words}.",
            f"{last.text('error')}{said}, last at {clock_text(last.last_ms)} for "
            f"{last.text('client')}.",
            refusal.next, refusal.page, evidence, is_wrong=is_wrong,
        )  # fmt: skip


def _throttles(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if producers were throttled recently: of any topic, as no more is known."""
    seen = [
        one
        for one in facts.events("throttled")
        if one.text("api") == "Produce" and facts.is_recent(one)
    ]
    if seen:
        yield Finding(
            "throttled",
            f"Producers are throttled: {seen[0].text('client')}.",
            f"The quota {seen[0].text('quota')} was exceeded; a request waited up to "
            f"{seen[0].number('throttle_ms')} ms.",
            "Raise the quota, or send less: vdl quota list.",
            "producer_refused",
            seen,
        )


# --- the leader -----------------------------------------------------------------------------------
def explain_leader(facts: Facts, topic: str, partition: int) -> list[Finding]:
    """Return why a partition is led by its present leader."""
    name = topic if topic == "catalog" else f"{topic}-{partition}"
    if name not in facts.replicas and not facts.replicas_of(name):
        missing = missing_partition(facts, topic, partition)
        assert missing is not None, name
        return [missing]
    led = facts.leader_of(name)
    if led is None:
        return [_leaderless(facts, name)]
    server_id, status = led
    history = of_partition(facts, name, "elected", "leadership_transferred", "resigned")
    elections = [seen for seen in history if seen.event == "elected"]
    recent = [seen for seen in elections if facts.is_recent(seen)]
    found = []
    if len(recent) >= FLAPS_MIN:
        found.append(
            Finding(
                "leader_flaps", f"The leader of {name} changes again and again.",
                f"It was elected {len(recent)} times in the last five minutes.",
                "Look at links, disks and load of its servers: vdl explain cluster.",
                "leader_changed", recent,
            )
        )  # fmt: skip
    present = next((one for one in elections if one.number("term") == status.term), None)
    leads = f"Server {server_id} leads {name}"
    if present is None:
        found.append(
            Finding(
                "leader_reason_unknown", f"{leads} in term {status.term}.",
                "The event of its election is not kept any more.", "Nothing.", "leader_changed",
                history, server=server_id, is_wrong=False,
            )
        )  # fmt: skip
        return found
    since = f"{leads} since {clock_text(present.first_ms)} (term {status.term})"
    kind, cause, step = _reason(facts, name, present)
    evidence = [present, *(one for one in history if one is not present)]
    found.append(
        Finding(kind, f"{since}.", cause, step, "leader_changed", evidence, is_wrong=False)
    )
    return found


def _reason(facts: Facts, name: str, present: Seen) -> tuple[str, str, str]:
    """Return the kind, the cause and the next step for an election."""
    reason, before = present.text("reason"), present.number("before")
    if reason == "transfer":
        for seen in of_partition(facts, name, "leadership_transferred"):
            is_near = abs(present.first_ms - seen.last_ms) <= _TRANSFER_MS
            if seen.number("to") == present.server and is_near:
                why = seen.text("reason")
                words = f"Server {seen.server} handed it over: {reason_of(TRANSFERRED, seen)}."
                is_planned = why in ("operator", "preferred_leader", "replica_leaves", "stopping")
                step = "Nothing." if is_planned else f"vdl explain server {seen.server}."
                return f"moved_{why}", words, step
        return (
            "moved",
            f"Server {before} handed it over, for a reason that is not known.",
            "Nothing.",
        )
    words = reason_of(ELECTED, present)
    cause = f"{words[:1].upper()}{words[1:]}."
    if reason == "no_leader":
        return "first_leader", "The partition, or its servers, had just started.", "Nothing."
    late = [
        one
        for one in facts.events("overloaded", "late_for_long", "disk_hung", "flush_stalled")
        if one.server == before and abs(one.last_ms - present.first_ms) <= _TRANSFER_MS
    ]
    if late:
        cause += f" It had reported {late[0].event}."
    return f"leader_{reason}", cause, f"Look at server {before}: vdl explain server {before}."


def of_partition(facts: Facts, name: str, *events: str) -> list[Seen]:
    """Return the events of a partition with one of these names, the latest first."""
    return [seen for seen in facts.events(*events) if seen.text("partition") == name]
