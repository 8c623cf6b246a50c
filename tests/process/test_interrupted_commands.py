"""Commands beside a server that greets and then says nothing: `--timeout`, and ^C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from struct import pack, unpack

import pytest

from vdl.kafka.wire import api_versions
from vdl.kafka.wire.api_versions import ApiVersion, ApiVersionsResponse

LIMIT_SECONDS = 120
"""Far from what a command takes, and from `--timeout` below."""
PROGRAM = """
import signal, sys
from vdl.cli import main
# A shell starts a job in the background with SIGINT ignored, and it would be ignored here, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""
KNOWN = [ApiVersion(18, 0, 3), ApiVersion(3, 4, 12), ApiVersion(60, 0, 2)]


class HangingServer:
    """Answer ApiVersions, and read everything else."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.is_asked = threading.Event()
        """Set once a request waits for its answer."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as requests:
            while head := requests.read(4):
                key, version, number = unpack(">hhi", requests.read(*unpack(">i", head))[:8])
                if key != api_versions.API_KEY:
                    self.is_asked.set()
                    continue
                answer = ApiVersionsResponse(api_keys=KNOWN)
                body = b"".join(api_versions.encode_response(answer, min(version, 3)))
                connection.sendall(pack(">ii", 4 + len(body), number) + body)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server() -> Iterator[HangingServer]:
    found = HangingServer()
    yield found
    found.close()


def start(server: HangingServer, timeout: str, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, *words]
    return subprocess.Popen(
        [*command, "--bootstrap", server.address, "--timeout", timeout],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "words", ["status", "explain cluster", "trace --slowest", "balance", "doctor", "topic list"]
)
def test_interrupted_command_does_not_wait_for_a_server_that_hangs(
    server: HangingServer, words: str
) -> None:
    with start(server, "3600", *words.split()) as process:
        try:
            assert server.is_asked.wait(LIMIT_SECONDS)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "words", ["status", "explain cluster", "member list", "config get broker 1"]
)
def test_command_waits_no_longer_than_it_is_told(server: HangingServer, words: str) -> None:
    with start(server, "0.3", *words.split()) as process:
        _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1
    assert "no answer within 0.3 s" in errors
