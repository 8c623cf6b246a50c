"""A replica set on this machine: its folder, its ports, its processes.

```
DIR/replica_set.toml    number of servers, first port, servers of a host
DIR/<id>/vdl.toml       the server's configuration; written once, then the user's to edit
DIR/<id>/store/         its data directory
DIR/<id>/server.pid     its process id, while it runs
DIR/<id>/server.log     its log
DIR/tls/                of a set with --secure: certificates (`certificates.py`)
DIR/first_users         of such a set: credentials that its first user's password is checked with
DIR/client.properties   of such a set: that user's client settings, password included
```
Server `id` (from 1) takes four ports: `base + id - 1` for clients, and 10, 20 and 30 above it for
peers, administration and metrics; of more than nine servers 100, 200 and 300 above it.

A set with `per_host` stands for several hosts with that many servers each: those of a host share a
rack. The cluster begins with a server of each host, and `vdl up` adds the others to it, so
that the catalog and the coordinators have few replicas, on different hosts.

A process id counts only while that process runs `vdl serve` with exactly this configuration file:
no unrelated process may be ended. A command that starts or stops the set holds a lock on its
folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ids import ServerId
from vdl.commands.servers.pid_file import is_server_process, read_pid, remove_pid, write_pid
from vdl.config.settings import Config, load_config
from vdl.config.values import Address
from vdl.logstream.group.retention import FOREVER
from vdl.state.added_servers import INITIAL_VOTERS_MIN

SERVERS_MAX = 9
"""Limit of a set that is not divided into hosts: each of its servers votes on the catalog."""
HOSTED_SERVERS_MAX = 48
SEEDS_MAX = 5
RECORD = "replica_set.toml"
PEER_PORT_STEP, ADMIN_PORT_STEP, HTTP_PORT_STEP = 10, 20, 30
POLL_SECONDS = 0.02
LOG_TAIL_LINES = 5
FILE_SYSTEMS_OWN = "lost+found"
"""Folder in the root of a new ext4."""
FIRST_USER = "admin"
"""First user of a set with --secure; it may do everything."""
NEW_SET_RETENTION_MS = 604_800_000
"""Kafka's default of `log.retention.ms`, written to the files of a new set. The servers' own
default is for ever: an older set must not lose records because its software is newer."""
SERVING, WAITING = "serving", "waiting"
"""States of a server that has finished its start, as `/health` reports them."""


class ReplicaSetError(Exception):
    """A problem that a person has to decide or repair; the text describes it."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server of the set: its files. The system is queried for its process."""

    id: ServerId
    directory: Path

    @property
    def config_file(self) -> Path:
        return self.directory / "vdl.toml"

    @property
    def pid_file(self) -> Path:
        return self.directory / "server.pid"

    @property
    def log_file(self) -> Path:
        return self.directory / "server.log"

    def config(self) -> Config:
        """Load the server's configuration. Raises ConfigError."""
        return load_config(self.config_file)

    def running_pid(self) -> int:
        """Return the server's process id, 0 if it does not run."""
        pid = read_pid(self.pid_file)
        return pid if is_server_process(pid, self.config_file) else 0

    def log_tail(self) -> str:
        """Return the last lines of the log, for a message about a server that did not start."""
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The servers below one folder."""

    directory: Path
    base_port: int
    servers: tuple[LocalServer, ...]
    is_secure: bool = False
    """True if it was made with --secure."""
    retention_ms: int = FOREVER
    """`log.retention.ms` of its servers' files, as it was when the set was made. It is recorded so
    that a server file that is written again gets the same value."""
    per_host: int = 0
    """Servers of each host; 0: the set is not divided into hosts."""

    @property
    def seeds(self) -> tuple[ServerId, ...]:
        """Servers with which the cluster begins: all, or a server of each host in turn, until they
        are enough."""
        ids = [server.id for server in self.servers]
        if not self.per_host:
            return tuple(ids)
        hosts = -(-len(ids) // self.per_host)
        enough = SEEDS_MAX if hosts >= SEEDS_MAX else INITIAL_VOTERS_MIN
        by_turn = sorted(ids, key=lambda server: ((server - 1) % self.per_host, server))
        return tuple(sorted(by_turn[:enough]))

    def host_of(self, server_id: ServerId) -> str:
        """Return the name of a server's host; empty if the set is not divided into hosts."""
        return f"host-{(server_id - 1) // self.per_host + 1}" if self.per_host else ""

    def port_of(self, server_id: ServerId, step: int = 0) -> int:
        """Return a port of a server: for clients, or for what `step` stands for."""
        factor = 10 if len(self.servers) > SERVERS_MAX else 1
        return self.base_port + server_id - 1 + step * factor

    @property
    def client_file(self) -> Path:
        """Client properties of a secure set."""
        return self.directory / "client.properties"

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses for Kafka clients: the address of every server."""
        addresses = []
        for server in self.servers:
            listener = server.config().listeners[0]
            host = listener.advertised_host or listener.host
            addresses.append(str(Address(host, listener.advertised_port or listener.port)))
        return ",".join(addresses)

    def running(self) -> dict[ServerId, int]:
        """Return server id → process id of the servers that run."""
        pids = {server.id: server.running_pid() for server in self.servers}
        return {server_id: pid for server_id, pid in pids.items() if pid}


@contextlib.contextmanager
def locked(directory: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of the set in this folder against other starts and stops. Raises
    ReplicaSetError if the folder cannot be used. If another command holds the lock, it calls
    `on_wait`, if given, and waits; otherwise it raises ReplicaSetError. Needs no room on the disk:
    a set is also stopped on a full one. The lock ends with the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ReplicaSetError(f"{directory} is a file; expected a folder") from None
    except OSError as error:
        raise ReplicaSetError(f"cannot use {directory}: {error.strerror}") from error
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ReplicaSetError(f"cannot use {directory}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if on_wait is None:
            os.close(descriptor)
            raise ReplicaSetError(
                f"another `vdl up` or `vdl down` is running in {directory}; try again when it "
                "has finished"
            ) from None
        on_wait()
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # no locks here (some network file systems): continue without one
    try:
        yield
    finally:
        os.close(descriptor)


def find_replica_set(directory: Path) -> ReplicaSet | None:
    """Return the set that was made below `directory`; None if there is none. Raises
    ReplicaSetError."""
    file = directory / RECORD
    try:
        recorded = tomllib.loads(file.read_text(encoding="utf-8"))
        count, base_port = int(recorded["servers"]), int(recorded["base_port"])
        is_secure = recorded.get("secure", False) is True
        retention_ms = int(recorded.get("retention_ms", FOREVER))
        per_host = int(recorded.get("per_host", 0))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReplicaSetError(f"cannot read {file}: {error}") from error
    servers = _servers(directory, count)
    return ReplicaSet(directory.resolve(), base_port, servers, is_secure, retention_ms, per_host)


def make_replica_set(
    directory: Path,
    *,
    count: int,
    base_port: int,
    is_secure: bool = False,
    retention_ms: int = FOREVER,
    per_host: int = 0,
) -> ReplicaSet:
    """Lay out a new set. Raises ReplicaSetError."""
    check_layout(count=count, base_port=base_port, per_host=per_host)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        strange = _strange_entry(directory, count)
        if strange:
            raise ReplicaSetError(
                f"{directory} has no replica set but contains {strange}; choose an empty folder"
            )
    except OSError as error:
        raise ReplicaSetError(f"cannot write to {directory}: {error.strerror}") from error
    _write_file(
        directory / RECORD,
        f"# Written by `vdl up`: the replica set in this folder.\n"
        f"servers = {count}\nbase_port = {base_port}\n"
        + "secure = true\n" * is_secure
        + f"retention_ms = {retention_ms}\n" * (retention_ms != FOREVER)
        + f"per_host = {per_host}\n" * bool(per_host),
    )
    servers = _servers(directory, count)
    return ReplicaSet(directory.resolve(), base_port, servers, is_secure, retention_ms, per_host)


def _strange_entry(directory: Path, count: int) -> str:
    """Return the name of an entry that prevents a new set: a file, or an occupied place of a
    server. Empty folders of servers are accepted, with a disk mounted in them or not. Other
    folders, and files whose names begin with a dot, may exist beside a set."""
    if (directory / RECORD).exists():
        return ""
    places = {str(number) for number in range(1, count + 1)}
    for entry in sorted(directory.iterdir()):
        is_file = entry.is_file() and not entry.name.startswith((".", RECORD))
        is_taken = entry.name in places and not _has_room_for_a_server(entry)
        if is_file or is_taken:
            return entry.name
    return ""


def _has_room_for_a_server(folder: Path) -> bool:
    """Return True if the folder contains only folders that are empty except for `lost+found`."""
    if not folder.is_dir():
        return False
    return all(
        entry.is_dir()
        and (
            entry.name == FILE_SYSTEMS_OWN
            or {one.name for one in entry.iterdir()} <= {FILE_SYSTEMS_OWN}
        )
        for entry in folder.iterdir()
    )


def check_layout(*, count: int, base_port: int, per_host: int = 0) -> None:
    """Raise ReplicaSetError for an impossible number of servers or port."""
    if per_host and not 1 <= per_host <= count:
        raise ReplicaSetError(f"{per_host} servers a host are not possible with {count} servers")
    most = HOSTED_SERVERS_MAX if per_host else SERVERS_MAX
    if not 1 <= count <= most:
        raise ReplicaSetError(
            f"{count} servers are not possible: a replica set on one machine has 1 to {most}"
            + f", or with --per-host to {HOSTED_SERVERS_MAX}" * (not per_host)
        )
    steps = HTTP_PORT_STEP * (10 if count > SERVERS_MAX else 1)
    last = 65_535 - steps - max(count, SERVERS_MAX)
    if not 1_024 <= base_port <= last:
        raise ReplicaSetError(f"base port {base_port} is not possible: expected 1024 to {last}")


def _write_file(path: Path, text: str) -> None:
    """Write a file as a whole or not at all, even if the disk is full: its contents are trusted
    from then on. Raises ReplicaSetError."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ReplicaSetError(f"cannot write {path}: {error.strerror}") from error


def _servers(directory: Path, count: int) -> tuple[LocalServer, ...]:
    root = directory.resolve()
    return tuple(
        LocalServer(number, root / str(number)) for number in map(ServerId, range(1, count + 1))
    )


def write_configs(replica_set: ReplicaSet) -> None:
    """Write the configuration of every server that has none yet. Raises ReplicaSetError."""
    for server in replica_set.servers:
        file = server.config_file
        try:
            server.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            size = file.stat().st_size
        except FileNotFoundError:
            _write_file(file, config_text(replica_set, server.id))
        except OSError as error:
            raise ReplicaSetError(f"cannot use {server.directory}: {error.strerror}") from error
        else:
            if not size:
                # It would load as a server with all defaults, at another server's port.
                raise ReplicaSetError(f"{file} is empty; remove it, and it is written again")


def config_text(replica_set: ReplicaSet, server_id: ServerId) -> str:
    """Return the configuration of one server of a set on loopback."""
    is_secure, retention_ms = replica_set.is_secure, replica_set.retention_ms
    port_of, seeds = replica_set.port_of, replica_set.seeds
    host = replica_set.host_of(server_id)
    protocol = "SASL_SSL" if is_secure else "PLAINTEXT"
    lines = [
        "# Written once by `vdl up`; may be edited. docs/configure.md has every key.",
        "",
        "[server]",
        f"id = {server_id}",
        'data_dir = "store"',
        *([f'rack = "{host}"'] if host else []),
        "",
        "[[listeners]]",
        f'name = "{protocol}"',
        f'listen = "127.0.0.1:{port_of(server_id)}"',
        "",
        "[admin]",
        f'listen = "127.0.0.1:{port_of(server_id, ADMIN_PORT_STEP)}"',
        "",
        "[http]",
        f'listen = "127.0.0.1:{port_of(server_id, HTTP_PORT_STEP)}"',
    ]
    if not is_secure:
        lines += ['console = "loopback"  # docs/console.md']
    if is_secure:
        lines += [
            "",
            "[tls]",
            f'certificate = "../tls/server-{server_id}.pem"',
            f'key = "../tls/server-{server_id}.key"',
            'ca = "../tls/ca.pem"',
            "",
            "[security]",
            'first_users = "../first_users"',
            "authorizer = true",
        ]
    if is_secure or retention_ms != FOREVER:
        lines += ["", "[kafka]"]
    if is_secure:
        lines += [f'super.users = "User:{FIRST_USER}"']
    if retention_ms != FOREVER:
        lines += [
            f"log.retention.ms = {retention_ms}  # -1: no limit; overridden by retention.ms of "
            "a topic"
        ]
    if server_id not in seeds:
        lines += ["", "[peer]", f'listen = "127.0.0.1:{port_of(server_id, PEER_PORT_STEP)}"']
    if len(replica_set.servers) > 1:
        lines += ["", "[cluster.seeds]"]
        lines += [f'{number} = "127.0.0.1:{port_of(number, PEER_PORT_STEP)}"' for number in seeds]
    return "\n".join(lines) + "\n"


# --- processes ------------------------------------------------------------------------------------


def taken_ports(servers: Iterable[LocalServer]) -> dict[ServerId, str]:
    """Return the servers that cannot listen on one of their addresses: server id → reason. Raises
    ConfigError."""
    found: dict[ServerId, str] = {}
    for server in servers:
        config = server.config()
        wanted = [Address(listener.host, listener.port) for listener in config.listeners]
        wanted += [endpoint.listen for endpoint in (config.peer, config.admin) if endpoint]
        wanted += [config.http] if config.http else []
        causes = [cause for cause in map(_why_not, wanted) if cause]
        if causes:
            found[server.id] = causes[0]
    return found


def _why_not(address: Address) -> str:
    """Return the reason why an address cannot be listened on; empty if it can."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # Bind as the servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return f"{address}: {error.strerror}"
            return f"port {address.port} is in use by another program"
    return ""


def start_server(server: LocalServer) -> subprocess.Popen[bytes]:
    """Start the server's process, in a session of its own so that ^C does not reach it. Raises
    ReplicaSetError."""
    command = [sys.executable, "-m", "vdl.cli", "serve"]
    command += ["--config", str(server.config_file), "--pid-file", str(server.pid_file)]
    try:
        with server.log_file.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
    except OSError as error:
        raise ReplicaSetError(f"cannot start: {error}") from error
    try:
        # The server writes it as well; written here so that an interrupted `vdl up` can find it.
        write_pid(server.pid_file, process.pid)
    except OSError as error:
        process.kill()  # without the file it could not be found again
        process.wait()
        raise ReplicaSetError(f"cannot write {server.pid_file}: {error.strerror}") from error
    return process


@dataclass(frozen=True, slots=True)
class Probe:
    """Address to query a server's state: its metrics port, or, if that is off, a client listener,
    which then only has to accept a connection."""

    server_id: ServerId
    address: Address
    is_http: bool

    @staticmethod
    def of(server: LocalServer) -> Probe:
        config = server.config()
        if config.http is not None:
            return Probe(server.id, config.http, is_http=True)
        listener = config.listeners[0]
        return Probe(server.id, Address(listener.host, listener.port), is_http=False)

    def state(self) -> str:
        """Return the state that the server reports ("serving", "waiting"); empty if it reports
        none."""
        host, port = self.address.host, self.address.port
        if not self.is_http:
            try:
                socket.create_connection((host, port), timeout=1).close()
            except OSError:
                return ""
            return SERVING
        connection = http.client.HTTPConnection(host, port, timeout=1)
        try:
            connection.request("GET", "/health")
            return str(json.loads(connection.getresponse().read())["state"])
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return ""
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class Started:
    """Result of starting servers of a set."""

    serving: list[ServerId]
    outside: list[ServerId]
    """Servers that take no part: their cluster does not know their data directory."""
    failed: dict[ServerId, str]
    """Servers that ended, or do not serve yet: the reason, with the end of the log."""


def wait_until_started(
    servers: Sequence[LocalServer],
    processes: Mapping[ServerId, subprocess.Popen[bytes]],
    *,
    timeout_seconds: float,
) -> Started:
    """Return when each of `servers` serves, reports that it takes no part, or has ended (those of
    `processes`, by server id), or when time runs out."""
    deadline = time.monotonic() + timeout_seconds
    starting = [Probe.of(server) for server in servers]
    started = Started([], [], {})
    by_id = {server.id: server for server in servers}

    def fail(server_id: ServerId, how: str) -> None:
        server = by_id[server_id]
        started.failed[server_id] = f"{how}; end of {server.log_file}:\n{server.log_tail()}"

    while starting:
        states = {probe.server_id: probe.state() for probe in starting}
        # Look for an end before using an answer: another program may have taken its port.
        for server_id in sorted(states):
            process = processes.get(server_id)
            if process is not None and process.poll() is not None:
                fail(server_id, f"ended with exit code {process.returncode}")
            elif states[server_id] == SERVING:
                started.serving.append(server_id)
            elif states[server_id] == WAITING:
                started.outside.append(server_id)
            elif time.monotonic() > deadline:
                fail(server_id, f"not serving after {timeout_seconds:.0f} s")
            else:
                continue
            starting = [probe for probe in starting if probe.server_id != server_id]
        if starting:
            time.sleep(POLL_SECONDS)
    return started


def stop_servers(servers: Iterable[LocalServer], *, patience_seconds: float) -> dict[ServerId, str]:
    """Stop all that run, at once; kill the rest after `patience_seconds`.

    SIGINT means that the whole set stops: no server is left to hand leaderships to.

    Return server id → "stopped" or "killed" for those that ran.
    """
    pids = {server.id: (server, server.running_pid()) for server in servers}
    running = {server_id: found for server_id, found in pids.items() if found[1]}
    for _, pid in running.values():
        _signal(pid, signal.SIGINT)
    endings: dict[ServerId, str] = {}
    deadline = time.monotonic() + patience_seconds
    while running:
        for server_id, (server, pid) in list(running.items()):
            if not _has_ended(server, pid):
                continue
            endings.setdefault(server_id, "stopped")
            remove_pid(server.pid_file, pid)
            del running[server_id]
        if running and time.monotonic() > deadline:
            for server_id, (_, pid) in running.items():
                if server_id not in endings:
                    _signal(pid, signal.SIGKILL)
                    endings[server_id] = "killed"
        if running:
            time.sleep(POLL_SECONDS)
    return dict(sorted(endings.items()))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _has_ended(server: LocalServer, pid: int) -> bool:
    """Return True if the process is gone. A child process is reaped, so that it does not stay a
    zombie."""
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = 0
    return ended == pid or not is_server_process(pid, server.config_file)
