"""A replica set on this machine: its layout, its ports, and which processes it believes its own."""

import os
import socket
import subprocess
import sys

import pytest

from vdl.commands.replica_set import (
    LocalServer,
    ReplicaSetError,
    check_ports,
    find_replica_set,
    is_server_process,
    make_replica_set,
    start_server,
    stop_servers,
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
    """Starts a process whose command line reads like a server's; ended by closing its input."""
    started = []

    def start(config_file):
        command = [sys.executable, "-c", WAITS_FOR_INPUT, "serve", "--config", str(config_file)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        # Its command line is only there once the new program has really begun.
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.wait()


def test_replica_set_made_is_found_again(replica_set):
    """What was laid out once is started again from its folder alone."""
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
    """What a person wrote into a server's file stays; a wiped server gets a new one."""
    first, second, _ = replica_set.servers
    edited = first.config_file.read_text() + '\n[log]\nlevel = "debug"\n'
    first.config_file.write_text(edited)
    second.config_file.unlink()
    write_configs(replica_set)
    assert first.config_file.read_text() == edited
    assert second.config().server_id == 2


@pytest.mark.parametrize(("count", "base_port"), [(0, 9092), (10, 9092), (3, 80), (3, 65_500)])
def test_replica_set_impossible_size_or_port_is_refused(tmp_path, count, base_port):
    """Refused before anything is written."""
    with pytest.raises(ReplicaSetError):
        make_replica_set(tmp_path / "set", count=count, base_port=base_port)
    assert not (tmp_path / "set").exists()


def test_replica_set_damaged_record_is_an_error(tmp_path):
    """A record that cannot be read is not taken for an empty folder."""
    (tmp_path / "replica_set.toml").write_text("servers = 'x'\n")
    with pytest.raises(ReplicaSetError, match="cannot be used"):
        find_replica_set(tmp_path)


def test_pid_file_of_this_server_is_believed(replica_set, process_like_a_server):
    """The process runs `serve` with the very same configuration file."""
    server = replica_set.servers[0]
    process = process_like_a_server(server.config_file)
    server.pid_file.write_text(f"{process.pid}\n")
    assert server.running_pid() == process.pid
    assert replica_set.running() == {1: process.pid}


def test_pid_file_of_a_stranger_is_not_believed(replica_set, process_like_a_server):
    """A number that now belongs to another program, or another server, is stale."""
    first, second, _ = replica_set.servers
    other = process_like_a_server(second.config_file)
    for pid in (other.pid, os.getpid(), 1, 2**22 + 1):
        first.pid_file.write_text(f"{pid}\n")
        assert first.running_pid() == 0


@pytest.mark.parametrize("content", ["", "x", "-1", "99999999999999999999"])
def test_pid_file_without_a_process_is_stale(replica_set, content):
    """Whatever a crash left in the file, it is only looked at."""
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
    """Asked to stop, it stops; the pid file goes with it."""
    server = replica_set.servers[0]
    process = process_like_a_server(server.config_file)
    server.pid_file.write_text(f"{process.pid}\n")
    assert list(stop_servers(replica_set.servers, patience_seconds=5)) == [1]
    assert not server.pid_file.exists()
    assert not is_server_process(process.pid, server.config_file)


def test_check_ports_taken_port_is_named(tmp_path):
    """The message says which port, for which server, and the way out."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        directory = tmp_path / "1"
        directory.mkdir()
        server = LocalServer(1, directory)
        server.config_file.write_text(f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n')
        with pytest.raises(ReplicaSetError, match=f"port {port}.*server 1.*--base-port"):
            check_ports([server])


def test_wait_until_started_server_that_ends_shows_its_log(tmp_path):
    """A server that cannot start is reported with the last lines it logged, at once."""
    directory = tmp_path / "1"
    directory.mkdir()
    server = LocalServer(1, directory)
    server.config_file.write_text("[sever]\nid = 1\n")
    process = start_server(server)
    process.wait()
    server.config_file.write_text("[http]\nlisten = '127.0.0.1:1'\n")
    with pytest.raises(ReplicaSetError, match=r"(?s)exit code 2.*did you mean server\.id"):
        wait_until_started([server], {1: process}, timeout_seconds=5)
