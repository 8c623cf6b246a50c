"""A replica set on this machine: its layout, its ports, and its processes."""

import errno
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import free_base_port
from vdl.commands.servers.pid_file import read_pid, remove_pid, write_pid
from vdl.commands.servers.replica_set import (
    NEW_SET_RETENTION_MS,
    LocalServer,
    ReplicaSetError,
    find_replica_set,
    is_server_process,
    locked,
    make_replica_set,
    start_server,
    stop_servers,
    taken_ports,
    wait_until_started,
    write_configs,
)

BASE_PORT = 21_000
WAITS_FOR_INPUT = "import sys; print(flush=True); sys.stdin.read()"


@pytest.fixture
def replica_set(tmp_path):
    made = make_replica_set(tmp_path / "set", count=3, base_port=BASE_PORT)
    write_configs(made)
    return made


@pytest.fixture
def process_like_a_server():
    """Yield a function that starts a process whose command line looks like a server's.

    It ends when its input is closed.
    """
    started = []

    def start(config_file):
        command = [sys.executable, "-c", WAITS_FOR_INPUT, "serve", "--config", str(config_file)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        # Its command line is visible only once the new program has really begun.
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_replica_set_made_is_found_again(replica_set):
    """A set that was laid out once is started again from its folder alone."""
    assert find_replica_set(replica_set.directory) == replica_set
    assert [server.id for server in replica_set.servers] == [1, 2, 3]
    assert replica_set.bootstrap == "127.0.0.1:21000,127.0.0.1:21001,127.0.0.1:21002"


def test_replica_set_configurations_agree_and_share_no_port(replica_set):
    """Every server has the same seeds, its own ports, and its data beside its configuration."""
    configs = [server.config() for server in replica_set.servers]
    assert len({tuple(config.seeds.items()) for config in configs}) == 1
    ports = [config.listeners[0].port for config in configs]
    for config in configs:
        ports += [config.peer.listen.port, config.admin.listen.port, config.http.port]
    assert len(set(ports)) == 12
    assert [config.data_dir for config in configs] == [
        server.directory / "store" for server in replica_set.servers
    ]


def test_replica_set_of_one_is_a_single_server(tmp_path):
    """One server has no seeds: it is complete by itself."""
    made = make_replica_set(tmp_path, count=1, base_port=BASE_PORT)
    write_configs(made)
    assert made.servers[0].config().seeds == {}


def test_replica_set_edited_configuration_is_kept(replica_set):
    """A user's changes to a server's file stay; a wiped server gets a new one."""
    first, second, _ = replica_set.servers
    edited = first.config_file.read_text() + '\n[log]\nlevel = "debug"\n'
    first.config_file.write_text(edited)
    second.config_file.unlink()
    write_configs(replica_set)
    assert first.config_file.read_text() == edited
    assert second.config().server_id == 2


@pytest.mark.parametrize("is_secure", [False, True])
def test_new_replica_set_keeps_records_as_long_as_recorded(tmp_path, is_secure):
    """A new set's retention is in each server's file, also in one that is written again later."""
    made = make_replica_set(
        tmp_path / "set", count=2, base_port=BASE_PORT, is_secure=is_secure,
        retention_ms=NEW_SET_RETENTION_MS,
    )  # fmt: skip
    found = find_replica_set(made.directory)
    assert found == made
    write_configs(found)
    found.servers[1].config_file.unlink()
    write_configs(found)
    for server in found.servers:
        assert "\nlog.retention.ms = 604800000 " in server.config_file.read_text()
        if not is_secure:
            assert server.config().kafka.retention_ms == NEW_SET_RETENTION_MS


def test_replica_set_from_before_keeps_records_for_ever(replica_set):
    """A set without a recorded retention keeps records for ever, also with rewritten files."""
    assert "retention" not in (replica_set.directory / "replica_set.toml").read_text()
    found = find_replica_set(replica_set.directory)
    assert found == replica_set
    found.servers[1].config_file.unlink()
    write_configs(found)
    assert [server.config().kafka.retention_ms for server in found.servers] == [-1] * 3


@pytest.mark.parametrize(
    ("count", "base_port", "per_host"),
    [
        (0, 9092, 0), (10, 9092, 0), (3, 80, 0), (3, 65_500, 0),
        (49, 9092, 4), (3, 9092, 4), (3, 9092, -1), (12, 65_300, 4),
    ],
)  # fmt: skip
def test_replica_set_impossible_size_or_port_is_refused(tmp_path, count, base_port, per_host):
    """Impossible sizes and ports are refused before anything is written."""
    with pytest.raises(ReplicaSetError):
        make_replica_set(tmp_path / "set", count=count, base_port=base_port, per_host=per_host)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("count", "per_host", "seeds"),
    [
        (12, 4, (1, 5, 9)), (6, 2, (1, 3, 5)), (20, 4, (1, 5, 9, 13, 17)), (7, 4, (1, 2, 5)),
        (2, 1, (1, 2)), (4, 4, (1, 2, 3)),
    ],
)  # fmt: skip
def test_set_with_hosts_begins_with_servers_of_different_hosts(tmp_path, count, per_host, seeds):
    """All know the same first servers; those of a host share a rack, and no two share a port."""
    made = make_replica_set(tmp_path / "set", count=count, base_port=BASE_PORT, per_host=per_host)
    assert find_replica_set(made.directory) == made
    write_configs(made)
    configs = [server.config() for server in made.servers]
    assert {tuple(config.seeds) for config in configs} == {made.seeds} == {seeds}
    assert [config.rack for config in configs] == [
        f"host-{number // per_host + 1}" for number in range(count)
    ]
    ports = [
        port for config in configs
        for port in (
            config.listeners[0].port, config.peer.listen.port, config.admin.listen.port,
            config.http.port,
        )
    ]  # fmt: skip
    assert len(set(ports)) == 4 * count
    own = {config.server_id: config.peer.listen for config in configs}
    assert all(config.seeds[seed] == own[seed] for config in configs for seed in seeds)


@pytest.mark.parametrize("name", ["letter.txt", "1"])
def test_replica_set_is_not_made_in_the_folder_of_something_else(tmp_path, name):
    """The existing files stay unchanged; a folder beside the servers' is harmless."""
    (tmp_path / "tables").mkdir()
    (tmp_path / ".keep").touch()
    (tmp_path / name).touch()
    with pytest.raises(ReplicaSetError, match=f"has no replica set but contains {name}"):
        make_replica_set(tmp_path, count=1, base_port=BASE_PORT)
    (tmp_path / name).unlink()
    make_replica_set(tmp_path, count=1, base_port=BASE_PORT)


def test_replica_set_damaged_record_is_an_error(tmp_path):
    """An unreadable record is not taken for an empty folder."""
    (tmp_path / "replica_set.toml").write_text("servers = 'x'\n")
    with pytest.raises(ReplicaSetError, match="cannot read"):
        find_replica_set(tmp_path)


def test_pid_file_of_this_server_is_believed(replica_set, process_like_a_server):
    """The process runs `serve` with the very same configuration file."""
    server = replica_set.servers[0]
    process = process_like_a_server(server.config_file)
    server.pid_file.write_text(f"{process.pid}\n")
    assert server.running_pid() == process.pid
    assert replica_set.running() == {1: process.pid}


def test_pid_file_of_a_stranger_is_not_believed(replica_set, process_like_a_server):
    """A process id that now belongs to another program, or another server, is stale."""
    first, second, _ = replica_set.servers
    other = process_like_a_server(second.config_file)
    for pid in (other.pid, os.getpid(), 1, 2**22 + 1):
        first.pid_file.write_text(f"{pid}\n")
        assert first.running_pid() == 0


@pytest.mark.parametrize("content", ["", "x", "-1", "99999999999999999999"])
def test_pid_file_without_a_process_is_stale(replica_set, content):
    """A stale file is only read, whatever a crash left in it."""
    server = replica_set.servers[0]
    server.pid_file.write_text(content)
    assert server.running_pid() == 0


def test_stop_servers_never_ends_a_stranger(replica_set, process_like_a_server):
    """`vdl down` with a stale pid file leaves the other process alone."""
    first, second, _ = replica_set.servers
    other = process_like_a_server(second.config_file)
    first.pid_file.write_text(f"{other.pid}\n")
    assert stop_servers([first], patience_seconds=1) == {}
    assert other.poll() is None


def test_stop_servers_ends_ours_and_forgets_the_pid(replica_set, process_like_a_server):
    """The server stops on request; the pid file is removed."""
    server = replica_set.servers[0]
    process = process_like_a_server(server.config_file)
    server.pid_file.write_text(f"{process.pid}\n")
    assert list(stop_servers(replica_set.servers, patience_seconds=5)) == [1]
    assert not server.pid_file.exists()
    assert not is_server_process(process.pid, server.config_file)


def test_taken_port_is_named_with_the_server_that_wants_it(tmp_path):
    """The port is held by another program; servers without a conflict are not in the result."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        directory = tmp_path / "1"
        directory.mkdir()
        server = LocalServer(1, directory)
        server.config_file.write_text(f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n')
        assert taken_ports([server]) == {1: f"port {port} is in use by another program"}
    assert taken_ports([server]) == {}


def test_wait_until_started_server_that_ends_shows_its_log(tmp_path):
    """A server that cannot start is reported at once, with its last log lines."""
    directory = tmp_path / "1"
    directory.mkdir()
    server = LocalServer(1, directory)
    server.config_file.write_text("[sever]\nid = 1\n")
    process = start_server(server)
    process.wait()
    server.config_file.write_text("[http]\nlisten = '127.0.0.1:1'\n")
    started = wait_until_started([server], {1: process}, timeout_seconds=5)
    assert re.search(r"(?s)exit code 2.*did you mean server\.id", started.failed[1])


class Healthy(BaseHTTPRequestHandler):
    """A server that answers every health check."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"state": "serving"}).encode())

    def log_message(self, *_):
        pass


def test_wait_until_started_does_not_take_another_server_for_one_that_ended(tmp_path):
    """Two that were started at once have the same ports: one serves there, the other has ended."""
    server = LocalServer(1, tmp_path)
    with HTTPServer(("127.0.0.1", 0), Healthy) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        try:
            server.config_file.write_text(f'[http]\nlisten = "127.0.0.1:{other.server_port}"\n')
            process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"])
            process.wait()
            assert wait_until_started([server], {}, timeout_seconds=60).serving == [1]
            started = wait_until_started([server], {1: process}, timeout_seconds=5)
            assert (started.serving, list(started.failed)) == ([], [1])
        finally:
            other.shutdown()


def test_pid_file_is_removed_only_for_the_process_it_names(tmp_path):
    """A server that could not start does not remove the file of the running one."""
    file = tmp_path / "server.pid"
    write_pid(file, 7)
    remove_pid(file, 8)
    assert read_pid(file) == 7
    remove_pid(file, 7)
    assert not list(tmp_path.iterdir())
    remove_pid(file, 7)


def test_replica_set_is_started_and_stopped_by_one_at_a_time(tmp_path):
    """The second `vdl up` fails at once; the folder is free again when the first is done."""
    with locked(tmp_path / "set"):
        with (
            pytest.raises(ReplicaSetError, match="another `vdl up`"),
            locked(tmp_path / "set"),
        ):
            pass
        up = [sys.executable, "-m", "vdl.cli", "up", "--data", str(tmp_path / "set"), "--detach"]
        second = subprocess.run(up, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert "another `vdl up`" in second.stderr
        assert list((tmp_path / "set").iterdir()) == []
    with locked(tmp_path / "set"):
        pass


def test_vdl_down_says_what_it_waits_for(replica_set):
    """A start under way ends first, which may take a minute."""
    down = [sys.executable, "-m", "vdl.cli", "down", "--data", str(replica_set.directory)]
    with locked(replica_set.directory):
        process = subprocess.Popen(down, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            said = process.stderr.readline()
            assert "waiting for another `vdl up`" in said
            assert process.poll() is None
        except BaseException:
            process.kill()
            process.wait()
            raise
    output, _ = process.communicate(timeout=60)
    assert output == "nothing was running\n"
    assert process.returncode == 0


def test_two_started_at_once_are_one_server_and_it_can_be_stopped(tmp_path):
    """One of two `vdl up` fails with a message; `vdl down` finds the server of the other."""
    vdl = [sys.executable, "-m", "vdl.cli"]
    data = ["--data", str(tmp_path)]
    port = str(free_base_port(1, random.Random()))
    up = [*vdl, "up", *data, "--nodes", "1", "--base-port", port, "--detach"]
    both = [subprocess.Popen(up, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    try:
        said = [b"".join(one.communicate(timeout=60)) for one in both]
    finally:
        down = subprocess.run([*vdl, "down", *data], capture_output=True, timeout=60, check=False)
    assert sorted(one.returncode for one in both) == [0, 1], said
    assert down.stdout == b"server 1 stopped\n"


@pytest.mark.parametrize("trouble", ["port", "log"])
def test_server_that_cannot_start_does_not_take_the_others_down(tmp_path, trouble):
    """The other servers serve, and `vdl up` names the failed one and fails.

    When the cause is removed it starts that one.
    """
    vdl, data = [sys.executable, "-m", "vdl.cli"], tmp_path / "set"
    port = free_base_port(3, random.Random())
    make_replica_set(data, count=3, base_port=port)
    up = [*vdl, "up", "--data", str(data), "--detach"]
    down = [*vdl, "down", "--data", str(data)]
    taken = socket.socket()
    try:
        for command in (up, down):  # a new set needs all of its servers
            subprocess.run(command, capture_output=True, timeout=90, check=True)
        (data / "2" / "server.log").unlink()
        if trouble == "port":
            taken.bind(("127.0.0.1", port + 1))
            taken.listen()
        else:
            (data / "2" / "server.log").mkdir(parents=True)
        first = subprocess.run(up, capture_output=True, text=True, timeout=90, check=False)
        assert first.returncode == 1, first.stderr
        assert "2 of 3 servers up (1, 3)" in first.stdout
        why = f"port {port + 1} is in use by another program" if trouble == "port" else "server.log"
        assert re.search(f"server 2: .*{why}", first.stderr)
        taken.close()
        if trouble == "log":
            (data / "2" / "server.log").rmdir()
        second = subprocess.run(up, capture_output=True, text=True, timeout=90, check=False)
        assert second.returncode == 0, second.stderr
        assert "3 servers up" in second.stdout
    finally:
        taken.close()
        subprocess.run(down, capture_output=True, timeout=90, check=True)


@pytest.mark.parametrize(("by", "flag"), [("", "--base-port"), ("make up", "PORT=")])
def test_new_set_whose_port_is_taken_names_the_flag_of_the_command_that_was_used(
    tmp_path, by, flag
):
    """Nothing is started: a new set can use another port."""
    port = free_base_port(3, random.Random())
    up = [sys.executable, "-m", "vdl.cli", "up", "--data", str(tmp_path), "--base-port", str(port)]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 2))
        taken.listen()
        done = subprocess.run(
            up, env=os.environ | {"VDL_CALLED_BY": by}, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"server 3: port {port + 2} is in use by another program" in done.stderr
    assert f"choose other ports with {flag} " in done.stderr
    assert not list(tmp_path.rglob("server.pid"))


def no_room(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("write", ["write", "sync"])
def test_replica_set_on_a_full_disk_leaves_nothing_that_is_believed_later(
    tmp_path, monkeypatch, write
):
    """A file that could not be written is absent; when there is space everything works."""
    directory = tmp_path / "set"
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_room)
        if write == "write":
            full.setattr(Path, "open", opened_on_a_full_disk)
        with pytest.raises(ReplicaSetError, match="No space left"):
            make_replica_set(directory, count=1, base_port=BASE_PORT)
    assert list(directory.iterdir()) == []
    made = make_replica_set(directory, count=1, base_port=BASE_PORT)
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", no_room)
        if write == "write":
            full.setattr(Path, "open", opened_on_a_full_disk)
        with pytest.raises(ReplicaSetError, match="No space left"):
            write_configs(made)
    assert list(made.servers[0].directory.iterdir()) == []
    write_configs(made)
    assert made.bootstrap == f"127.0.0.1:{BASE_PORT}"


def opened_on_a_full_disk(path, mode="r", **options):
    """Create a file, as a full disk permits, to which nothing can be written."""
    file = open(path, mode, **options)  # noqa: PTH123, SIM115 - in place of `Path.open`
    return file if "r" in mode else FullFile(file)


class FullFile:
    """An open file on a full disk."""

    def __init__(self, file):
        self._file = file
        self.write = no_room

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def test_server_whose_pid_file_cannot_be_written_is_not_left_running(tmp_path, monkeypatch):
    """A server without a pid file is stopped, because it could not be found again."""
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *given, **options: started.append(popen(*given, **options))
        or started[-1],
    )  # fmt: skip
    server = LocalServer(1, tmp_path)
    server.config_file.write_text("")
    server.pid_file.mkdir()
    with pytest.raises(ReplicaSetError, match="cannot write"):
        start_server(server)
    assert [process.poll() for process in started] == [-9]


def test_replica_set_empty_configuration_is_refused(replica_set):
    """An empty file is refused.

    It would be a server with every default, on another's port and with another's data.
    """
    replica_set.servers[1].config_file.write_text("")
    with pytest.raises(ReplicaSetError, match=r"2/vdl\.toml is empty"):
        write_configs(replica_set)


def test_replica_set_file_in_the_place_of_a_folder_is_an_error_in_words(tmp_path):
    """The error is reported as others that the user has to repair."""
    made = make_replica_set(tmp_path / "set", count=1, base_port=BASE_PORT)
    made.servers[0].directory.write_text("")
    with pytest.raises(ReplicaSetError, match=r"cannot use .*/set/1"):
        write_configs(made)
    with pytest.raises(ReplicaSetError, match="cannot start"):
        start_server(made.servers[0])
    with (
        pytest.raises(ReplicaSetError, match="is a file; expected a folder"),
        locked(made.servers[0].directory),
    ):
        pass
