"""Requests of pages of other sites, of strangers, and of clients that mean harm."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
import urllib.request
import uuid
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.console.asking import API, Browser, browser, raw
from tests.console.browser.console_set import ConsoleSet, client_settings, make_topics
from tests.hangs import HANG_SECONDS
from vdl.console.process import CONNECTIONS_MAX
from vdl.console.workers import RUNNING_PER_ASKER_MAX, WAITING_PER_ASKER_MAX
from vdl.kafka.client import KafkaClient
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from vdl.records.batch import BatchFields, Record, build_batch
from vdl.records.compression import Compression

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.mark.parametrize("path", ["/console/api/session", "/console/", "/console/none", "/"])
def test_answers_carry_the_headers_that_bind_browsers(port: int, path: str) -> None:
    answer = Browser(port).send("GET", path)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    expected = dict(SECURITY_HEADERS)
    if path == "/console/":
        expected["Cache-Control"] = "no-cache"
    assert {name: answer.headers.get(name) for name in expected} == expected
    assert "Server" not in answer.headers


def test_cookie_is_for_this_port_and_not_for_scripts(port: int) -> None:
    answer = Browser(port).get("session")
    name, _, rest = answer.headers["Set-Cookie"].partition("=")
    key, _, attributes = rest.partition("; ")
    assert name == f"vdl-console-{port}"
    assert len(key) == 43  # 256 random bits
    assert set(attributes.split("; ")) == {"Path=/console/", "HttpOnly", "SameSite=Strict"}
    assert key not in answer.body.decode()
    other = Browser(port).get("session")
    assert key not in other.headers["Set-Cookie"]


def test_cookie_of_another_server_is_no_session(open_set: ConsoleSet, port: int) -> None:
    """Browsers send the cookies of a host to all of its ports."""
    first = browser(port)
    second = Browser(port + 1, {f"vdl-console-{port + 1}": next(iter(first.cookies.values()))})
    assert second.get("topics").kind == "login_required"
    assert second.get("session").headers["Set-Cookie"]


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"X-VDL-Console": None}, "bad_origin"),
        ({"X-VDL-Console": "0"}, "bad_origin"),
        ({"Origin": "http://evil.example"}, "bad_origin"),
        ({"Origin": "null"}, "bad_origin"),
        ({"Origin": "http://127.0.0.1:1"}, "bad_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "bad_origin"),
        ({"Sec-Fetch-Site": "same-site"}, "bad_origin"),
        ({"Host": "evil.example"}, "wrong_host"),
        ({"Host": "localhost.evil.example:80"}, "wrong_host"),
        ({"Host": "127.0.0.1.evil.example"}, "wrong_host"),
        ({"Host": None}, "bad_request"),
    ],
)
@pytest.mark.parametrize("page", ["session", "topics", "series"])
def test_page_of_another_site_gets_nothing(
    port: int, headers: dict[str, str | None], kind: str, page: str
) -> None:
    """Forms cannot set the header, other origins and names are refused (DNS rebinding)."""
    found = browser(port)
    answer = found.send("GET", f"{API}{page}", None, headers)
    assert answer.kind == kind
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_proxy_that_is_not_configured_is_refused(port: int, name: str) -> None:
    """To it, browsers of other machines would be on this one."""
    answer = Browser(port).send("GET", "/console/", None, {name: "10.0.0.1"})
    assert (answer.status, answer.kind) == (403, "bad_origin")


@pytest.mark.parametrize(
    "change",
    [
        {"X_VDL_Console": None}, {"Origin": "http://evil.example"}, {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"}, {"Content_Type": None},
        {"Host": "evil.example"}, {"Sec_Fetch_Site": "cross-site"}, {"Cookie": None},
        {"Content_Length": "-1"}, {"Content_Length": "x"}, {"Content_Length": "99999999"},
        {"Transfer_Encoding": "chunked"},
    ],
)  # fmt: skip
def test_write_of_another_site_is_refused(
    open_set: ConsoleSet, port: int, change: dict[str, str | None]
) -> None:
    topic = f"forged.{uuid.uuid4().hex[:8]}"
    make_topics(client_settings(open_set), {topic: 1})
    found = browser(port)
    body = {"topic": topic, "partition": 0, "value": "x"}
    assert found.post("records", body, **change).status in (400, 401, 403, 413, 421)
    assert found.page("records", topic=topic, partition=0)["records"] == []
    assert found.post("records", body).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "X"])
@pytest.mark.parametrize("path", ["/console/", "/", f"{API}topics", f"{API}session"])
def test_method_that_is_not_for_the_page_is_refused(port: int, method: str, path: str) -> None:
    body = b"{}" if method == "POST" and path.startswith(API) else None
    answer = browser(port).send(method, path, body)
    assert (answer.status, answer.kind) == (405, "bad_method")
    assert answer.headers["Allow"] == "GET, HEAD"


def test_head_has_the_headers_alone(port: int) -> None:
    found = browser(port)
    for path in ("/console/", f"{API}topics"):
        answer = found.send("HEAD", path)
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    "path",
    [
        "/console/../../../../etc/passwd", "/console/%2e%2e/%2e%2e/web.py", "/console//etc/passwd",
        "/console/..%2fweb.py", "/console/./index.html", "/console/pages", "/console/pages/",
        "/console/index.html%00", "/console/\\..\\web.py", "/console/API.md", "/console/static/",
        "/console/api", "/console/api/", "/console/api/../topics", "/console/api/nothing",
        "/console/%", "/console/%ff",
    ],
)  # fmt: skip
def test_path_that_is_no_page_is_not_found(port: int, path: str) -> None:
    answer = browser(port).send("GET", path)
    assert (answer.status, answer.kind) == (404, "not_found")


def test_file_that_the_browser_has_is_not_sent_again(port: int) -> None:
    found = Browser(port)
    first = found.send("GET", "/console/")
    assert first.headers["Content-Type"] == "text/html; charset=utf-8"
    tag = first.headers["ETag"]
    again = found.send("GET", "/console/", None, {"If-None-Match": f'"x", {tag}'})
    assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
    packed = found.send("GET", "/console/", None, {"Accept-Encoding": "br, gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert zlib.decompress(packed.body, wbits=31) == first.body
    assert found.send("GET", "/").headers["Location"] == "/console/"


@pytest.mark.parametrize(
    "data",
    [
        b"GET /console/ HTTP/2.0\r\n\r\n", b"GET /console/\r\n\r\n",
        b"GET  /console/ HTTP/1.1\r\n\r\n",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\nX Y: z\r\n\r\n",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\n folded\r\n\r\n",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n",
        b"GET /console/?a=1&a=2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /console/?%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /console/?" + b"a&" * 100 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /console/ HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_request_that_is_not_valid_gets_an_error(port: int, data: bytes) -> None:
    answer = raw(port, data)
    assert b" 400 Bad Request\r\n" in answer or answer.startswith(b"HTTP/1.1 404"), answer[:200]
    assert browser(port).get("topics").status == 200


def test_requests_of_random_bytes_end_nothing(port: int) -> None:
    for number in range(50):
        raw(port, b"POST /console/api/login HTTP/1.1\r\n" + bytes([number, 255 - number]) * 9 +
            b"\r\n\r\n")  # fmt: skip
        raw(port, b"GET /console/api/records?" + bytes([number % 94 + 33]) * 50 + b" HTTP/1.1\r\n"
            b"Host: localhost\r\nX-VDL-Console: 1\r\n\r\n")  # fmt: skip
    assert browser(port).get("topics").status == 200


def test_browsers_that_ask_nothing_keep_nobody_out(port: int) -> None:
    """Bodies that do not come, and answers that are not read, occupy the console's own share."""
    head = (
        f"POST {API}login HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-VDL-Console: 1\r\n"
        "Content-Type: application/json\r\nContent-Length: 10000\r\n\r\n{"
    ).encode()
    unread = (f"GET /console/index.html HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n").encode()
    with ExitStack() as opened:
        for number in range(3 * CONNECTIONS_MAX):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port), HANG_SECONDS))
            one.sendall(head if number % 2 else unread)
        for page in ("health", "metrics", "ready"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
                assert answer.status == 200
        assert browser(port).get("topics").status == 200


def test_session_that_asks_too_much_is_slowed_alone(open_set: ConsoleSet, port: int) -> None:
    """Each session has its own bound on questions, and others are answered meanwhile."""
    greedy, modest = browser(port), browser(port)
    count = 4 * (RUNNING_PER_ASKER_MAX + WAITING_PER_ASKER_MAX)
    statuses = []
    threads = [
        threading.Thread(target=lambda: statuses.append(greedy.get("overview").status))
        for _ in range(count)
    ]
    for one in threads:
        one.start()
    assert modest.get("topics").status == 200
    for one in threads:
        one.join(HANG_SECONDS)
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= RUNNING_PER_ASKER_MAX


def test_batch_that_unpacks_to_gigabytes_is_read_in_pieces(open_set: ConsoleSet, port: int) -> None:
    """A page shows what fits, and memory stays bounded."""
    topic = f"bomb.{uuid.uuid4().hex[:8]}"
    make_topics(client_settings(open_set), {topic: 1})
    records = [Record(value=bytes(4 << 20), timestamp=1) for _ in range(100)]
    batch = memoryview(build_batch(records, BatchFields(compression=Compression.ZSTD)))
    assert len(batch) < 1 << 20
    append(open_set, topic, batch)
    found = browser(port)
    page = found.page("records", topic=topic, partition=0, from_="start", count=20)
    assert [row["offset"] for row in page["records"]] == [str(one) for one in range(20)]
    assert {row["value"]["bytes"] for row in page["records"]} == {str(4 << 20)}
    assert page["next"] == "20"
    whole = found.page("records", topic=topic, partition=0, from_="start", count=200)
    assert not whole["is_complete"]
    assert 20 < len(whole["records"]) < 100
    answer = found.get("records", topic=topic, partition=0, from_="99", count=1)
    assert (answer.status, answer.kind) == (413, "too_large")
    assert found.get("topics").status == 200


def append(servers: ConsoleSet, topic: str, batch: memoryview) -> None:
    """Append a batch as it is."""
    for server in range(3):
        with KafkaClient("127.0.0.1", servers.base_port + server, timeout_seconds=60) as client:
            wanted = MetadataRequest([MetadataRequestTopic(name=topic)])
            (found,) = client.request(3, wanted).topics
            data = TopicProduceData(topic, found.topic_id, [PartitionProduceData(0, batch)])
            request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=[data])
            (answer,) = client.request(0, request).responses[0].partition_responses
            if not answer.error_code:
                return
            assert answer.error_code == 6, answer
    raise AssertionError("no server leads")


def test_sessions_are_bounded(port: int) -> None:
    """Strangers displace their own sessions."""
    browsers = [browser(port) for _ in range(20)]
    assert browsers[-1].get("topics").status == 200
    assert browsers[0].get("topics").kind == "login_required"
    assert browsers[0].page("session")["state"] == "in"


def test_logout_ends_the_session(port: int) -> None:
    found = browser(port)
    cookies = dict(found.cookies)
    assert found.post("logout", {}).status == 200
    assert Browser(port, cookies).get("topics").kind == "login_required"


def test_console_that_is_killed_comes_back(open_set: ConsoleSet, port: int) -> None:
    """The server goes on without it, and starts it again."""
    found = browser(port)
    answers = []
    deadline = time.monotonic() + HANG_SECONDS
    (child,) = consoles_of(open_set, 1)
    os.kill(child, signal.SIGKILL)
    while time.monotonic() < deadline:
        try:
            answers.append(found.get("session").status)
        except OSError:
            answers.append(0)
        if answers[-1] == 200:
            break
        time.sleep(0.2)
    assert answers[-1] == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
        assert json.load(answer)["state"] == "serving"


def test_console_that_hangs_is_replaced(open_set: ConsoleSet, port: int) -> None:
    """Requests that it does not take show it."""
    assert Browser(port).get("session").status == 200
    (child,) = consoles_of(open_set, 1)
    os.kill(child, signal.SIGSTOP)
    deadline = time.monotonic() + HANG_SECONDS
    status = 0
    while status != 200 and time.monotonic() < deadline:
        try:
            status = Browser(port).get("session").status
        except OSError:
            time.sleep(0.2)
    assert status == 200
    assert child not in consoles_of(open_set, 1)


@pytest.mark.parametrize("page", ["login", "logout", "records", "topics"])
def test_stranger_sends_no_large_body(port: int, page: str) -> None:
    """Only a session may have the console read a megabyte."""
    head = (
        f"POST {API}{page} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-VDL-Console: 1\r\n"
        "Content-Type: application/json\r\nContent-Length: 16385\r\n\r\n"
    ).encode()
    assert raw(port, head).startswith(b"HTTP/1.1 413 ")


def consoles_of(servers: ConsoleSet, server_id: int) -> list[int]:
    """Return the processes of a server that are its console."""
    tasks = Path(f"/proc/{servers.pid(server_id)}/task")
    children = [
        int(child)
        for task in tasks.iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    ]
    return [
        child
        for child in children
        if b"vdl.console.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_large_record_of_a_producer_is_cut(open_set: ConsoleSet, port: int) -> None:
    topic = f"large.{uuid.uuid4().hex[:8]}"
    make_topics(client_settings(open_set), {topic: 1})
    producer = Producer(client_settings(open_set))
    producer.produce(topic, b"v" * 500_000, b"k" * 400_000, 0, headers=[("h", b"1")])
    assert producer.flush(HANG_SECONDS) == 0
    (row,) = browser(port).page("records", topic=topic, partition=0)["records"]
    assert (row["key"]["bytes"], row["key"]["is_cut"]) == ("400000", True)
    assert (row["value"]["bytes"], row["value"]["text"]) == (None, "")
    assert row["headers_left_out"] is None
