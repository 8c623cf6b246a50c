"""The admin plane: every field arrives, errors are AdminError, generated code is current."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import grpc
import pytest

from ids import ServerId, Term
from rpc.admin import (
    CommittedOffset,
    ConsumerGroup,
    Dropped,
    Event,
    GroupMember,
    GroupStatus,
    ProgressState,
    ReplicaProgress,
    Role,
    ServerEvents,
    ServerStatus,
    TransferOutcome,
    TransferResult,
)
from rpc.admin_client import AdminClient
from rpc.admin_gate import CONNECTIONS_MAX
from rpc.admin_service import AdminService
from rpc.errors import AdminError
from rpc.proto import admin_pb2
from rpc.streams import LinkStatus
from rpc.traces import TRACE_NAMES_MAX, Stage, TracedRequest, TracedRequests, TraceFilter
from tests.hangs import HANG_SECONDS

ROOT = Path(__file__).parents[3]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""Start of an HTTP/2 connection, with empty SETTINGS (RFC 9113, 3.4)."""
PING = b"\0\0\x08\6\0\0\0\0\0" + b"are you?"
"""PING frame, which is answered with its own payload (RFC 9113, 6.7)."""

STATUS = ServerStatus(
    server_id=1,
    cluster_id="cluster",
    directory_id=b"d" * 16,
    incarnation=1 << 40,
    version="0.1.0",
    uptime_ms=12_345,
    problems=["disk full", "group 9 has no leader"],
    links=[LinkStatus(2, True, False, 100, -1, 5_000_000, 3)],
    groups=[
        GroupStatus(
            group_id=9,
            name="orders-0",
            replica_id=1 << 16 | 1,
            role=Role.LEADER,
            term=7,
            leader=1 << 16 | 1,
            first_index=1,
            last_index=100,
            commit=99,
            applied=98,
            log_start_offset=5,
            high_watermark=500,
            end_offset=510,
            voters=[1 << 16 | 1, 2 << 16 | 1],
            learners=[3 << 16 | 2],
            progress=[ReplicaProgress(2 << 16 | 1, ProgressState.SNAPSHOT, 90, 101, True, True)],
            in_sync=[1, 3],
            in_sync_min=2,
        ),
        GroupStatus(0, "catalog", 1 << 16 | 1, Role.FOLLOWER, 3, 0),
    ],
)
MEMBER = GroupMember("m-1", "app", "10.0.0.1", "i-1", 5_000, 45_000, True, ["orders-0"])
EVENTS = ServerEvents(
    server_id=1,
    now_ms=1 << 40,
    started_ms=1 << 39,
    events=[
        Event("elected", "", 5, 6, 2, '{"partition": "orders-0"}'),
        Event("disk_full", "error", 7, 7, 1, "{}"),
    ],
    dropped=[Dropped("client", 4)],
    groups=[
        ConsumerGroup(
            "g", "classic", "Stable", 3, 8, 1, [MEMBER], 1, [CommittedOffset("orders", 0, 10, 9)]
        )
    ],
)


REQUEST = TracedRequest(
    5, ServerId(3), "Produce", 11, 77, "a client", "User:a", "PLAINTEXT", "10.0.0.1:5", 6,
    1_764_489_600_000, 62_000_000, 61_000_000, 100, 50, ["orders-1", "orders-2"], 9,
    group="payments", slowest="orders-2", term=Term(4), acked_by=ServerId(2),
    stages=[Stage("disk", 1_000, 60_000_000), Stage("send", 60_001_000, 9_000)],
)  # fmt: skip


class Backend:
    """A server as the admin plane sees it."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.unanswered: list[Callable[[TransferResult], None]] = []

    def status(self, groups: Sequence[int]) -> Iterator[ServerStatus]:
        self.asked.append(list(groups))
        yield replace(STATUS, problems=STATUS.problems[:1], groups=[])
        yield ServerStatus(1, problems=STATUS.problems[1:], groups=STATUS.groups[:1])
        yield ServerStatus(1, groups=STATUS.groups[1:])

    def events(self, topic: str, group: str) -> Iterator[ServerEvents]:
        self.asked.append((topic, group))
        yield replace(EVENTS, events=EVENTS.events[:1])
        yield ServerEvents(1, events=EVENTS.events[1:])

    def transfer_leadership(
        self, group: int, to_server: int, done: Callable[[TransferResult], None]
    ) -> None:
        self.asked.append((group, to_server))
        if group == 9:
            done(TransferResult(TransferOutcome.TRANSFERRED))
        elif group == 10:
            asyncio.get_running_loop().call_soon(
                done, TransferResult(TransferOutcome.NOT_LEADER, leader=2 << 16 | 1)
            )
        else:
            self.unanswered.append(done)

    def hint_stop(self, *, whole_cluster: bool) -> None:
        self.asked.append(whole_cluster)

    def slowest_requests(self) -> TracedRequests:
        return TracedRequests([replace(REQUEST, number=number) for number in range(120)])

    def start_trace(self, wanted: TraceFilter) -> int:
        self.asked.append(wanted)
        return 7

    def read_trace(self, trace: int, *, ends: bool) -> TracedRequests:
        self.asked.append((trace, ends))
        return TracedRequests([REQUEST], "its time is over")


def run(
    call: Callable[[AdminClient], object],
    backend: Backend,
    timeout_s: float = HANG_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> object:
    """Serve the backend on this thread's loop while `call` runs in another thread."""

    async def scenario() -> object:
        service = AdminService(backend, now=now)
        port = await service.start(("127.0.0.1", 0))

        def blocking() -> object:
            with AdminClient(("127.0.0.1", port), timeout_s=timeout_s) as client:
                return call(client)

        try:
            return await asyncio.to_thread(blocking)
        finally:
            await service.stop()

    return asyncio.run(scenario())


def test_admin_status_arrives_whole() -> None:
    """Every field of every message is transferred."""
    backend = Backend()
    assert run(lambda client: client.status(), backend) == STATUS
    assert run(lambda client: client.status([9, 10]), backend) == STATUS
    assert backend.asked == [[], [9, 10]]


def test_admin_events_arrive_whole() -> None:
    backend = Backend()
    assert run(lambda client: client.events(), backend) == EVENTS
    assert run(lambda client: client.events(topic="orders", group="g"), backend) == EVENTS
    assert backend.asked == [("", ""), ("orders", "g")]


@pytest.mark.parametrize(("turn_s", "expected"), [(0.001, 1), (0.2, 10)])
def test_admin_status_of_many_groups_lets_the_loop_go_on(turn_s: float, expected: int) -> None:
    """A server with thousands of partitions serves clients while it reports on them.

    There is a turn of the loop between two parts of an answer, and between those of all answers
    under way. Where turns are long, a tenth of them is for the answer, or it would come too late.
    """
    time_s = 0.0
    parts_in_turn = 0
    most = 0

    class Many(Backend):
        def status(self, groups: Sequence[int]) -> Iterator[ServerStatus]:
            nonlocal parts_in_turn, most, time_s
            loop = asyncio.get_running_loop()

            def turn() -> None:
                nonlocal parts_in_turn, time_s
                parts_in_turn = 0
                time_s += turn_s

            for first in range(0, 3_000, 100):
                if not parts_in_turn:
                    loop.call_soon(turn)
                parts_in_turn += 1
                most = max(most, parts_in_turn)
                time_s += 0.0021
                ids = range(first, first + 100)
                yield ServerStatus(
                    1, groups=[GroupStatus(i, f"t-{i}", i, Role.LEADER, 1, i) for i in ids]
                )

    def ask(client: AdminClient) -> list[list[int]]:
        with ThreadPoolExecutor(3) as callers:
            answers = [callers.submit(client.status) for _ in range(3)]
            return [[group.group_id for group in answer.result().groups] for answer in answers]

    assert run(ask, Many(), now=lambda: time_s) == [list(range(3_000))] * 3
    assert most == expected


def test_admin_transfer_answers_now_or_later() -> None:
    """The backend may call back at once or when the transfer ends."""
    backend = Backend()
    now = run(lambda client: client.transfer_leadership(9, 2), backend)
    assert now == TransferResult(TransferOutcome.TRANSFERRED)
    later = run(lambda client: client.transfer_leadership(10, 2), backend)
    assert later == TransferResult(TransferOutcome.NOT_LEADER, leader=2 << 16 | 1)
    assert backend.asked == [(9, 2), (10, 2)]


def test_admin_call_without_answer_ends_at_its_deadline() -> None:
    """A caller never hangs, and a late answer has no effect."""
    backend = Backend()
    timeout_s = 0.1
    while not backend.unanswered:  # a slow machine has not connected by then
        timeout_s *= 2
        with pytest.raises(AdminError) as caught:
            run(lambda client: client.transfer_leadership(11, 2), backend, timeout_s=timeout_s)
        assert caught.value.code == "DEADLINE_EXCEEDED"
    backend.unanswered[0](TransferResult(TransferOutcome.TIMED_OUT))


@pytest.mark.parametrize("whole_cluster", [True, False])
def test_admin_stop_hint_arrives(whole_cluster: bool) -> None:
    """The manner of the coming stop is transferred."""
    backend = Backend()
    run(lambda client: client.hint_stop(whole_cluster=whole_cluster), backend)
    assert backend.asked == [whole_cluster]


def test_admin_traced_requests_arrive_whole() -> None:
    """More of them than are encoded in one turn keep their order."""
    found = run(lambda client: client.slowest_requests(), Backend())
    assert found == [replace(REQUEST, number=number) for number in range(120)]


def test_admin_trace_is_started_and_read() -> None:
    backend = Backend()
    wanted = TraceFilter(["Produce"], ["orders"], ["a client"], 50_000_000, 30_000_000_000, 100)

    def trace(client: AdminClient) -> tuple[int, TracedRequests]:
        number = client.start_trace(wanted)
        return number, client.read_trace(number, ends=True)

    assert run(trace, backend) == (7, TracedRequests([REQUEST], "its time is over"))
    assert backend.asked == [wanted, (7, True)]


@pytest.mark.parametrize(
    "wanted",
    [TraceFilter(topics=["t"] * (TRACE_NAMES_MAX + 1)), TraceFilter(topics=["t" * 257])],
    ids=["names", "characters"],
)
def test_admin_trace_with_a_large_filter_is_refused(wanted: TraceFilter) -> None:
    """Each request is compared with the filter: it is bounded."""
    backend = Backend()
    assert run(lambda client: client.start_trace(wanted), backend) == 0
    assert backend.asked == []


@pytest.mark.parametrize(
    "method",
    ["Status", "TransferLeadership", "HintStop", "SlowestRequests", "StartTrace", "ReadTrace"],
)
def test_admin_malformed_request_is_refused_without_a_line_in_the_log(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The sender gets an error, and adds nothing to the server's log, however often it tries."""
    backend = Backend()

    def send(client: AdminClient) -> list[str]:
        call = client._channel.unary_unary(f"/vdl.admin.v1.Admin/{method}")
        codes = []
        for _ in range(20):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff", timeout=HANG_SECONDS)
            codes.append(caught.value.code().name)
        return codes

    with caplog.at_level(logging.DEBUG):
        assert run(send, backend) == ["INVALID_ARGUMENT"] * 20
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []
    assert backend.asked == []


def test_admin_nobody_there_is_an_admin_error() -> None:
    """Callers handle one exception, not gRPC's."""
    nowhere = ("127.0.0.1", 1)
    with AdminClient(nowhere, timeout_s=HANG_SECONDS) as client, pytest.raises(AdminError) as e:
        client.status()
    assert e.value.code == "UNAVAILABLE"


def test_admin_connections_are_bounded_and_silent_ones_keep_nobody_out() -> None:
    """Silent sockets take no more than their share of the descriptors, for a limited time.

    The first call from another address is answered.
    """

    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def scenario() -> object:
        service = AdminService(Backend(), handshake_s=0.5)
        port = await service.start(("127.0.0.1", 0))
        before = held()
        program = (
            "import socket, sys\n"
            f"at = ('127.0.0.1', {port})\n"
            "own = ('127.0.0.2', 0)\n"
            "kept = [socket.create_connection(at, source_address=own) for _ in range(500)]\n"
            "print(len(kept), flush=True)\n"
            "sys.stdin.read()\n"
        )
        strangers = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert strangers.stdin is not None
        assert strangers.stdout is not None
        try:
            assert await strangers.stdout.readline() == b"500\n"
            found = await asyncio.to_thread(_status_of, port)
            assert held() - before <= CONNECTIONS_MAX + 8
            while held() - before > 8:  # noqa: ASYNC110 - until the silent ones have ended
                await asyncio.sleep(0.05)
            return found
        finally:
            strangers.stdin.close()
            await strangers.wait()
            await service.stop()

    assert asyncio.run(scenario()) == STATUS


def test_administrator_at_work_stays_beside_silent_strangers_of_the_same_address() -> None:
    """A connection that has sent a request is not closed in favour of a silent one."""

    async def scenario() -> ServerStatus:
        service = AdminService(Backend())
        port = await service.start(("127.0.0.1", 0))
        strangers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        reader, at_work = await asyncio.open_connection("127.0.0.1", port)
        try:
            at_work.write(PREFACE)
            assert await asyncio.wait_for(reader.read(1_000), HANG_SECONDS)
            strangers += [
                await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * CONNECTIONS_MAX)
            ]
            first, _ = strangers[0]
            assert await asyncio.wait_for(first.read(1), HANG_SECONDS) == b""  # it was closed
            at_work.write(PING)
            answer = b""
            while PING[9:] not in answer:
                part = await asyncio.wait_for(reader.read(1_000), HANG_SECONDS)
                assert part, "the connection has ended"
                answer += part
            return await asyncio.to_thread(_status_of, port)
        finally:
            for writer in (at_work, *(writer for _, writer in strangers)):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            await service.stop()

    assert asyncio.run(scenario()) == STATUS


def _status_of(port: int) -> ServerStatus:
    with AdminClient(("127.0.0.1", port)) as client:
        return client.status()


def test_admin_second_service_on_the_port_is_an_error() -> None:
    """Two servers cannot share an admin port."""

    async def scenario() -> None:
        first = AdminService(Backend())
        port = await first.start(("127.0.0.1", 0))
        second = AdminService(Backend())
        with pytest.raises(OSError, match="in use"):
            await second.start(("127.0.0.1", port))
        await first.stop()
        await second.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (ServerStatus, admin_pb2.ServerStatus),
        (GroupStatus, admin_pb2.GroupStatus),
        (ReplicaProgress, admin_pb2.ReplicaProgress),
        (LinkStatus, admin_pb2.LinkStatus),
        (TransferResult, admin_pb2.TransferLeadershipReply),
        (TracedRequests, admin_pb2.TracedRequests),
        (TraceFilter, admin_pb2.StartTraceRequest),
        (Stage, admin_pb2.Stage),
    ],
)
def test_admin_dataclasses_have_the_fields_of_the_messages(ours: type, theirs: type) -> None:
    """The service fills messages by field name."""
    descriptor = theirs.DESCRIPTOR  # type: ignore[attr-defined]
    assert [field.name for field in fields(ours)] == [field.name for field in descriptor.fields]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Role, admin_pb2.Role),
        (ProgressState, admin_pb2.ProgressState),
        (TransferOutcome, admin_pb2.TransferOutcome),
    ],
)
def test_admin_enums_have_the_values_of_the_messages(
    ours: type[Role | ProgressState | TransferOutcome], theirs: object
) -> None:
    """Names and numbers are the same on both sides."""
    assert {e.name: e.value for e in ours} == dict(theirs.items())  # type: ignore[attr-defined]


def test_admin_generated_code_is_current(tmp_path: Path) -> None:
    """The committed files under rpc/proto are protoc's output for admin.proto."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path=."]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", "rpc/proto/admin.proto"]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("admin_pb2.py", "admin_pb2.pyi"):
        made = (tmp_path / "rpc" / "proto" / name).read_text()
        assert made == (ROOT / "rpc" / "proto" / name).read_text(), f"run `make gen`: {name}"


def test_admin_server_modules_do_not_import_grpc() -> None:
    """A server loads gRPC only when it serves the admin plane."""
    code = "import sys, rpc.transport, rpc.leaders, rpc.frames, rpc.admin, rpc.commands, rpc.birth"
    code += "; sys.exit(any(name.split('.')[0] in ('grpc', 'google') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
