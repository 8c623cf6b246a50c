"""Audit log: principals, operations and addresses; bounded, and losses are reported."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.kafka.fake_host import World
from tests.unit.kafka.permissions.test_permissions import Do, bind, client, requests, secured
from vdl.kafka.security.audit import (
    FULL_RETRY_MS,
    LEFT_OUT_MAX,
    LINES_MAX,
    LINES_OF_ONE_MAX,
    NAMES_MAX,
    STRANGERS_LINES_MAX,
    AuditLog,
)
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.wire.delete_records import DeleteRecordsPartition, DeleteRecordsTopic
from vdl.state.acls import AclResource

TOPIC = AclResource.TOPIC


def audited(world: World) -> list[dict[str, Any]]:
    """Return the entries that will have been written."""
    lines: list[dict[str, Any]] = []

    def write(line: bytes, *, act_of: str | None) -> None:
        del act_of
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        lines.append(json.loads(line))

    world.context.audit = AuditLog(write, world.clock)
    return lines


def topics_to_trim(count: int) -> Any:
    """Return a DeleteRecords request that names this number of topics."""
    asked = requests(2)[21]
    asked.topics = [
        DeleteRecordsTopic(f"t{number}", [DeleteRecordsPartition(0, 1)]) for number in range(count)
    ]
    return asked


def test_denials_are_noted_each_time_and_what_is_allowed_once() -> None:
    """Entries have principal, address and resource.

    Allowed ones are noted again after permissions change.
    """
    world = secured(bind(Do.DESCRIBE, TOPIC))
    lines = audited(world)
    asker = client(world)
    for _ in range(3):
        asker.ask(2, 5, requests(5)[2])
        asker.ask(21, 2, requests(2)[21])
    told = [(line["event"], line["api"], line["operation"], line["name"]) for line in lines]
    assert told.count(("allowed", "ListOffsets", "DESCRIBE", "t")) == 1
    assert told.count(("denied", "DeleteRecords", "DELETE", "t")) == 3
    (line, *_) = [line for line in lines if line["event"] == "denied"]
    assert line["principal"] == "User:alice"
    assert line["host"] == "10.0.0.1"
    assert line["client"] == "fake"
    assert line["resource"] == "TOPIC"
    assert line["ts"].endswith("Z")


@pytest.mark.parametrize("key", [19, 21, 30, 45])
def test_each_use_of_what_changes_something_is_noted(key: int) -> None:
    """Holds also when the connection was allowed the same before."""
    world = secured()
    lines = audited(world)
    root = client(world, Principal("root"))
    for _ in range(3):
        root.ask(key, 2 if key != 45 else 1, requests(2)[key], 500)
    assert [line["event"] for line in lines].count("allowed") >= 3


def test_topics_left_out_of_a_list_are_no_denials() -> None:
    """The client did not name them."""
    world = secured()
    lines = audited(world)
    asked = requests(9)[3]
    asked.topics = None
    client(world).ask(3, 9, asked)
    assert lines == []


def test_who_asks_too_often_is_counted_and_hides_nobody() -> None:
    """The count follows a second later, also without further events.

    Other clients keep their lines.
    """
    world = secured()
    lines = audited(world)
    eve, bob = client(world, Principal("eve")), client(world, Principal("bob"))
    for _ in range(3 * LINES_OF_ONE_MAX):
        eve.ask(21, 2, requests(2)[21], wait_ms=0.001)
    bob.ask(21, 2, requests(2)[21], wait_ms=0.001)
    written = [line["principal"] for line in lines]
    assert written == ["User:eve"] * LINES_OF_ONE_MAX + ["User:bob"]
    world.run(1_100)
    (left_out,) = lines[LINES_OF_ONE_MAX + 1 :]
    assert left_out["event"] == "left_out"
    assert (left_out["principal"], left_out["of"]) == ("User:eve", "denied")
    assert left_out["count"] == 2 * LINES_OF_ONE_MAX


def test_lines_and_what_is_remembered_of_those_left_out_are_bounded() -> None:
    """Holds for any number of principals; the sum of all is reported."""
    world = World()
    lines = audited(world)
    audit = world.context.audit
    assert audit is not None
    total = LINES_MAX + 3 * LEFT_OUT_MAX
    for number in range(total):
        audit.note("denied", f"User:u{number}", "10.0.0.1", api="Produce")
    assert len(lines) == LINES_MAX
    assert all(line["event"] == "denied" for line in lines)
    world.run(1_100)
    counts = [line["count"] for line in lines[LINES_MAX:]]
    assert len(counts) == LEFT_OUT_MAX + 1
    assert sum(counts) == total - LINES_MAX
    audit.note("denied", "User:u", "10.0.0.1")
    assert lines[-1]["event"] == "denied"
    assert audit.lines_left_out == total - LINES_MAX


def test_closing_tells_what_was_left_out() -> None:
    """A shutdown must not lose the count."""
    world = World()
    lines = audited(world)
    audit = world.context.audit
    assert audit is not None
    for _ in range(LINES_OF_ONE_MAX + 1):
        audit.note("denied", "User:u", "10.0.0.1")
    audit.close()
    assert lines[-1]["count"] == 1


def test_names_that_clients_choose_start_no_line_and_no_field() -> None:
    """Text that looks like a log line inside a name stays inside it."""
    world = secured()
    lines = audited(world)
    name = 't", "event": "allowed"}\n{"event": "allowed'
    asked = requests(5)[2]
    asked.topics[0].name = name
    client(world).ask(2, 5, asked)
    (line,) = lines
    assert (line["event"], line["name"]) == ("denied", name)


def test_one_from_ten_hosts_has_the_lines_of_one() -> None:
    """For each kind of event. A principal from another host has its own lines, however late."""
    world = World()
    lines = audited(world)
    audit = world.context.audit
    assert audit is not None
    for number in range(1_000):
        audit.note("denied", "User:eve", f"10.0.0.{number % 10}")
    assert len(lines) == LINES_OF_ONE_MAX
    for user in range(40):
        for _ in range(LINES_OF_ONE_MAX):
            audit.note("denied", f"User:eve{user}", "10.0.0.1")
    audit.note("logged_in", "User:bob", "10.0.0.2")
    assert len(lines) <= LINES_MAX
    world.run(1_100)
    assert sum(line["count"] for line in lines if line["event"] == "left_out") > 0


def test_strangers_hide_nobody_who_has_shown_who_it_is() -> None:
    """Refused logins come from any number of addresses and have a bound of their own."""
    world = World()
    lines = audited(world)
    audit = world.context.audit
    assert audit is not None
    for number in range(5_000):
        audit.note("login_refused", str(ANONYMOUS), f"10.0.{number % 250}.{number % 7}")
    assert len(lines) == STRANGERS_LINES_MAX
    for user in range(5):
        for _ in range(LINES_OF_ONE_MAX):
            audit.note("denied", f"User:u{user}", "10.0.0.1")
    assert len(lines) == STRANGERS_LINES_MAX + 5 * LINES_OF_ONE_MAX


def test_no_act_is_left_out_however_many_lines_others_have() -> None:
    """No act is omitted for the number of acts either: each line changed something."""
    world = secured()
    lines = audited(world)
    eve, root = client(world, Principal("eve")), client(world, Principal("root"))
    audit = world.context.audit
    assert audit is not None
    for number in range(1_000):
        audit.note("denied", f"User:u{number}", "10.0.0.1")
    for _ in range(5 * LINES_OF_ONE_MAX):
        eve.ask(21, 2, topics_to_trim(1), wait_ms=0.001)
        root.ask(21, 2, topics_to_trim(1), wait_ms=1)
    acts = [line for line in lines if line["principal"] == "User:root"]
    assert len(acts) == 5 * LINES_OF_ONE_MAX
    assert {(line["event"], line["name"]) for line in acts} == {("allowed", "t0")}


def test_what_changes_something_waits_while_it_cannot_be_noted() -> None:
    """It is applied and noted when there is room. Reads do not wait."""
    world = secured()
    lines = audited(world)
    audit = world.context.audit
    assert audit is not None
    is_full = True
    audit.is_full = lambda who, is_super: is_full
    root, other = client(world, Principal("root")), client(world, Principal("root"))
    root.request(19, 2, requests(2)[19])
    before = set(world.host.catalog.topics)
    world.run(1_000)
    assert (root.received, lines, set(world.host.catalog.topics)) == (b"", [], before)
    assert other.ask(2, 5, requests(5)[2]).topics
    is_full = False
    world.run(1_000)
    assert len(root.answers()) == 1
    assert "CreateTopics" in {line["api"] for line in lines}


def test_super_user_acts_on_while_others_have_filled_the_audit_log() -> None:
    """It may be needed to free disk space."""
    world = secured(bind(Do.DELETE, TOPIC))
    audited(world)
    audit = world.context.audit
    assert audit is not None
    audit.is_full = lambda who, is_super: not is_super
    root, alice = client(world, Principal("root")), client(world)
    for asker in (root, alice):
        asker.request(21, 2, topics_to_trim(1))
    world.run(500)
    assert [len(asker.answers()) for asker in (root, alice)] == [1, 0]


def test_act_waits_for_what_its_own_principal_has_queued() -> None:
    """The share checked is the requester's: that of its principal, or of its address."""
    world = secured()
    audited(world)
    audit = world.context.audit
    assert audit is not None
    asked: list[tuple[str, bool]] = []

    def is_full(who: str, *, is_super: bool) -> bool:
        asked.append((who, is_super))
        return False

    audit.is_full = is_full
    for principal in (Principal("root"), Principal("alice"), ANONYMOUS):
        client(world, principal).ask(21, 2, topics_to_trim(1), 100)
    assert [who for who, _ in asked[:2]] == ["User:root", "User:alice"]
    assert asked[2][0] not in {"User:root", "User:alice", str(ANONYMOUS)}
    assert [is_super for _, is_super in asked] == [True, False, False]


def test_those_that_wait_for_the_audit_log_ask_seldom() -> None:
    """They retry once in the time after which the disk is tried again, however many they are."""
    world = secured()
    audited(world)
    audit = world.context.audit
    assert audit is not None
    asked = 0

    def is_full(who: str, *, is_super: bool) -> bool:
        del who, is_super
        nonlocal asked
        asked += 1
        return True

    audit.is_full = is_full
    roots = [client(world, Principal("root")) for _ in range(10)]
    for root in roots:
        root.request(19, 2, requests(2)[19])
    world.run(10 * FULL_RETRY_MS + 10)
    assert asked == 11 * len(roots)
    audit.is_full = lambda who, is_super: False
    world.run(FULL_RETRY_MS)
    assert [len(root.answers()) for root in roots] == [1] * len(roots)


def test_a_request_that_names_many_things_has_one_line() -> None:
    """One line, allowed or denied, with the first names and their number.

    The event is never left out, nor is another event for its sake. A single name is written as
    before.
    """
    world = secured(bind(Do.DELETE, TOPIC, "t7"))
    lines = audited(world)
    client(world, Principal("root")).ask(21, 2, topics_to_trim(100), 500)
    client(world).ask(21, 2, topics_to_trim(100), 500)
    names = [f"t{number}" for number in range(NAMES_MAX + 1)]
    act, denied, trimmed = lines
    assert (act["event"], act["names"], act["count"]) == ("allowed", names[:NAMES_MAX], 100)
    assert (trimmed["event"], trimmed["name"]) == ("allowed", "t7")
    assert "names" not in trimmed
    names.remove("t7")
    assert (denied["event"], denied["names"], denied["count"]) == ("denied", names, 99)
