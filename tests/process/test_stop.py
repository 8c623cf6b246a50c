"""Termination of `vdl serve` while operations that it does not need hang."""

import contextlib
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.chaos.harness.replica_set import free_port

# The command line, in a process where a name look-up takes as long as a test may wait.
LAUNCHER = """
import os, socket, sys, time
from vdl.cli import main
from vdl.server.process import Process

real = socket.getaddrinfo

def getaddrinfo(host, port, *args, flags=0, **kwargs):
    if not str(host).endswith(".test"):
        return real(host, port, *args, flags=flags, **kwargs)
    if flags & socket.AI_NUMERICHOST:
        raise socket.gaierror(socket.EAI_NONAME, "not numeric")
    os.write(2, b"hanging on " + host.encode() + b"\\n")
    time.sleep(120)
    raise socket.gaierror(socket.EAI_AGAIN, "at last")

collect_later = Process._collect_later

def hang(process):
    collect_later(process)
    process._loop.run_in_executor(None, time.sleep, 120)

socket.getaddrinfo = getaddrinfo
if sys.argv.pop(1) == "executor":
    Process._collect_later = hang
sys.exit(main())
"""


@pytest.mark.parametrize("hangs", ["names", "executor"])
def test_stopped_server_ends_whatever_still_hangs(hangs, tmp_path):
    """SIGTERM ends a server during name look-ups, and with a job in asyncio's own pool.

    asyncio would wait for that job.
    """
    peers = '2 = "two.test:7"\n3 = "three.test:7"\n' if hangs == "names" else ""
    settings = tmp_path / "server.toml"
    settings.write_text(
        f'[[listeners]]\nlisten = "127.0.0.1:{free_port()}"\n'
        '[admin]\nlisten = "off"\n[http]\nlisten = "off"\n'
        f'[cluster.seeds]\n1 = "127.0.0.1:{free_port()}"\n{peers}',
        encoding="utf-8",
    )
    log = tmp_path / "log"
    command = [sys.executable, "-c", LAUNCHER, hangs, "serve", "--config", str(settings)]
    wanted = (
        {b"hanging on two.test", b"hanging on three.test", b"dial_failed peer=2"}
        if hangs == "names"
        else {b"event=serving"}
    )
    with contextlib.ExitStack() as ends:
        stderr = ends.enter_context(log.open("wb"))
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
        ends.callback(server.wait, 30)
        ends.callback(server.kill)
        for _ in range(600):
            if all(words in log.read_bytes() for words in wanted):
                break
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, log.read_text()
    words = log.read_text()
    assert "Traceback" not in words
    assert "stop_timed_out" not in words
    assert words.count("hanging on two.test") == (1 if hangs == "names" else 0)


# A process that the system cannot end, because one of its threads waits for a disk.
HELD = """
import os, socket, sys, time
from vdl.server.process import end_now

os._exit = lambda status: time.sleep(120)
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
listener = socket.create_server(("127.0.0.1", 0))
connection.sendall(b"%d\\n" % listener.getsockname()[1])
end_now(1)
"""


def test_process_ends_though_its_connections_cannot_be_found():
    """A disk fails while there are no descriptors left: nothing may be acknowledged after it."""
    ends = "from vdl.server import process; process.Path = None; process.end_now(7)"
    assert subprocess.run([sys.executable, "-c", ends], check=False, timeout=60).returncode == 7


def test_process_that_cannot_end_lets_go_of_its_connections():
    """A process that cannot end closes its connections.

    Clients would otherwise wait until the disk returns an error.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", HELD, port]) as process:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(30)
                    with connection.makefile("rb") as received:
                        listens_on = int(received.readline())
                        assert received.read() == b""
                # Sequentially: its listening socket may be closed a moment later.
                deadline = time.monotonic() + 30
                while accepts(listens_on):
                    assert time.monotonic() < deadline, "it still listens"
                assert process.poll() is None
            finally:
                process.kill()


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=30).close()
    except ConnectionError:
        return False
    return True
