"""`explain` says why, what it does not know, and whose clock an event is by."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rpc.admin import (
    CommittedOffset,
    ConsumerGroup,
    Dropped,
    Event,
    GroupMember,
    GroupStatus,
    Role,
    ServerEvents,
    ServerStatus,
)
from vdl.commands.explain import lines_of, shown
from vdl.events import NOTED
from vdl.server.explain import event_words
from vdl.server.explain.event_words import sentence
from vdl.server.explain.facts import Facts, Seen, ServerFacts
from vdl.server.explain.questions import About, Question, explain

ROOT = Path(__file__).resolve().parents[3]
NOW = 1_750_000_000_000
DAY_MS = 86_400_000


def event(name: str, *, age_ms: int = 1_000, count: int = 1, **fields: Any) -> Event:
    at_ms = NOW - age_ms
    return Event(name, "", at_ms, at_ms, count, json.dumps(fields))


def replica(server: int, *, leader: int = 1, name: str = "orders-0", **more: Any) -> GroupStatus:
    role = Role.LEADER if server == leader else Role.FOLLOWER
    voters = [number << 16 | 1 for number in (1, 2, 3)]
    status = GroupStatus(9, name, server << 16 | 1, role, 4, leader << 16 | 1, voters=voters)
    if server == leader:
        status.in_sync, status.in_sync_min = [1, 2, 3], 2
    for field, value in more.items():
        setattr(status, field, value)
    return status


def server(number: int, *events: Event, leader: int = 1, **more: Any) -> ServerFacts:
    problems = more.pop("problems", [])
    found = ServerEvents(number, NOW, NOW - DAY_MS, list(events), **more)
    status = ServerStatus(number, uptime_ms=DAY_MS, problems=problems)
    status.groups = [replica(number, leader=leader)]
    return ServerFacts(number, f"h{number}", "", status, found)


def facts(*servers: ServerFacts) -> Facts:
    return Facts(NOW, list(servers), {"orders-0": (1, 2, 3)})


def of_partition(known: Facts) -> dict[str, Any]:
    return explain(Question(About.PARTITION, topic="orders"), known)


def sound() -> Facts:
    return facts(server(1), server(2), server(3))


@pytest.mark.parametrize(
    "question",
    [
        Question(About.PARTITION, topic="orders"),
        Question(About.SLOW),
        Question(About.SERVER, server=1),
        Question(About.CLUSTER),
    ],
    ids=lambda question: question.about.value,
)
def test_sound_cluster_has_nothing_wrong_and_nothing_unknown(question: Question) -> None:
    found = explain(question, sound())
    assert (found["kind"], found["ok"], found["unknown"]) == ("nothing_wrong", True, [])


@pytest.mark.parametrize(
    "kind", ["no_quorum", "disk_full", "flush_stalled", "late_for_long", "overloaded"]
)
def test_problem_of_the_leader_is_the_answer(kind: str) -> None:
    known = facts(server(1, problems=[f"{kind}: so it is"]), server(2), server(3))
    found = of_partition(known)
    assert (found["kind"], found["server"], found["ok"]) == (kind, 1, False)
    elsewhere = facts(server(1), server(2, problems=[f"{kind}: so it is"]), server(3))
    assert of_partition(elsewhere)["ok"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("MESSAGE_TOO_LARGE", "record_too_large"),
        ("NOT_ENOUGH_REPLICAS", "below_min_isr"),
        ("KAFKA_STORAGE_ERROR", "disk_full"),
        ("REQUEST_TIMED_OUT", "not_acknowledged"),
        ("NOT_LEADER_OR_FOLLOWER", "not_leader"),
        ("INVALID_PRODUCER_EPOCH", "producer_fenced"),
        ("OUT_OF_ORDER_SEQUENCE_NUMBER", "out_of_order"),
        ("INVALID_TIMESTAMP", "bad_batch"),
    ],
)
def test_refusals_are_explained_by_their_error_as_long_as_they_are_recent(
    error: str, kind: str
) -> None:
    refused = {"partition": "orders-0", "error": error, "client": "app at h"}
    found = of_partition(facts(server(1, event("produce_refused", count=7, **refused))))
    assert (found["kind"], found["ok"], found["evidence"][0]["count"]) == (kind, False, 7)
    assert "app at h" in found["cause"]
    old = of_partition(facts(server(1, event("produce_refused", age_ms=400_000, **refused))))
    assert (old["kind"], old["ok"], old["also"][0]["kind"]) == ("nothing_wrong", True, kind)


def test_missing_replicas_are_named_with_their_reasons() -> None:
    left = {"partition": "orders-0", "in_sync": "1"}
    known = facts(
        server(
            1,
            event("isr_shrunk", replica=2, reason="silent", **left),
            event("isr_shrunk", replica=3, reason="behind", **left),
        ),
        server(2),
        server(3),
    )
    assert known.servers[0].status is not None
    status = known.servers[0].status.groups[0]
    status.in_sync = [1]
    found = of_partition(known)
    assert found["kind"] == "below_min_isr"
    assert "server 2 is not in sync: it was silent for too long" in found["cause"]
    assert "server 3 is not in sync: it was behind for too long" in found["cause"]
    status.in_sync = [1, 3]
    assert of_partition(known)["kind"] == "under_replicated"


@pytest.mark.parametrize(
    ("reason", "kind", "says"),
    [
        ("process_ended", "leader_process_ended", "process of server 2 ended"),
        ("timeout", "leader_timeout", "server 2 was silent"),
        ("gave_up", "leader_gave_up", "it heard no majority"),
        ("no_leader", "first_leader", "just started"),
    ],
)
def test_election_is_explained_by_its_reason(reason: str, kind: str, says: str) -> None:
    elected = event("elected", partition="orders-0", term=4, reason=reason, before=2)
    found = explain(Question(About.LEADER, topic="orders"), facts(server(1, elected)))
    assert (found["kind"], found["server"]) == (kind, 1)
    assert says in found["cause"][:1].lower() + found["cause"][1:]


@pytest.mark.parametrize("reason", list(event_words.TRANSFERRED))
def test_transfer_is_explained_by_the_reason_of_the_earlier_leader(reason: str) -> None:
    elected = event("elected", partition="orders-0", term=4, reason="transfer", before=2)
    moved = event("leadership_transferred", partition="orders-0", to=1, reason=reason)
    known = facts(server(1, elected), server(2, moved))
    found = explain(Question(About.LEADER, topic="orders"), known)
    assert found["kind"] == f"moved_{reason}"
    assert found["cause"].startswith("Server 2 handed it over: ")


def test_leader_that_changes_often_is_wrong() -> None:
    elections = [
        event("elected", partition="orders-0", term=term, reason="timeout", before=2)
        for term in (1, 2, 3, 4)
    ]
    found = explain(Question(About.LEADER, topic="orders"), facts(server(1, *elections)))
    assert (found["kind"], found["ok"]) == ("leader_flaps", False)
    assert found["also"][0]["kind"] == "leader_timeout"


def test_what_cannot_be_known_is_said() -> None:
    restarted, dropped = server(1), server(2, dropped=[Dropped("refusal", NOW - 5_000)])
    assert restarted.events is not None
    restarted.events.started_ms = NOW - 60_000
    old = server(3)
    old.events, old.lacks_events = None, "its version keeps none"
    gone = ServerFacts(4, unreachable="connection refused")
    unknown = of_partition(facts(restarted, dropped, old, gone))["unknown"]
    assert [text.partition(" at ")[0] for text in unknown] == [
        "Server 1 was started",
        "Server 2 has dropped events up to 15:06:35Z: there were too many.",
        "Server 3 has no events (its version keeps none).",
        "Server 4 did not answer (connection refused).",
    ]
    assert not any("dropped" in text for text in explain(
        Question(About.SERVER, server=1), facts(dropped)
    )["unknown"])  # fmt: skip


def test_events_of_a_server_with_a_wrong_clock_have_the_right_age() -> None:
    """Times are converted by their age, whatever the server's clock shows."""
    refused = event("produce_refused", partition="orders-0", error="MESSAGE_TOO_LARGE", client="c")
    one = server(1, refused)
    assert one.events is not None
    refused.first_ms, refused.last_ms = refused.first_ms + DAY_MS, refused.last_ms + DAY_MS
    one.events.now_ms += DAY_MS
    one.events.started_ms += DAY_MS
    found = of_partition(facts(one))
    assert found["at_ms"] == NOW - 1_000
    assert not found["ok"]


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("queue_ms", "slow_queue"),
        ("work_ms", "slow_work"),
        ("wait_ms", "slow_replication"),
        ("send_ms", "slow_send"),
    ],
)
def test_slow_request_is_explained_by_its_longest_phase(phase: str, kind: str) -> None:
    slow = event("slow_request", client="c at h", api="Produce", total_ms=900, **{phase: 800})
    hung = event("disk_hung", disk="journal")
    found = explain(Question(About.SLOW), facts(server(1, slow), server(2, hung)))
    assert found["kind"] == kind
    assert ("server 2 reported disk_hung" in found["cause"]) is (phase == "wait_ms")
    other = explain(Question(About.SLOW, api="Metadata"), facts(server(1, slow)))
    assert other["kind"] == "nothing_wrong"


def test_cluster_of_many_partitions_is_explained_in_one_look_at_each() -> None:
    """Ten thousand partitions took minutes when each was looked for among all."""

    class Name(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

    partitions = 200
    servers = [server(1), server(2), server(3)]
    for number, one in enumerate(servers, start=1):
        assert one.status is not None
        one.status.groups = [
            replica(number, leader=1 + p % 3, name=Name(f"orders-{p}")) for p in range(partitions)
        ]
    assert explain(Question(About.CLUSTER), facts(*servers))["ok"]
    assert Name.compared <= 10 * len(servers) * partitions


@pytest.mark.parametrize(("count", "words"), [(1, "1 time."), (2, "2 times.")])
def test_slow_requests_of_a_cluster_are_counted(count: int, words: str) -> None:
    slow = event("slow_request", count=count, client="c at h", api="Produce", total_ms=900)
    [told] = explain(Question(About.CLUSTER), facts(server(1, slow)))["also"]
    assert told["summary"] == f"Requests were slow lately: {words}"


def group(**more: Any) -> ConsumerGroup:
    member = GroupMember("m-1", "app", "h", silent_ms=1_000, session_timeout_ms=45_000,
                         partitions=["orders-0"])  # fmt: skip
    found = ConsumerGroup("g", "classic", "Stable", 3, NOW - DAY_MS, 1, [member])
    found.offsets = [CommittedOffset("orders", 0, 10, NOW - 500)]
    for field, value in more.items():
        setattr(found, field, value)
    return found


def behind(group: ConsumerGroup, *events: Event, lag: int = 5_000) -> dict[str, Any]:
    one = server(1, *events, groups=[group])
    assert one.status is not None
    one.status.groups[0].high_watermark = 10 + lag
    return explain(Question(About.LAG, group="g"), facts(one))


def test_lag_is_explained_by_what_the_consumer_does() -> None:
    assert behind(group(), lag=0)["kind"] == "nothing_wrong"
    assert behind(group(), lag=9)["ok"]
    assert behind(group())["kind"] == "too_slow"
    assert behind(group(state="Empty", members=[]))["kind"] == "no_consumer"
    assert behind(group(state="PreparingRebalance"))["kind"] == "rebalancing"
    assert behind(group(members=[]))["kind"] == "not_assigned"
    old = [CommittedOffset("orders", 0, 10, NOW - 60_000)]
    stuck = behind(group(offsets=old))
    assert stuck["kind"] == "consumer_stuck"
    assert "has not committed an offset for 60 s" in stuck["cause"]
    silent = group(offsets=old)
    silent.members[0].silent_ms = 30_000
    assert behind(silent)["kind"] == "member_silent"
    throttled = {"client": "app at h", "api": "Fetch", "quota": "consumer_byte_rate"}
    assert behind(group(), event("throttled", throttle_ms=9, **throttled))["kind"] == "throttled"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("session_timeout", "member_timed_out"),
        ("did_not_join", "member_did_not_join"),
        ("did_not_sync", "member_did_not_sync"),
        ("did_not_revoke", "member_did_not_revoke"),
    ],
)
def test_lost_member_is_named_with_the_reason(reason: str, kind: str) -> None:
    late = event("member_timed_out", group="g", member="app at h", reason=reason)
    one = server(1, late, groups=[group()])
    found = explain(Question(About.GROUP, group="g"), facts(one))
    assert (found["kind"], found["ok"]) == (kind, False)
    assert "lost app at h" in found["summary"]


def test_long_rebalance_names_the_last_member() -> None:
    ended = event("rebalance_ended", group="g", seconds=12.0, last="late at h", members=2)
    found = explain(Question(About.GROUP, group="g"), facts(server(1, ended, groups=[group()])))
    assert (found["kind"], found["cause"]) == ("slow_rebalance", "late at h came last.")


def test_every_event_has_a_sentence_of_its_own() -> None:
    for name in NOTED:
        text = sentence(Seen(1, name, "", NOW, NOW, 1, {}))
        assert not text.startswith(name) or name == "client_disconnected", name


def test_values_of_events_cannot_name_other_fields() -> None:
    seen = Seen(1, "topic_unknown", "", NOW, NOW, 1, {"client": "{topic}", "topic": "{client}"})
    assert sentence(seen).startswith("{topic} wrote to topic {client},")


PAGES = {
    "consumer_lag", "disk_full", "flush_stalled", "late_for_long", "leader_changed", "no_leader",
    "no_quorum", "overloaded", "peer_unreachable", "producer_refused", "rebalancing",
    "slow_requests", "starting", "topic_unknown", "under_min_isr", "under_replicated",
}  # fmt: skip


def test_pages_of_answers_are_in_the_runbook() -> None:
    text = (ROOT / "deploy" / "runbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (\S+)$", text, re.M)) >= PAGES
    assert "\n## Look\n" in text


def test_page_of_planted_states_names_tests_that_want_the_answer() -> None:
    """At least twenty states are planted on real servers, and the answer of each is checked."""
    page = (ROOT / "docs" / "test.md").read_text(encoding="utf-8")
    table = page.partition("## Explained states")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| .* \| (.*) \| `(test_\w+)` \|$", table, re.M)
    planted = (ROOT / "tests" / "process" / "test_explain.py").read_text(encoding="utf-8")
    tests = dict(re.findall(r"^def (test_\w+)(.*?)(?=^def |^@|^class |\Z)", planted, re.M | re.S))
    answers = [(kind, test) for kinds, test in rows for kind in re.findall(r"`(\w+)`", kinds)]
    assert len(answers) > 20
    assert [(kind, test) for kind, test in answers if f'"{kind}"' not in tests.get(test, "")] == []


def test_texts_of_clients_neither_control_a_terminal_nor_make_lines() -> None:
    hostile = "rogue\x1b[2J\nNothing is wrong: all is well."
    refused = event("produce_refused", partition="orders-0", error="MESSAGE_TOO_LARGE",
                    client=hostile)  # fmt: skip
    found = of_partition(facts(server(1, refused)))
    text = shown(found)
    assert "\x1b" not in text
    assert "rogue\\x1b[2J\\x0aNothing is wrong" in text
    assert len(text.split("\n")) == len(lines_of(found))


def test_lines_for_people_have_the_answer_first_and_what_is_unknown_last() -> None:
    known = facts(server(1, problems=["disk_full: full"]), ServerFacts(2, unreachable="refused"))
    lines = lines_of(of_partition(known))
    assert lines[0] == "orders-0 takes writes badly or not at all."
    assert lines[-1] == "not known: Server 2 did not answer (refused)."
