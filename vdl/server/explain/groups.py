"""Why a consumer group rebalances, and why it is behind.

Does not depend on how facts are collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rpc.admin import ConsumerGroup, GroupMember
from vdl.server.explain.answer import NOTHING_WRONG, Finding
from vdl.server.explain.event_words import REBALANCED, TIMED_OUT, reason_of
from vdl.server.explain.facts import Facts, Seen, clock_text

REPEATS_MIN: Final = 3
"""Rebalances within `RECENT_MS` from which a group rebalances too often."""
SLOW_SECONDS: Final = 5.0
"""Duration from which a rebalance is slow."""
STUCK_MS: Final = 10_000
"""Time without a commit after which a consumer with records left is stuck: twice the usual interval
of automatic commits."""
LAG_MIN: Final = 1_000
"""Records from which a consumer that commits is too slow."""
_PAGE: Final = "rebalancing"
_LAG_PAGE: Final = "consumer_lag"


def explain_group(facts: Facts, name: str) -> list[Finding]:
    """Return why a group rebalances; that nothing is wrong if it does not."""
    known = facts.group(name)
    if known is None:
        return [_missing_group(facts, name)]
    server_id, group = known
    history = _history(facts, name)
    found = [*_present(facts, group, history, server_id), *_past(facts, name, history)]
    if not any(one.is_wrong for one in found):
        found.insert(0, _well(group, history, server_id))
    return found


def _history(facts: Facts, name: str) -> list[Seen]:
    return [
        seen
        for seen in facts.events(
            "rebalance_began", "rebalance_ended", "member_timed_out", "member_fenced"
        )
        if seen.text("group") == name
    ]


def _missing_group(facts: Facts, name: str) -> Finding:
    coordinator = facts.coordinator_of(name)
    if coordinator and facts.leader_of(coordinator) is None:
        return Finding(
            "no_coordinator", f"Group {name} has no coordinator now.",
            f"{coordinator} has no leader that answers.",
            f"vdl explain leader coordinator {coordinator.rpartition('-')[2]}.", "no_leader",
        )  # fmt: skip
    return Finding(
        "unknown_group", f"There is no group {name}.",
        "It has no members and no committed offsets, or its name is another.",
        "Check the name: vdl group list.", _PAGE, _history(facts, name),
    )  # fmt: skip


def _present(
    facts: Facts, group: ConsumerGroup, history: list[Seen], server_id: int
) -> Iterator[Finding]:
    """Yield what is so now."""
    began = [seen for seen in history if seen.event == "rebalance_began"]
    if group.state not in ("Stable", "Empty"):
        awaited = [one for one in group.members if one.is_awaited]
        why = f"It began because {reason_of(REBALANCED, began[0], 'cause')}." if began else ""
        waits = "; ".join(
            f"it waits for {_name(one)}, silent for {_seconds(one.silent_ms)}"
            for one in awaited[:3]
        )
        yield Finding(
            "rebalancing", f"Group {group.name} is rebalancing ({group.state}).",
            f"{why} {waits.capitalize()}{'.' if waits else ''}".strip(),
            "Wait for the members that are named, or end them; a member that processes records for "
            "long rejoins late.", _PAGE, began or history, server=server_id,
        )  # fmt: skip
    for member in silent(group):
        yield Finding(
            "member_silent",
            f"{_name(member)} of group {group.name} is silent.",
            f"It sent no heartbeat for {_seconds(member.silent_ms)}; after "
            f"{_seconds(member.session_timeout_ms)} it is removed, and the group rebalances.",
            _look_at(member), _PAGE, history, server=server_id,
        )  # fmt: skip


def silent(group: ConsumerGroup) -> list[GroupMember]:
    """Return the members without a heartbeat for more than half of their session. Members that wait
    for others send none."""
    if group.state not in ("Stable", "Reconciling"):
        return []
    return [
        one
        for one in group.members
        if one.session_timeout_ms and one.silent_ms * 2 > one.session_timeout_ms
    ]


def _past(facts: Facts, name: str, history: list[Seen]) -> Iterator[Finding]:
    """Yield what happened lately."""
    recent = [seen for seen in history if facts.is_recent(seen)]
    for seen in recent:
        if seen.event == "member_timed_out":
            reason = seen.text("reason")
            step = {
                "session_timeout": "Look for a dead or paused process, a long pause of its garbage "
                "collector or a cut link; or raise session.timeout.ms.",
                "did_not_join": "Poll more often, process fewer records at a time "
                "(max.poll.records), or raise max.poll.interval.ms.",
            }.get(reason, "Look at the log of that client.")
            yield Finding(
                f"member_{'timed_out' if reason == 'session_timeout' else reason}",
                f"Group {name} lost {seen.text('member')} at {clock_text(seen.last_ms)}.",
                f"It {reason_of(TIMED_OUT, seen)}.", step, _PAGE,
                [seen, *(one for one in recent if one is not seen)],
            )  # fmt: skip
            break
    began = [seen for seen in recent if seen.event == "rebalance_began"]
    count = sum(seen.count for seen in began)
    if count >= REPEATS_MIN:
        most = max(began, key=lambda seen: seen.count)
        members = {seen.text("member") for seen in began}
        causes = sorted({reason_of(REBALANCED, seen, "cause") for seen in began})
        yield Finding(
            "rebalances_repeatedly",
            f"Group {name} rebalanced {count} times in the last five minutes.",
            f"{len(members)} member{'' if len(members) == 1 else 's'} caused it: "
            f"{'; '.join(causes[:4])}.",
            f"Find out why {most.text('member')} starts and ends; use group.instance.id for "
            "members that restart.", _PAGE, began,
        )  # fmt: skip
    fenced = [seen for seen in recent if seen.event == "member_fenced"]
    if fenced:
        yield Finding(
            "member_fenced",
            f"Static member {fenced[0].text('instance')} of group {name} was replaced.",
            "Another process joined with the same group.instance.id.",
            "If that was no restart, give each process its own group.instance.id.", _PAGE, fenced,
            is_wrong=sum(seen.count for seen in fenced) > 1,
        )  # fmt: skip
    slow = [
        seen
        for seen in recent
        if seen.event == "rebalance_ended"
        and float(seen.fields.get("seconds") or 0) >= SLOW_SECONDS
    ]
    if slow:
        yield Finding(
            "slow_rebalance",
            f"A rebalance of group {name} took {float(slow[0].fields['seconds']):.0f} s.",
            f"{slow[0].text('last')} came last.",
            "Poll more often in that client, or process fewer records at a time.", _PAGE, slow,
        )  # fmt: skip


def _well(group: ConsumerGroup, history: list[Seen], server_id: int) -> Finding:
    began = [seen for seen in history if seen.event == "rebalance_began"]
    last = "No rebalance is known."
    if began:
        why = reason_of(REBALANCED, began[0], "cause")
        last = f"The last rebalance was at {clock_text(began[0].last_ms)}: {why}."
    if group.state == "Empty":
        return Finding(
            "no_members", f"Group {group.name} has no members.", last,
            "Start a consumer, if one should run.", _PAGE, history, server=server_id,
            is_wrong=False,
        )  # fmt: skip
    count = f"{group.members_count} member{'' if group.members_count == 1 else 's'}"
    return Finding(
        NOTHING_WRONG, f"Nothing is wrong: group {group.name} is stable, with {count}.", last,
        "Nothing.", _PAGE, began, server=server_id, is_wrong=False,
    )  # fmt: skip


# --- lag ------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Behind:
    """A partition of a group with records left."""

    name: str
    lag: int
    committed_ms: int
    """Time of the last commit; 0: never."""
    member: GroupMember | None


def explain_lag(facts: Facts, name: str, topic: str) -> list[Finding]:
    """Return why a group is behind, in one topic or in all; that nothing is wrong if it is not."""
    known = facts.group(name)
    if known is None:
        return [_missing_group(facts, name)]
    server_id, group = known
    behind, leaderless = _behind(facts, group, topic)
    found = [
        Finding(
            "no_leader", f"Group {name} cannot read {one}.", "The partition has no leader.",
            f"vdl explain partition {one.rpartition('-')[0]} {one.rpartition('-')[2]}.",
            "no_leader",
        )
        for one in leaderless[:1]
    ]  # fmt: skip
    if behind:
        found.append(_why_behind(facts, group, behind, server_id))
    if not any(one.is_wrong for one in found):
        lag = sum(one.lag for one in behind)
        found.insert(
            0,
            Finding(
                NOTHING_WRONG,
                f"Nothing is wrong: group {name} is "
                + (f"{lag} records behind, and reads on." if lag else "not behind."),
                f"It has committed offsets in {group.offsets_count} "
                f"partition{'' if group.offsets_count == 1 else 's'}.",
                "Nothing.", _LAG_PAGE, server=server_id, is_wrong=False,
            ),
        )  # fmt: skip
    return found


def _behind(facts: Facts, group: ConsumerGroup, topic: str) -> tuple[list[_Behind], list[str]]:
    """Return the partitions with records left, most first, and those without a leader."""
    members = {place: member for member in group.members for place in member.partitions}
    committed = {f"{one.topic}-{one.partition}": one for one in group.offsets}
    found, leaderless = [], []
    for name in sorted(committed.keys() | members.keys()):
        if topic and name.rpartition("-")[0] != topic:
            continue
        led = facts.leader_of(name)
        if led is None:
            leaderless.append(name)
            continue
        own = committed.get(name)
        status = led[1]
        start = status.log_start_offset if own is None else own.offset
        if status.high_watermark > start:
            found.append(
                _Behind(
                    name, status.high_watermark - start, 0 if own is None else own.committed_ms,
                    members.get(name),
                )
            )  # fmt: skip
    found.sort(key=lambda one: one.lag, reverse=True)
    return found, leaderless


def _why_behind(
    facts: Facts, group: ConsumerGroup, behind: list[_Behind], server_id: int
) -> Finding:
    lag, worst = sum(one.lag for one in behind), behind[0]
    summary = f"Group {group.name} is {lag} records behind, most in {worst.name} ({worst.lag})."
    history = _history(facts, group.name)

    def because(
        kind: str, cause: str, step: str, evidence: list[Seen], *, is_wrong: bool = True
    ) -> Finding:
        return Finding(
            kind, summary, cause, step, _LAG_PAGE, evidence, server=server_id, is_wrong=is_wrong
        )

    if group.state == "Empty":
        last = max(one.committed_ms for one in behind)
        since = f" It committed last at {clock_text(last)}." if last else ""
        lost = [one for one in history if one.event == "member_timed_out"]
        return because(
            "no_consumer", f"The group has no members, so no consumer reads.{since}",
            "Start a consumer of the group.", lost or history,
        )  # fmt: skip
    if group.state not in ("Stable", "Reconciling"):
        return because(
            "rebalancing", "The group is rebalancing, and its consumers wait.",
            f"vdl explain group {group.name}.", history,
        )  # fmt: skip
    member = worst.member
    if member is None:
        return because(
            "not_assigned", f"No member has {worst.name}, as far as is known.",
            "Check which topics the members subscribe to: vdl group describe.", history,
        )  # fmt: skip
    if member in silent(group):
        return because(
            "member_silent",
            f"{_name(member)} has it, and sent no heartbeat for {_seconds(member.silent_ms)}.",
            _look_at(member), history,
        )  # fmt: skip
    throttled = [
        seen
        for seen in facts.events("throttled")
        if seen.text("client") == f"{member.client_id} at {member.host}"
        and seen.text("api") == "Fetch"
        and facts.is_recent(seen)
    ]
    if throttled:
        return because(
            "throttled",
            f"{_name(member)} is throttled by the quota {throttled[0].text('quota')}, up to "
            f"{throttled[0].number('throttle_ms')} ms for a request.",
            "Raise the quota: vdl quota list.", throttled,
        )  # fmt: skip
    server = facts.server(server_id)
    ahead_ms = 0
    if server is not None and server.events is not None:
        ahead_ms = server.events.now_ms - facts.now_ms
    changed_ms = max(worst.committed_ms, group.changed_ms)
    idle_ms = facts.now_ms + ahead_ms - changed_ms
    if idle_ms > STUCK_MS:
        said = "has never committed" if not worst.committed_ms else "has not committed"
        return because(
            "consumer_stuck",
            f"{_name(member)} sends heartbeats, but {said} an offset for {_seconds(idle_ms)}: it "
            "does not poll, its processing hangs, or it does not commit.",
            f"Look at the threads of {member.client_id} on {member.host}.", history,
        )  # fmt: skip
    return because(
        "too_slow", f"{_name(member)} reads and commits, but slower than producers write.",
        "Add consumers, up to the number of partitions, or make processing faster.", history,
        is_wrong=lag >= LAG_MIN,
    )  # fmt: skip


def _name(member: GroupMember) -> str:
    return f"{member.client_id} at {member.host}"


def _look_at(member: GroupMember) -> str:
    place = f"{member.client_id} on {member.host}"
    return f"Look at the process of {place}: it is dead, paused or cut off."


def _seconds(time_ms: int) -> str:
    return "an unknown time" if time_ms < 0 else f"{time_ms / 1_000:.0f} s"
