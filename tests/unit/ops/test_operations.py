"""The operations port: metrics read at the scrape, health as a status code, everything bounded."""

import asyncio
import errno
import json
import logging
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from rpc.streams import LinkStatus
from tests.unit.rpc.world import World, address_of
from vdl.events import Events
from vdl.kafka.connections.request_stats import ApiStats
from vdl.kafka.telemetry.client_metrics import ClientMetrics
from vdl.kafka.telemetry.otlp import Point
from vdl.log import EventLog
from vdl.server import http
from vdl.server.http import CONNECTIONS_MAX, REQUEST_BYTES_MAX, HttpServer, Response, answer
from vdl.server.metrics import (
    Health,
    Sample,
    Source,
    api_samples,
    client_samples,
    operations_routes,
    peer_samples,
    problem_samples,
    store_numbers,
)
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS, Problem
from vdl.server.server import Server, ServerState

LOG = EventLog(logging.getLogger("test"), Events(lambda: 0))


def get(routes, target="/metrics", method="GET"):
    request = f"{method} {target} HTTP/1.1\r\nHost: x".encode()
    head, _, body = answer(request, routes, LOG).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head.decode(), body.decode()


def routes_with(*sources, serving=True):
    return operations_routes(sources, lambda: Health(serving, {"server_id": 3}))


def test_metrics_numbers_are_read_at_each_scrape():
    """A scrape shows the counters as they are at that moment."""
    counts = {"turns_total": 1, "groups": 9}
    routes = routes_with(Source("host", lambda: counts))
    assert "vdl_host_turns_total 1.0\n" in get(routes)[2]
    counts["turns_total"] = 5
    _, head, body = get(routes)
    assert "vdl_host_turns_total 5.0\n" in body
    assert "# TYPE vdl_host_turns_total counter\n" in body
    assert "# TYPE vdl_host_groups gauge\nvdl_host_groups 9.0\n" in body
    assert "Content-Type: text/plain" in head


def test_metrics_samples_of_one_key_share_a_family():
    """Samples of a family differ in labels, as Prometheus requires."""
    samples = [
        Sample("requests_total", (("api", "Produce"),), 7),
        Sample("errors_total", (("api", "Produce"),), 0),
        Sample("requests_total", (("api", "Fetch"),), 9),
    ]
    body = get(routes_with(Source("kafka", lambda: samples)))[2]
    assert body.count("# TYPE vdl_kafka_requests_total counter") == 1
    assert 'vdl_kafka_requests_total{api="Produce"} 7.0\n' in body
    assert 'vdl_kafka_requests_total{api="Fetch"} 9.0\n' in body


def test_metrics_of_apis_and_peers_are_labelled():
    """One family for all APIs, one for all peers; an unused API is not listed."""
    used, unused = ApiStats(), ApiStats()
    used.requests, used.total_ns = 3, 1_500_000_000
    link = LinkStatus(2, True, True, 10, -1, 20_000_000, 0)
    body = get(
        routes_with(
            Source("kafka", lambda: api_samples({"Produce": used, "Fetch": unused})),
            Source("peer", lambda: peer_samples([link])),
        )
    )[2]
    assert 'vdl_kafka_requests_total{api="Produce"} 3.0\n' in body
    assert 'vdl_kafka_request_seconds_total{api="Produce"} 1.5\n' in body
    assert "Fetch" not in body
    assert 'vdl_peer_up{server="2"} 1.0\n' in body
    assert 'vdl_peer_round_trip_seconds{server="2"} -1.0\n' in body


def test_metrics_of_clients_are_told_apart():
    """Samples are distinguished by metric, client and attributes, with any text from clients."""
    metrics = ClientMetrics()
    points = [
        Point("a.total", "", 5.0, is_counter=True, adds=True),
        Point('b"\n', "node=1", 2.5, is_counter=False, adds=False),
    ]
    metrics.take("me", points, now_ns=0, interval_ms=1_000)
    body = get(routes_with(Source("client", lambda: client_samples(metrics, 0))))[2]
    assert 'vdl_client_counter_total{attributes="",client_id="me",metric="a.total"} 5.0' in body
    assert 'vdl_client_gauge{attributes="node=1",client_id="me",metric="b\\"\\n"} 2.5' in body, body
    assert "vdl_client_telemetry_points_total 2.0" in body


def test_metrics_of_a_peer_that_is_down_count_its_silence():
    """An alert on silence fires when the link is gone, and for a peer that never connected."""
    world = World(2)
    world[1].links.set_peer(3, address_of(3))
    world.run(4_000)
    world.crash(2)
    world.run(10_000)
    silent = {
        dict(sample.labels)["server"]: sample.value
        for sample in peer_samples(world[1].links.links())
        if sample.key == "silent_seconds"
    }
    assert silent == {"2": pytest.approx(10, abs=1), "3": 14}
    world.restart(2)
    world.run(4_000)
    (back, _) = world[1].links.links()
    assert back.is_up
    assert 0 <= back.silent_ns < 2_000_000_000


def test_metrics_of_a_store_have_counters_named_as_such():
    """A monotonic counter ends in _total, whatever the store calls it."""
    assert store_numbers({"journal_blocks": 7, "segments": 2}) == {
        "journal_blocks_total": 7,
        "segments": 2,
    }


def test_metrics_process_numbers_are_always_there():
    """CPU and memory of the process are in every scrape."""
    body = get(routes_with())[2]
    assert "\nprocess_cpu_seconds_total " in body
    assert "\nprocess_resident_memory_bytes " in body


def test_metrics_library_is_not_loaded_before_a_scrape():
    """A server without scrapes does not load the Prometheus library."""
    code = "import sys, vdl.server.metrics; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("path", "serving", "status"),
    [
        ("/health", True, 200),
        ("/health", False, 200),
        ("/ready", True, 200),
        ("/ready", False, 503),
    ],
)
def test_health_is_of_who_answers_and_ready_is_who_serves(path, serving, status):
    """A starting server must not be restarted, and gets no traffic. The body is for people."""
    answered, _, body = get(routes_with(serving=serving), path)
    assert answered == status
    assert json.loads(body) == {"server_id": 3}


def test_metrics_have_each_kind_of_problem():
    found = list(problem_samples([Problem("disk_full", "no room")]))
    assert {sample.labels[0][1] for sample in found} == SERVER_KINDS.keys() | CLUSTER_KINDS.keys()
    assert [sample.labels for sample in found if sample.value] == [(("kind", "disk_full"),)]


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [("GET", "/", 404), ("POST", "/metrics", 405), ("GET", "/health?x=1", 200)],
)
def test_http_other_requests_get_the_right_status(method, target, status):
    """Unknown paths and methods are refused with their status; a query is ignored."""
    assert get(routes_with(), target, method)[0] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9122", b"200"), ("localhost:9122", b"200"), ("LocalHost", b"200"),
        ("[::1]:9122", b"200"), ("[::1]", b"200"), ("10.0.0.7", b"200"), ("", b"200"),
        ("rebound.example.org", b"421"), ("rebound.example.org:9122", b"421"),
        ("localhost.example.org:9122", b"421"),
    ],
)  # fmt: skip
def test_http_page_of_another_name_reads_nothing_on_loopback(host, status):
    """A browser may have been made to resolve a foreign name to 127.0.0.1.

    On other addresses names are usual.
    """
    head = f"GET /x HTTP/1.1\r\nhost: {host}".encode()
    routes = {"/x": lambda: Response(200, "text/plain", b"hello")}
    assert answer(head, routes, LOG, is_local=True).split(b" ")[1] == status
    assert answer(head, routes, LOG).split(b" ")[1] == b"200"


def test_http_head_has_no_body():
    """HEAD returns the length without a body."""
    _, head, body = get(routes_with(), "/health", "HEAD")
    assert "Content-Length: " in head
    assert body == ""


@pytest.mark.parametrize("head", [b"", b"GET", b"\x16\x03\x01", b"GET / SPDY/1"])
def test_http_garbage_is_a_bad_request(head):
    """Requests that are not HTTP get status 400."""
    assert answer(head, {}, LOG).startswith(b"HTTP/1.1 400 ")


def test_http_route_that_raises_is_a_500(caplog):
    """A failing scrape is logged and answered; the server continues."""

    def broken():
        raise LookupError("gone")

    with caplog.at_level(logging.ERROR):
        assert get({"/x": broken}, "/x")[0] == 500
    assert "operations_route_failed" in caplog.text


def test_http_server_answers_and_closes():
    """A request over a real socket gets an answer and the end of the stream, also byte by byte."""

    async def run():
        server = HttpServer({"/x": lambda: Response(200, "text/plain", b"hello")}, LOG)
        port = await server.start("127.0.0.1", 0)
        answers = []
        for pieces in ([b"GET /x HTTP/1.1\r\n\r\n"], [b"GET /x HT", b"TP/1.1\r\n", b"\r", b"\n"]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            answers.append(await reader.read())
            writer.close()
            await writer.wait_closed()
        server.close()
        return answers

    for received in asyncio.run(run()):
        assert received.endswith(b"\r\n\r\nhello")


def test_http_server_answers_in_the_turn_in_which_it_is_asked():
    """A turn of an overloaded server's loop takes long, and a monitor must not wait for several."""

    async def run():
        server = HttpServer({"/x": lambda: Response(200, "text/plain", b"hello")}, LOG)
        port = await server.start("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /x HTTP/1.1\r\n\r\n")
            client.setblocking(False)
            for _ in range(2):  # this turn's poll was earlier
                await asyncio.sleep(0)
            received = client.recv(1000)
        server.close()
        return received

    assert asyncio.run(run()).endswith(b"hello")


def test_http_server_sends_what_does_not_fit_into_the_socket():
    """Metrics may be long, and their reader slow."""
    body = b"x" * (8 << 20)

    async def run():
        server = HttpServer({"/x": lambda: Response(200, "text/plain", body)}, LOG)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        while not any(one._unsent for one in server._connections):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        received = await reader.read()
        writer.close()
        server.close()
        return received

    assert asyncio.run(run()).endswith(body)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="there is no IPv6")
def test_http_server_on_every_address_takes_both_kinds():
    """`[::]` covers all addresses, as for a listener of Kafka clients."""

    async def run():
        server = HttpServer({"/x": lambda: Response(200, "text/plain", b"hello")}, LOG)
        port = await server.start("::", 0)
        answers = []
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"GET /x HTTP/1.1\r\n\r\n")
            answers.append(await reader.read())
            writer.close()
            await writer.wait_closed()
        server.close()
        return answers

    assert [received.endswith(b"hello") for received in asyncio.run(run())] == [True, True]


def test_http_server_accepts_few_in_one_go(monkeypatch):
    """Each takes a descriptor until it is refused: a flood must not take them all."""
    accepted = []
    connection = http._Connection
    monkeypatch.setattr(
        http, "_Connection", lambda *given: accepted.append(1) or connection(*given)
    )

    async def run():
        server = HttpServer({}, LOG)
        port = await server.start("127.0.0.1", 0)
        clients = [socket.socket() for _ in range(3 * CONNECTIONS_MAX)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        while not accepted:  # noqa: ASYNC110 - one turn of the loop accepts
            await asyncio.sleep(0)
        in_one_go = len(accepted)
        await asyncio.sleep(0)
        server.close()
        for client in clients:
            client.close()
        while server._connections:  # noqa: ASYNC110 - until the loop has closed them
            await asyncio.sleep(0)
        return in_one_go

    assert 0 < asyncio.run(run()) <= CONNECTIONS_MAX


def test_http_idle_connections_do_not_keep_others_out():
    """The oldest one is closed for a new one."""

    async def run():
        server = HttpServer({"/x": lambda: Response(200, "text/plain", b"hello")}, LOG)
        port = await server.start("127.0.0.1", 0)
        idle = [
            await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX + 3)
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        received = await reader.read()
        assert len(server._connections) <= CONNECTIONS_MAX
        server.close()
        for _, silent in [*idle, (reader, writer)]:
            silent.close()
        return received

    assert asyncio.run(run()).endswith(b"hello")


def test_http_endless_request_is_cut_off():
    """A head beyond the limit ends the connection instead of filling memory."""

    async def run():
        server = HttpServer({}, LOG)
        port = await server.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * (REQUEST_BYTES_MAX + 1))
        try:
            received = await reader.read()
        except ConnectionResetError:
            received = b""
        writer.close()
        server.close()
        return received

    assert asyncio.run(run()) == b""


def test_health_says_whether_the_server_is_overloaded_and_serves_all_the_same():
    """A monitor sees why the server is slow; overload is no reason to remove it from service."""
    host = SimpleNamespace(
        cluster_id="cluster",
        groups={},
        time=SimpleNamespace(ahead_ms=0),
        overload=SimpleNamespace(is_overloaded=True, late_percent=63, wait_ms=2_400),
        campaigns=SimpleNamespace(waiting=1_200),
    )
    server = SimpleNamespace(
        host=host, state=ServerState.SERVING, config=SimpleNamespace(server_id=3)
    )
    facts = Server.health(server)
    assert facts["overloaded"]
    assert (facts["loop_late_percent"], facts["elections_waiting"]) == (63, 1_200)
    assert facts["request_wait_ms"] == 2_400
    server.host = None
    assert not Server.health(server)["overloaded"]


def test_http_server_without_descriptors_answers_from_its_spare_one():
    """A server without free descriptors must be able to report it."""

    class Starved:
        """A listening socket of a process that has only the spare descriptor."""

        def __init__(self, server):
            self.server, self.real = server, server._listening

        def __getattr__(self, name):
            return getattr(self.real, name)

        def fileno(self):
            return self.real.fileno()

        def accept(self):
            if self.server._spare >= 0:
                raise OSError(errno.EMFILE, "too many open files")
            return self.real.accept()

    async def run():
        server = HttpServer({"/health": lambda: Response(200, "text/plain", b"alive")}, LOG)
        port = await server.start("127.0.0.1", 0)
        server._listening = Starved(server)
        answers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\n\r\n")
            answers.append(await reader.read())
            writer.close()
        assert server._spare >= 0
        server.close()
        assert server._spare < 0
        return answers

    assert [b"alive" in answer for answer in asyncio.run(run())] == [True] * 3
