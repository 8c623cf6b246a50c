"""The control port of `vdl test-server`: what it does, and whom it refuses."""

from __future__ import annotations

import inspect
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from vdl.testing import control_port
from vdl.testing.command_loop import COMMANDS
from vdl.testing.control_port import ROUTES, ControlPort, words_of
from vdl.testing.errors import ClusterError

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS_MAX = 60.0


class Control:
    """A client of a control port."""

    def __init__(self, url: str, token: str) -> None:
        self.port = urlsplit(url).port or 0
        self.token = token

    def ask(
        self, path: str, *, method: str = "POST", body: str | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS_MAX)
        head = {"Authorization": f"Bearer {self.token}", **headers}
        connection.request(method, path, body, head)
        response = connection.getresponse()
        found = response.status, json.loads(response.read())
        connection.close()
        return found

    def state(self, server: int) -> dict[str, Any]:
        _, document = self.ask("/state", method="GET")
        return document["servers"][server - 1]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def control() -> Iterator[Control]:
    process = subprocess.Popen(
        [sys.executable, "-m", "vdl.cli", "test-server", "--json", "--nodes", "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        first = json.loads(process.stdout.readline())
        yield Control(**first["control"])
    finally:
        process.stdin.close()
        process.wait(WAIT_SECONDS_MAX)
        process.stdout.close()


def test_port_kills_and_restores_servers(control: Control) -> None:
    assert control.ask("/kill?server=2") == (200, {"ok": True})
    assert control.state(2)["pid"] == 0
    assert control.ask("/restore")[0] == 200
    assert control.state(2)["pid"] > 0


def test_port_has_the_faults_and_their_end(control: Control) -> None:
    assert control.ask("/pause?server=1")[0] == 200
    assert control.state(1)["paused"]
    assert control.ask("/resume?server=1")[0] == 200
    assert control.ask("/partition?first=1&second=3&ways=one-way")[0] == 200
    assert (control.state(1)["cut"], control.state(3)["cut"]) == ([3], [1])
    assert control.ask("/heal")[0] == 200
    assert control.state(1)["cut"] == []
    assert control.ask("/slow-disk?server=3&seconds=0.01")[0] == 200
    assert control.state(3)["sync_delay_seconds"] == 0.01
    assert control.ask("/advance-time?seconds=60&server=2")[0] == 200
    assert [control.state(one)["ahead_seconds"] for one in (1, 2)] == [0, 60]
    status, cut = control.ask("/power-cut?server=1&server=2")
    assert (status, set(cut["lost"])) == (200, {"1", "2"})
    assert control.ask("/restore")[0] == 200
    assert control.state(3)["sync_delay_seconds"] == 0


def test_port_makes_topics(control: Control) -> None:
    status, made = control.ask("/topic?partitions=2&config=cleanup.policy=compact")
    assert status == 200
    status, led = control.ask(f"/leader?topic={made['topic']}&partition=1")
    assert (status, led["leader"] in (1, 2, 3)) == (200, True)
    status, several = control.ask("/topics?count=3")
    assert (status, len(several["topics"])) == (200, 3)


@pytest.mark.parametrize(
    ("path", "options", "status", "problem"),
    [
        ("/kill?server=9", {}, 400, "there is no server 9"),
        ("/kill?server=1%0Akill", {}, 400, "white space"),
        ("/kill?node=1", {}, 400, "it takes server"),
        ("/isolate", {}, 400, "needs server="),
        ("/isolate?server=1&server=2", {}, 400, "takes one server="),
        ("/fly", {}, 404, "unknown command"),
        ("/kill?server=1", {"method": "GET"}, 405, "expected POST"),
        ("/state", {}, 405, "expected GET"),
        ("/kill?server=1", {"Authorization": "Bearer x"}, 401, "Bearer TOKEN"),
        ("/kill?server=1", {"Authorization": "Bearer \xe9"}, 401, "Bearer TOKEN"),
        ("/kill?server=1", {"Host": "evil.example:80"}, 421, "as host"),
        ("/kill?server=1", {"Content-Length": "1000000"}, 413, "body"),
        ("/kill?" + "server=1&" * 1_000, {}, 413, "too long"),
    ],
)
def test_port_refuses_what_is_wrong_and_goes_on(
    control: Control, path: str, options: dict[str, str], status: int, problem: str
) -> None:
    found, document = control.ask(path, **options)
    assert found == status
    assert problem in document["error"]
    assert control.state(1)["pid"] > 0


def test_port_takes_a_request_with_a_body_that_it_ignores(control: Control) -> None:
    assert control.ask("/wait", body="{}") == (200, {"ok": True})


def test_port_serves_others_beside_silent_connections(control: Control) -> None:
    """A further connection displaces the oldest."""
    silent = [
        socket.create_connection(("127.0.0.1", control.port), WAIT_SECONDS_MAX)
        for _ in range(2 * control_port.CONNECTIONS_MAX)
    ]
    try:
        assert control.state(1)["pid"] > 0
        assert silent[0].recv(1) == b""
    finally:
        for one in silent:
            one.close()


@pytest.fixture
def port() -> Iterator[tuple[ControlPort, selectors.BaseSelector]]:
    with selectors.PollSelector() as selector:
        found = ControlPort(selector)
        yield found, selector
        found.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline


def test_port_drops_a_request_that_does_not_end(
    port: tuple[ControlPort, selectors.BaseSelector], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_port, "REQUEST_SECONDS_MAX", 0.0)
    found, selector = port
    where = urlsplit(found.about()["url"])
    with socket.create_connection((where.hostname or "", where.port or 0)) as client:
        client.sendall(b"POST /kill HTTP/1.1\r\n")
        client.settimeout(WAIT_SECONDS_MAX)
        assert selector.select(WAIT_SECONDS_MAX)
        until(lambda: found.take() == [] and found.wait_seconds() is None)
        assert client.recv(1) == b""


def test_port_listens_on_loopback_alone(
    port: tuple[ControlPort, selectors.BaseSelector],
) -> None:
    assert port[0].about()["url"].startswith("http://127.0.0.1:")
    assert len(port[0].about()["token"]) >= 32


def test_port_has_every_command_with_its_arguments() -> None:
    assert ROUTES.keys() == COMMANDS.keys()
    for name, arguments in ROUTES.items():
        pairs = [(one.rstrip("?*"), "1") for one in arguments]
        inspect.signature(COMMANDS[name]).bind(None, *words_of(name, pairs))
    with pytest.raises(ClusterError, match="takes nothing"):
        words_of("heal", [("server", "1")])
