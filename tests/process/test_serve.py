"""Preparations of `vdl serve` before a server starts."""

import contextlib
import functools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from segments.io.ring import open_ring
from tests.chaos.harness.replica_set import free_port
from vdl.commands.servers.open_files import within_files
from vdl.config.settings import parse_config
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import metadata

METADATA = 3


@pytest.mark.parametrize(
    ("files", "clients"), [(1, 1), (100, 50), (1_024, 512), (10_000, 9_488), (sys.maxsize, 10_000)]
)
def test_clients_leave_descriptors_for_the_store(files, clients):
    config = parse_config("", source="test", folder=Path("/"))
    assert within_files(config, files).kafka.connections_max == clients


def serve(folder, port, *, http="off", admin="off"):
    """Return the command for a server in this folder."""
    settings = folder / "server.toml"
    settings.write_text(
        f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n'
        f'[admin]\nlisten = "{admin}"\n[http]\nlisten = "{http}"\n',
        encoding="utf-8",
    )
    return [sys.executable, "-m", "vdl.cli", "serve", "--config", str(settings)]


def refused(command):
    """Return the exit code and the output of a server that must not start."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    words = ended.stdout + ended.stderr
    assert "Traceback" not in words
    return ended.returncode, words


@pytest.mark.parametrize("service", ["clients", "http", "admin"])
def test_server_whose_port_is_taken_says_so_before_clients_come(service, tmp_path):
    """The error comes before the server has reported anywhere that it serves."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        if service == "clients":
            command = serve(tmp_path, port)
        else:
            command = serve(tmp_path, free_port(), **{service: f"{host}:{port}"})
        code, words = refused(command)
    assert code == 1
    assert "cannot_start" in words
    assert f"in use: {host} port {port}" in words
    assert "event=serving" not in words


def test_data_directory_has_one_server(tmp_path):
    """The second one ends and reports why; the first is not affected."""
    port = free_port()
    server = subprocess.Popen(
        serve(tmp_path, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        reachable(port)
        code, words = refused(serve(tmp_path, free_port()))
        assert code == 1
        assert "DirectoryInUse" in words
        reachable(port)
        assert server.poll() is None
    finally:
        server.kill()
        server.wait(30)


def test_pid_file_that_cannot_be_written_is_an_error_in_words(tmp_path):
    command = [*serve(tmp_path, free_port()), "--pid-file", str(tmp_path / "no" / "vdl.pid")]
    code, words = refused(command)
    assert code == 1
    assert "pid file" in words


def test_configuration_of_another_server_is_refused(tmp_path):
    """A unit `vdl@4` that was given the file of server 1 does not start as server 1."""
    code, words = refused([*serve(tmp_path, free_port()), "--id", "4"])
    assert (code, "server.id: it is 1, and --id is 4" in words) == (2, True)


SLOW_START = """
import sys, time
from segments.store import DiskStore
from vdl.commands.serve import serve

def recover(*_, **__):
    print("recovering", flush=True)
    time.sleep(100)

DiskStore.open = recover
sys.exit(serve(sys.argv[2:]))
"""
AS_PROCESS_1 = ["unshare", "--pid", "--fork", "--kill-child"]


@functools.cache
def may_be_process_1():
    try:
        return subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, check=False)
    except OSError:
        return None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("around", [[], AS_PROCESS_1], ids=["plain", "process_1"])
def test_server_that_is_still_reading_its_directory_ends_by_a_signal(number, around, tmp_path):
    """A server ends by a signal during its start.

    In a container, the system drops signals to process 1 that have no handler.
    """
    if around and (may_be_process_1() is None or may_be_process_1().returncode):
        pytest.skip("needs the right to be process 1 of a namespace")
    pid_file = tmp_path / "server.pid"
    words = [*serve(tmp_path, free_port())[3:], "--pid-file", str(pid_file)]
    command = [*around, sys.executable, "-c", SLOW_START, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"recovering\n"
            server = process.pid
            if around:
                children = Path(f"/proc/{server}/task/{server}/children").read_text()
                (server,) = map(int, children.split())
            os.kill(server, number)
            assert process.wait(20) == 128 + number
        finally:
            process.kill()
        assert process.stderr.read() == b""
    assert not pid_file.exists()


def test_pid_file_of_a_server_that_runs_is_left_to_it(tmp_path):
    """Any other server started with that file ends with a message.

    The first can still be found and stopped. A stale file is overwritten.
    """
    port = free_port()
    pid_file = tmp_path / "server.pid"
    pid_file.write_text(f"{os.getpid()}\n")
    alone = serve(tmp_path, port)
    server = subprocess.Popen(
        [*alone, f"--pid-file={pid_file}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        reachable(port)
        for words in (["--pid-file", str(pid_file)], [f"--pid-file={os.path.relpath(pid_file)}"]):
            code, said = refused([*alone, *words])
            assert code == 1
            assert "DirectoryInUse" in said
            assert pid_file.read_text() == f"{server.pid}\n"
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        assert not pid_file.exists()
    finally:
        server.kill()
        server.wait(30)


def reachable(port):
    """Wait until a client can connect."""
    for _ in range(200):
        with contextlib.suppress(Unreachable), KafkaClient("127.0.0.1", port):
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody serves on {port}")


def test_server_outlives_more_clients_than_it_has_descriptors(tmp_path):
    """The limit is raised to its maximum, and clients cannot use the store's share."""
    port = free_port()
    command = serve(tmp_path, port)
    limited = ["sh", "-c", 'ulimit -S -n 60; ulimit -H -n 200; exec "$@"', "sh", *command]
    server = subprocess.Popen(limited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as clients:
        clients.callback(server.wait, 30)
        clients.callback(server.send_signal, signal.SIGKILL)
        reachable(port)
        first = clients.enter_context(KafkaClient("127.0.0.1", port))
        for _ in range(150):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        topic = metadata.MetadataRequestTopic(name="new")
        for _ in range(100):  # created by the first request
            answer = first.request(METADATA, metadata.MetadataRequest([topic]))
            if not answer.topics[0].error_code:
                break
            time.sleep(0.05)
        assert not answer.topics[0].error_code
        assert server.poll() is None


def open_files(server):
    return sum(1 for _ in Path(f"/proc/{server.pid}/fd").iterdir())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="takes descriptors from a process")
def test_server_outlives_a_metrics_port_without_descriptors(tmp_path):
    """asyncio's report of a connection that it cannot accept is no fault of the server."""
    port, metrics = free_port(), free_port()
    command = serve(tmp_path, port, http=f"127.0.0.1:{metrics}")
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    with contextlib.ExitStack() as ends:
        ends.callback(server.wait, 30)
        ends.callback(server.send_signal, signal.SIGKILL)
        reachable(port)
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as idle:
            few = (open_files(server) + 8, before[1])
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, few)
            for _ in range(20):
                idle.enter_context(socket.create_connection(("127.0.0.1", metrics)))
            wait_for(lambda: b"out_of_file_descriptors" in log.read_bytes(), server)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/health", timeout=10) as health:
            assert health.status == 200
        assert server.poll() is None
    assert log.read_bytes().count(b"out_of_file_descriptors") == 1


def test_requests_are_counted_also_while_no_client_is_connected(tmp_path):
    """A monitor that looks every minute would miss short-lived ones."""
    port, metrics = free_port(), free_port()
    command = serve(tmp_path, port, http=f"127.0.0.1:{metrics}")
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def numbers():
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=10) as page:
            return page.read().decode().splitlines()

    with contextlib.ExitStack() as ends:
        ends.callback(server.wait, 30)
        ends.callback(server.send_signal, signal.SIGKILL)
        reachable(port)
        with KafkaClient("127.0.0.1", port) as client:
            client.request(METADATA, metadata.MetadataRequest())
        wait_for(lambda: "vdl_server_client_connections 0.0" in numbers(), server)
        assert 'vdl_kafka_requests_total{api="Metadata"} 1.0' in numbers()


def wait_for(condition, server):
    """Wait until the condition is met; the server may not end before."""
    for _ in range(400):
        if condition():
            return
        assert server.poll() is None
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def test_part_of_the_data_directory_that_is_missing_is_named(tmp_path):
    """The log names the missing path and the possible actions; put back, it serves again."""
    port = free_port()
    command = serve(tmp_path, port)

    def live():
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            reachable(port)
        finally:
            server.kill()
            server.wait(30)

    live()
    (identity,) = tmp_path.rglob("identity")
    for part in (identity, identity.with_name("journal")):
        aside = tmp_path / "aside"
        part.rename(aside)
        code, words = refused(command)
        assert code == 1
        assert "event=data_missing" in words
        assert f"path={part}" in words
        assert "restore it and start again" in words
        aside.rename(part)
    live()


@pytest.mark.skipif(open_ring() is None, reason="the kernel offers no ring here")
@pytest.mark.parametrize(("wanted", "writer"), [("true", "io_uring"), ("false", "thread")])
def test_journal_is_written_by_the_kernel_unless_that_is_turned_off(wanted, writer, tmp_path):
    """The log says which, and only a server that may has a ring."""
    port = free_port()
    command = serve(tmp_path, port)
    with (tmp_path / "server.toml").open("a", encoding="utf-8") as settings:
        settings.write(f"[storage]\nio_uring = {wanted}\n")
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        reachable(port)
        memory = Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.kill()
        server.wait(30)
    assert f"journal_writes={writer}" in (tmp_path / "log").read_text()
    assert ("[io_uring]" in memory) == (writer == "io_uring")
