"""Parts of the console by themselves."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpc.tls_context import ClientAuth, TlsContext, TlsOptions
from tests.hangs import HANG_SECONDS
from tests.unit.security_files import authority
from vdl.config.console import ConsoleOptions, console_listener, console_problem
from vdl.config.settings import ConfigError, parse_config
from vdl.config.values import Address
from vdl.console.child_messages import TAKEN
from vdl.console.cluster_watch import problem_rows
from vdl.console.console import Work
from vdl.console.gateway import Gateway
from vdl.console.groups import ASSIGNED_MAX, ASSIGNED_PER_MEMBER_MAX, Members
from vdl.console.new_record import murmur2
from vdl.console.problems import ConsoleError, LoginEnded
from vdl.console.question import Dead, Question
from vdl.console.record_stream import HEADERS_MAX, Budget, Field, OverBudget, Read, read_records
from vdl.console.samples import Samples, quantile
from vdl.console.sessions import (
    FAILURES_SECONDS,
    IDLE_SECONDS,
    LIFETIME_SECONDS,
    NAME_FAILURES_MAX,
    SESSIONS_MAX,
    Attempt,
    LoginThrottle,
    Session,
    Sessions,
)
from vdl.console.settings import ConsoleSettings
from vdl.console.shown_values import PAGE_CHARS_MAX, SHOWN_CHARS_MAX, Room, shown
from vdl.console.web import Head, browser_address, check_place, host_name, parse_head
from vdl.console.workers import RUNNING_PER_ASKER_MAX, THREADS, WAITING_PER_ASKER_MAX, Workers
from vdl.kafka.configs.options import ListenerOptions
from vdl.kafka.security.login_failures import LoginFailures
from vdl.kafka.security.protocol import SecurityProtocol
from vdl.kafka.wire.consumer_group_describe import Member
from vdl.records.batch import BatchFields, CorruptBatch, Record, build_batch, iter_records
from vdl.records.compression import Compression
from vdl.server.http import is_loopback
from vdl.server.loop import LoopClock, TurnLoop
from vdl.server.problem import Problem

# --- configuration --------------------------------------------------------------------------------

LOGIN = ListenerOptions(
    protocol=SecurityProtocol.SASL_SSL, mechanisms=("SCRAM-SHA-512",), host="0.0.0.0"
)
OPEN = ListenerOptions(host="0.0.0.0")
OPEN_HERE = ListenerOptions()
TOKENS = ListenerOptions(protocol=SecurityProtocol.SASL_SSL, mechanisms=("OAUTHBEARER",))
CERTIFIED = ListenerOptions(
    protocol=SecurityProtocol.SSL, tls=TlsOptions(client_auth=ClientAuth.REQUIRED)
)
CERTIFIED_LOGIN = replace(LOGIN, tls=TlsOptions(client_auth=ClientAuth.REQUIRED))
HERE, EVERYWHERE = Address("127.0.0.1", 9122), Address("0.0.0.0", 9122)


@pytest.mark.parametrize(
    ("mode", "listener", "http", "is_served"),
    [
        ("off", TOKENS, None, True),
        ("loopback", OPEN_HERE, HERE, True),
        ("loopback", LOGIN, EVERYWHERE, True),
        ("loopback", TOKENS, HERE, False),
        ("loopback", CERTIFIED, HERE, False),
        ("loopback", CERTIFIED_LOGIN, HERE, False),
        ("loopback", OPEN, None, False),
        ("on", LOGIN, HERE, True),
        ("on", LOGIN, EVERYWHERE, False),
        ("on", OPEN, EVERYWHERE, True),
        ("on", OPEN_HERE, EVERYWHERE, False),
    ],
)
def test_console_that_would_expose_passwords_or_records_is_refused(
    mode: str, listener: ListenerOptions, http: Address | None, is_served: bool
) -> None:
    assert is_served == (not console_problem(ConsoleOptions(mode), [listener], http))


def test_listener_that_requires_a_certificate_is_left_out() -> None:
    assert console_listener([CERTIFIED_LOGIN, CERTIFIED, OPEN]) is OPEN


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[http]\nconsole = "yes"', "http.console"),
        ('[http]\nlisten = "off"\nconsole = "on"', "http.console"),
        ('[http]\nlisten = "0.0.0.0:9122"\nconsole = "on"', "http.console"),
        ('[http]\nconsole_changes = "x"', "http.console_changes"),
        ('[http]\nconsole_origin = "console.example"', "http.console_origin"),
        ('[http]\nconsole_origin = "http://console.example"', "http.console_origin"),
        ('[http]\nconsole_origin = "https://a.example/x"', "http.console_origin"),
        ('[http]\nconsole_registry = "registry:8081"', "http.console_registry"),
        ('[http]\nconsole_registry = "http://me:secret@registry"', "http.console_registry"),
    ],
)
def test_configuration_that_is_not_valid_is_named(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, source="test", folder=Path("/"))
    assert raised.value.key == key


# --- records --------------------------------------------------------------------------------------


def free() -> None:
    """Check nothing."""


RECORDS = st.lists(
    st.builds(
        Record,
        key=st.none() | st.binary(max_size=40),
        value=st.none() | st.binary(max_size=400),
        headers=st.lists(
            st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3
        ),
        timestamp=st.integers(0, 1 << 60),
    ),
    min_size=1,
    max_size=8,
)


@given(RECORDS, st.sampled_from(Compression), st.integers(0, 25))
def test_records_read_as_a_stream_are_those_of_the_batch(
    records: list[Record], codec: Compression, first: int
) -> None:
    batch = memoryview(build_batch(records, BatchFields(compression=codec)))
    found = [
        Record(
            _kept(one.key),
            _kept(one.value),
            [(name.kept.decode(), _kept(value)) for name, value in one.headers],
            one.timestamp,
            one.offset,
        )
        for one in read_records(batch, first, Budget(1 << 30, free))
    ]
    assert found == [one for one in iter_records(batch) if one.offset >= first]


def _kept(field: Field | None) -> bytes | None:
    """Return the bytes of a field, which must be whole."""
    if field is None:
        return None
    assert not field.is_cut
    return field.kept


@given(RECORDS, st.integers(0, 10_000), st.integers(0, 255))
def test_batch_that_is_damaged_is_refused(records: list[Record], at: int, byte: int) -> None:
    batch = build_batch(records)
    position = 21 + at % (len(batch) - 21)
    if batch[position] == byte:
        return
    batch[position] = byte
    with pytest.raises(CorruptBatch):
        list(read_records(memoryview(batch), 0, Budget(1 << 30, free)))


def test_budget_ends_a_batch_that_unpacks_to_much() -> None:
    records = [Record(value=bytes(1 << 20)) for _ in range(30)]
    batch = memoryview(build_batch(records, BatchFields(compression=Compression.GZIP)))
    found: list[Read] = []
    with pytest.raises(OverBudget):
        found.extend(read_records(batch, 0, Budget(10 << 20, free)))
    few = list(read_records(batch, 25, Budget(40 << 20, free)))
    assert [one.offset for one in few] == [25, 26, 27, 28, 29]
    assert all(one.value is not None and one.value.size == 1 << 20 for one in few)
    assert all(one.value is not None and one.value.is_cut for one in few)


def test_headers_of_a_record_are_kept_up_to_a_bound() -> None:
    records = [Record(value=b"v", headers=[("", None)] * 130_000, timestamp=1)]
    batch = memoryview(build_batch(records, BatchFields(compression=Compression.ZSTD)))
    (found,) = read_records(batch, 0, Budget(1 << 30, free))
    assert len(found.headers) == HEADERS_MAX
    assert found.headers_left_out == 130_000 - HEADERS_MAX


@pytest.mark.parametrize(
    ("data", "form", "expected"),
    [
        (b'{"a": 1}', "auto", ("json", '{"a": 1}')),
        (b"1" * 5_000, "auto", ("json", "1" * 5_000)),
        (b"NaN", "auto", ("text", "NaN")),
        (b"[" * 15_000, "auto", ("text", "[" * 15_000)),
        ("{\"a\": 1}".encode("utf-16"), "auto", ("hex", None)),
        (b"\xff", "text", ("text", "\ufffd")),
        (b"\xff", "json", ("hex", "ff")),
        (b"ab", "hex", ("hex", "61 62")),
    ],
)  # fmt: skip
def test_bytes_are_shown_in_a_form(
    data: bytes, form: str, expected: tuple[str, str | None]
) -> None:
    found = shown(Field(data, len(data)), form, Room())
    assert found is not None
    assert found["form"] == expected[0]
    assert expected[1] in (None, found["text"])


def test_text_of_a_page_is_bounded() -> None:
    room = Room()
    texts = [shown(Field(b"x" * 50_000, 50_000), "auto", room) for _ in range(100)]
    sizes = [len(one["text"]) for one in texts if one]
    assert max(sizes) == SHOWN_CHARS_MAX
    assert sum(sizes) == PAGE_CHARS_MAX
    assert all(one and one["is_cut"] for one in texts)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829), (b"abc", 479470107),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ],
)  # fmt: skip
def test_hash_of_keys_is_that_of_kafka(key: bytes, expected: int) -> None:
    """Values of Kafka's UtilsTest.testMurmur2."""
    assert murmur2(key) == expected & 0xFFFFFFFF


# --- groups ---------------------------------------------------------------------------------------


def test_assigned_partitions_of_members_are_bounded() -> None:
    """Members of classic groups write any numbers in their assignments."""
    question = Question(SETTINGS, Session("k", "", "", "", "", 0.0, 0.0), Dead(), 1e18)
    rows = Members(question)
    member = Member(member_id="m", client_id="c", client_host="h")
    for _ in range(30):
        rows.add(member, None, {"a": [2, 1, 1], "b": list(range(100_000)), "c": [1]})
    first = {one["topic"]: one["partitions"] for one in rows.found[0]["assigned"]}
    assert first == {"a": [1, 2], "b": list(range(ASSIGNED_PER_MEMBER_MAX - 2))}
    assert {one["assigned_total"] for one in rows.found} == {100_004}
    counts = [sum(len(one["partitions"]) for one in row["assigned"]) for row in rows.found]
    assert sum(counts) == ASSIGNED_MAX
    assert max(counts) == ASSIGNED_PER_MEMBER_MAX


# --- connections to servers -----------------------------------------------------------------------


@pytest.mark.parametrize("server", [1, 2])
def test_users_are_not_lent_the_certificate_of_the_server(server: int) -> None:
    """A listener that requests certificates sees none, so its client is User:ANONYMOUS."""
    files = authority().server(server)
    own = authority().server(1).own
    assert own is not None
    settings = replace(
        SETTINGS, host="127.0.0.1", protocol="SSL", certificate=str(own.certificate),
        ca=str(files.ca),
    )  # fmt: skip
    question = Question(settings, Session("k", "", "", "", "", 0.0, 0.0), Dead(), 1e18)
    address = question.own_address if server == 1 else ("localhost", 2)
    context = question._client_settings(address).ssl_context()
    assert context is not None
    context.check_hostname = False
    listening = TlsContext(
        TlsOptions(own=files.own, ca=files.ca, client_auth=ClientAuth.REQUESTED), server_side=True
    ).current
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(here, there)
    other = listening.wrap_bio(there, here, server_side=True)
    for end in (client, other, client, other):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert client.version() is not None
    assert client.getpeercert() is not None
    assert other.getpeercert() is None


def test_own_listener_is_known_by_its_certificate() -> None:
    """Another certificate of the same authority, as users have, is not taken for the server."""
    files = authority().server(1)
    assert files.own is not None
    settings = replace(
        SETTINGS, protocol="SSL", certificate=str(files.own.certificate), ca=str(files.ca)
    )
    question = Question(settings, Session("k", "", "", "", "", 0.0, 0.0), Dead(), 1e18)
    context = question._client_settings(question.own_address).ssl_context()
    assert context is not None
    impostor = TlsContext(TlsOptions(own=authority().server(2).own), server_side=True).current
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(here, there)
    other = impostor.wrap_bio(there, here, server_side=True)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    with suppress(ssl.SSLWantReadError):
        other.do_handshake()
    with pytest.raises(ssl.SSLCertVerificationError):
        client.do_handshake()


# --- sessions -------------------------------------------------------------------------------------


class Clock:
    """Time that a test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_sessions_end_when_idle_and_when_old() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    idle = sessions.open("a", "secret", "", "h")
    used = sessions.open("b", "secret", "", "h")
    for _ in range(LIFETIME_SECONDS // 600 + 1):
        clock.now += 600
        if sessions.find(used.key) is None:
            break
    assert clock.now - used.created_s > LIFETIME_SECONDS
    assert IDLE_SECONDS < LIFETIME_SECONDS
    assert sessions.find(idle.key) is None
    sessions.sweep()
    assert len(sessions) == 0
    assert (idle.password, used.password, idle.has_ended) == ("", "", True)


def test_sessions_of_one_owner_displace_their_own() -> None:
    sessions = Sessions(Clock())
    victim = sessions.open("victim", "x", "", "10.0.0.1")
    opened = [sessions.open("", "", "", f"10.1.{n // 9}.1") for n in range(2 * SESSIONS_MAX)]
    assert len(sessions) <= SESSIONS_MAX
    assert sessions.find(victim.key) is victim
    assert sessions.find(opened[-1].key) is not None
    assert sessions.find("") is None


def test_failed_logins_are_forgotten_after_a_time_without_any() -> None:
    clock = Clock()
    throttle = LoginThrottle(clock)
    for _ in range(NAME_FAILURES_MAX):
        throttle.check("a", "h")
        attempt = throttle.begin("a", "h")
    with pytest.raises(ConsoleError) as raised:
        throttle.check("a", "h")
    assert raised.value.kind == "too_many"
    throttle.check("b", "h")
    throttle.not_asked(attempt)
    throttle.check("a", "h")
    throttle.begin("a", "h")
    clock.now += FAILURES_SECONDS + 1
    throttle.check("a", "h")
    throttle.sweep()
    assert len(throttle) == 0


class ServersClock:
    """The console's clock, as servers read it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return int(self._clock.now * 10**9)


@given(
    st.lists(
        st.tuples(
            st.integers(0, FAILURES_SECONDS), st.sampled_from(["guess", "late", "end", "right"])
        ),
        max_size=60,
    )
)
def test_guesses_at_the_console_never_lock_a_name_at_a_server(
    steps: list[tuple[int, str]],
) -> None:
    """Its rule forgets no failure that a server remembers, however guesses and logins meet."""
    clock = Clock()
    throttle, server = LoginThrottle(clock), LoginFailures(ServersClock(clock))  # type: ignore[arg-type]
    running: list[Attempt] = []
    for seconds, step in steps:
        clock.now += seconds
        if step == "end":
            if running:
                throttle.failed(running.pop(0))
            continue
        try:
            throttle.check("a", "h")
        except ConsoleError:
            continue
        attempt = throttle.begin("a", "h")
        if step == "right":
            server.done("a", "127.0.0.1")
            throttle.succeeded(attempt)
        else:
            server.failed("a", "127.0.0.1")
            running.append(attempt)
            if step == "guess":
                throttle.failed(running.pop())
        assert not server.is_locked("a", "127.0.0.1")


def test_failures_during_a_login_outlast_its_success() -> None:
    """The server may have counted them after it."""
    throttle = LoginThrottle(Clock())
    right = throttle.begin("a", "h")
    for _ in range(NAME_FAILURES_MAX - 1):
        throttle.failed(throttle.begin("a", "h"))
    throttle.succeeded(right)
    throttle.check("a", "h")
    throttle.begin("a", "h")
    with pytest.raises(ConsoleError):
        throttle.check("a", "h")


def test_credential_that_is_refused_ends_all_its_sessions() -> None:
    sessions = Sessions(Clock())
    old = [sessions.open("a", "old", "", "h") for _ in range(3)]
    new, other = sessions.open("a", "new", "", "h"), sessions.open("b", "old", "", "h")
    sessions.end_alike(old[0])
    assert [one.has_ended for one in (*old, new, other)] == [True, True, True, False, False]


def test_question_of_a_session_that_has_ended_asks_no_server() -> None:
    session = Session("k", "a", "secret", "", "", 0.0, 0.0)
    question = Question(SETTINGS, session, Dead(), 1e18)
    cancelled: list[int] = []
    with session.ending(lambda: cancelled.append(1)):
        session.end()
    assert cancelled == [1]
    for ask in (question.check, question.check_login):
        with pytest.raises(LoginEnded):
            ask()


def test_logins_at_the_same_time_count_before_they_fail() -> None:
    throttle = LoginThrottle(Clock())
    for _ in range(NAME_FAILURES_MAX):
        throttle.check("a", "h")
        throttle.begin("a", "h")
    with pytest.raises(ConsoleError):
        throttle.check("a", "other")


# --- threads --------------------------------------------------------------------------------------

SETTINGS = ConsoleSettings(
    1, "on", False, "", (), "127.0.0.1", 1, "PLAINTEXT", (), "", "", ("", "", ""), "", "",
    "json", "info",
)  # fmt: skip


class Loop:
    """An event loop that runs what threads send to it when a test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []
        self.came = threading.Semaphore(0)
        self.timers: list[tuple[float, Any]] = []

    def call_later(self, delay: float, callback: Any) -> None:
        self.timers.append((delay, callback))

    def call_soon_threadsafe(self, callback: Any, *args: Any) -> None:
        self.calls.append((callback, args))
        self.came.release()

    def run_one(self) -> None:
        assert self.came.acquire(timeout=60)
        callback, args = self.calls.pop(0)
        callback(*args)


def work(asker: str, run: Any) -> Work:
    session = Session(asker, "", "", "", "", 0.0, 0.0)
    question = Question(SETTINGS, session, Dead(), 1e18)
    return Work(asker, question, run, lambda result: result)


def test_asker_with_much_work_leaves_threads_to_others() -> None:
    loop = Loop()
    workers = Workers(loop)
    gate = threading.Event()
    answers: list[str] = []

    def ask(asker: str, run: Any) -> None:
        workers.ask(work(asker, run), lambda _: answers.append(asker), lambda: True)

    for _ in range(RUNNING_PER_ASKER_MAX + WAITING_PER_ASKER_MAX):
        ask("greedy", gate.wait)
    with pytest.raises(ConsoleError) as raised:
        ask("greedy", gate.wait)
    assert raised.value.kind == "too_many"
    assert THREADS > RUNNING_PER_ASKER_MAX
    ask("modest", lambda: None)
    loop.run_one()
    assert answers == ["modest"]
    gate.set()
    for _ in range(RUNNING_PER_ASKER_MAX + WAITING_PER_ASKER_MAX):
        loop.run_one()
    assert answers.count("greedy") == RUNNING_PER_ASKER_MAX + WAITING_PER_ASKER_MAX
    workers.close()


def test_question_of_a_browser_that_is_gone_is_not_asked() -> None:
    loop = Loop()
    workers = Workers(loop)
    gate = threading.Event()
    asked: list[int] = []
    for _ in range(RUNNING_PER_ASKER_MAX):
        workers.ask(work("a", gate.wait), lambda _: None, lambda: True)
    workers.ask(work("a", lambda: asked.append(1)), lambda _: None, lambda: False)
    workers.ask(work("a", lambda: asked.append(2)), lambda _: None, lambda: True)
    gate.set()
    for _ in range(RUNNING_PER_ASKER_MAX + 1):
        loop.run_one()
    assert asked == [2]
    workers.close()


def test_question_over_its_deadline_is_answered_while_it_runs() -> None:
    loop = Loop()
    workers = Workers(loop)
    gate = threading.Event()
    answers: list[Any] = []
    workers.ask(work("a", gate.wait), answers.append, lambda: True)
    for _, timer in loop.timers:
        timer()
    assert [one.kind for one in answers] == ["deadline"]
    gate.set()
    loop.run_one()
    assert len(answers) == 1
    workers.close()


# --- words ----------------------------------------------------------------------------------------


def test_problems_name_no_partition_of_topics_that_are_hidden() -> None:
    found = problem_rows(
        [
            (1, Problem("no_leader", "secret-topic-0 has no leader")),
            (2, Problem("no_leader", "orders-1 has no leader")),
            (1, Problem("replica_moved", "replicas of secret-2 are being moved")),
            (2, Problem("replica_replaced", "a replica of secret-2 is being replaced")),
            (
                3,
                Problem(
                    "replica_lost", "the replica of secret-2 on this server lost data and waits"
                ),
            ),
            (1, Problem("peer_unreachable", "servers 1 and 2 are not connected")),
            (2, Problem("peer_unreachable", "servers 1 and 2 are not connected")),
        ],
        {"orders"},
    )
    assert "secret" not in str(found)
    by_kind = {row["kind"]: row for row in found}
    assert by_kind["no_leader"]["texts"] == ["orders-1 has no leader", "and 1 more"]
    assert by_kind["peer_unreachable"]["texts"] == ["servers 1 and 2 are not connected"]
    assert by_kind["replica_lost"]["server"] == 3
    assert found[-1]["kind"] == "replica_moved"


@pytest.mark.parametrize(
    ("counts", "part", "expected"),
    [
        ([0, 0, 0], 0.5, None), ([10, 0, 0], 0.5, 0.5), ([0, 10, 0], 0.5, 1.5),
        ([0, 0, 5], 0.99, 2.0), ([1, 1, 0], 0.5, 1.0),
    ],
)  # fmt: skip
def test_quantile_is_within_its_bucket(
    counts: list[int], part: float, expected: float | None
) -> None:
    assert quantile([10**9, 2 * 10**9], counts, part) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:80", "localhost"), ("LOCALHOST", "localhost"), ("[::1]:80", "[::1]"),
        ("[::1]", "[::1]"), ("127.0.0.1", "127.0.0.1"), ("a.b:1:2", "a.b:1"),
    ],
)  # fmt: skip
def test_host_is_parsed(host: str, expected: str) -> None:
    assert host_name(host) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False), ("10.0.0.1", False), ("fe80::1%eth0", False), ("x", False),
    ],
)  # fmt: skip
def test_address_of_this_machine_is_known(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


def head_with(*lines: str, peer: str = "127.0.0.1") -> Head:
    text = "\r\n".join(("GET /console/ HTTP/1.1", "Host: localhost", *lines))
    return parse_head(text.encode(), peer, ("127.0.0.1", 1))


PROXIED = replace(SETTINGS, mode="loopback", origin="https://console.example")


@pytest.mark.parametrize(
    "line",
    ["X-Forwarded-For: 10.0.0.1", "Forwarded: for=10.0.0.1", "X-Real-IP: 10.0.0.1", "Via: 1.1 p",
     "X-Forwarded-Proto: https"],
)  # fmt: skip
def test_proxy_that_is_not_configured_opens_the_console_to_no_other_machine(line: str) -> None:
    with pytest.raises(ConsoleError) as raised:
        check_place(head_with(line), replace(PROXIED, origin=""))
    assert raised.value.kind == "bad_origin"
    check_place(head_with(line), PROXIED)
    check_place(head_with(), replace(PROXIED, origin=""))


@pytest.mark.parametrize(
    ("settings", "peer", "said", "expected"),
    [
        (PROXIED, "127.0.0.1", "1.1.1.1, 10.0.0.7", "10.0.0.7"),
        (PROXIED, "::1", "2001:DB8::1", "2001:db8::1"),
        (PROXIED, "127.0.0.1", "10.0.0.7, unknown", "127.0.0.1"),
        (PROXIED, "10.0.0.9", "10.0.0.7", "10.0.0.9"),
        (SETTINGS, "127.0.0.1", "10.0.0.7", "127.0.0.1"),
    ],
)
def test_address_of_a_browser_is_that_which_the_proxy_says_last(
    settings: ConsoleSettings, peer: str, said: str, expected: str
) -> None:
    assert browser_address(head_with(f"X-Forwarded-For: {said}", peer=peer), settings) == expected


def test_browser_of_another_machine_starts_no_console() -> None:
    # Without a clock it could not start one.
    gateway = Gateway(PROXIED.as_json(), None, None, None, None)  # type: ignore[arg-type]
    with socket.socket() as connection:
        assert gateway.hand_over(connection, "10.0.0.1", b"GET /console/ HTTP/1.1") == 403


def test_console_that_gets_no_thread_refuses_a_browser() -> None:
    """An exception on the loop would end the server. The next browser gets a console, later."""

    class Noted:
        def __init__(self) -> None:
            self.events: list[str] = []

        def warning(self, event: str, **fields: object) -> None:
            self.events.append(f"{event}: {fields['cause']}")

    loop, log = TurnLoop(), Noted()
    samples = Samples(None)  # type: ignore[arg-type]  # it is asked for points alone
    gateway = Gateway(PROXIED.as_json(), samples, LoopClock(loop), loop, log)  # type: ignore[arg-type]  # as far as it is used
    stack, room = threading.stack_size(256 << 20), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), room[1]))
    try:
        with socket.socket() as connection:
            before = len(list(Path("/proc/self/fd").iterdir()))
            assert gateway.hand_over(connection, "127.0.0.1", b"GET /console/ HTTP/1.1") == 503
            assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        resource.setrlimit(resource.RLIMIT_AS, room)
        threading.stack_size(stack)
        loop.close()
    assert log.events == ["console_not_started: can't start new thread"]


def test_cookie_is_found_among_those_of_other_programs() -> None:
    line = b'Cookie: a[0]={"x": 1}; vdl-console-1=key; vdl-console-12=other; broken'
    found = parse_head(b"GET / HTTP/1.1\r\n" + line, "127.0.0.1", ("127.0.0.1", 1))
    assert found.cookie("vdl-console-1") == "key"
    assert found.cookie("vdl-console-2") == ""


@given(st.binary(max_size=300))
def test_head_of_any_bytes_is_parsed_or_refused(data: bytes) -> None:
    for head in (data, b"GET /console/?" + data + b" HTTP/1.1", b"GET / HTTP/1.1\r\n" + data):
        refused = None
        try:
            found = parse_head(head, "127.0.0.1", ("127.0.0.1", 1))
            assert isinstance(found.cookie("a"), str)
            assert found.length >= 0
        except ConsoleError as error:
            refused = error.status
        assert refused in (None, 400, 413)


# --- process --------------------------------------------------------------------------------------

SERVER = """
import json, socket, subprocess, sys, time
from array import array
own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
number = str(other.fileno())
command = [sys.executable, "-P", "-m", "vdl.console.process", number]
child = subprocess.Popen(command, pass_fds=(other.fileno(),))
own.send(b"S" + sys.argv[1].encode())
browser, connection = socket.socketpair()
rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [connection.fileno()]))
own.sendmsg([b"C127.0.0.1\\nGET / HTTP/1.1\\r\\n\\r\\n"], [rights])
print(child.pid, own.recv(9).decode(), flush=True)
time.sleep(600)
"""


def test_console_that_hangs_ends_with_its_server() -> None:
    command = [sys.executable, "-c", SERVER, json.dumps(SETTINGS.as_json())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        pid, said = server.stdout.readline().split()
        assert said == TAKEN.decode()
        oom = Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii")
        os.kill(int(pid), signal.SIGSTOP)
        server.kill()
    assert int(oom) == 1_000
    deadline = time.monotonic() + HANG_SECONDS
    while is_running(int(pid)):
        assert time.monotonic() < deadline, "the console outlives its server"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return False for a process that has ended, even if its parent does not ask."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
