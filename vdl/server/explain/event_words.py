"""One sentence for each event, for people.

Does not depend on answers.
"""

from __future__ import annotations

from typing import Final

from vdl.server.explain.facts import Seen

ELECTED: Final = {
    "process_ended": "the process of server {before} ended",
    "gave_up": "server {before} gave up the leadership, because it heard no majority",
    "timeout": "server {before} was silent for an election timeout",
    "transfer": "server {before} transferred the leadership",
    "no_leader": "no leader was known",
}
TRANSFERRED: Final = {
    "operator": "an operator asked for it",
    "preferred_leader": "the preferred leader is back",
    "stopping": "the server stops",
    "disk_full": "its disk is full",
    "flush_stalled": "a write to its disk does not return",
    "disk_hung": "its disk does not finish a write to the journal",
    "late_for_long": "its event loop has been late for a minute",
    "not_serving": "it does not serve clients",
    "replica_leaves": "its replica is being moved away",
}
OUT_OF_SYNC: Final = {
    "process_ended": "its process ended",
    "silent": "it was silent for too long",
    "behind": "it was behind for too long",
    "no_voter": "it is not a voter",
}
REBALANCED: Final = {
    "member_joined": "{member} joined",
    "member_rejoined": "{member} asked for a new assignment",
    "member_left": "{member} left",
    "member_timed_out": "{member} was removed, because it was too late",
    "static_member_replaced": "static member {member} was replaced by a new process",
    "subscription_changed": "{member} changed its subscription",
    "topics_changed": "subscribed topics changed",
    "protocol_changed": "the group changed over to another protocol",
}
TIMED_OUT: Final = {
    "session_timeout": "sent no heartbeat within its session timeout",
    "did_not_join": "did not rejoin in time",
    "did_not_sync": "joined, but did not ask for its assignment",
    "did_not_revoke": "did not give up partitions in time",
}
_SENTENCES: Final = {
    "isr_grown": "The replica of {partition} on server {replica} is in sync again.",
    "resigned": "Server {server} stopped leading {partition} ({reason}).",
    "produce_refused": "Batches for {partition} were refused with {error}, last of {client}.",
    "partition_deleted": "{partition} was deleted.",
    "topic_unknown": "{client} wrote to topic {topic}, which does not exist.",
    "throttled": "{client} was throttled by {quota} for up to {throttle_ms} ms.",
    "producer_fenced": "{client} used transactional id {transactional_id}, which another has.",
    "member_fenced": "A new process took over from static member {instance}.",
    "disk_hung": "The disk did not finish a write to the journal.",
    "slow_request": (
        "{api} of {client} took {total_ms} ms: queue {queue_ms}, work {work_ms}, wait {wait_ms}, "
        "send {send_ms}."
    ),
}


def reason_of(table: dict[str, str], seen: Seen, field: str = "reason") -> str:
    """Return the words of a table for the reason of an event."""
    reason = seen.text(field)
    return _filled(table.get(reason, reason), seen)


def sentence(seen: Seen) -> str:
    """Return the event as a sentence."""
    match seen.event:
        case "elected":
            reason = reason_of(ELECTED, seen)
            return (
                _filled("Server {server} leads {partition} in term {term}: ", seen) + f"{reason}."
            )
        case "leadership_transferred":
            why = reason_of(TRANSFERRED, seen)
            start = "Server {server} transferred {partition} to server {to}: "
            return _filled(start, seen) + f"{why}."
        case "isr_shrunk":
            start = "The replica of {partition} on server {replica} left the in-sync replicas: "
            return _filled(start, seen) + f"{reason_of(OUT_OF_SYNC, seen)}."
        case "rebalance_began":
            return f"Group {seen.text('group')} rebalanced: {reason_of(REBALANCED, seen, 'cause')}."
        case "rebalance_ended":
            seconds = float(seen.fields.get("seconds") or 0)
            start = f"The rebalance took {seconds:.1f} s"
            return _filled(start + "; {last} came last.", seen)
        case "member_timed_out":
            return f"{seen.text('member')} {reason_of(TIMED_OUT, seen)}."
    known = _SENTENCES.get(seen.event)
    if known is not None:
        return _filled(known, seen)
    fields = ", ".join(f"{name} {value}" for name, value in seen.fields.items())
    return f"{seen.event} ({fields})." if fields else f"{seen.event}."


def _filled(text: str, seen: Seen) -> str:
    """Return a text with the fields of an event. Values may have any character, also braces."""
    parts = text.split("{")
    found = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}")
        value = str(seen.server) if name == "server" else seen.text(name)
        found += [value or "?", rest]
    return "".join(found)
