"""`vdl up` and `vdl down`: a replica set on this machine, in the foreground or left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

import click

from ids import ServerId
from vdl.commands.servers.replica_set import (
    NEW_SET_RETENTION_MS,
    PEER_PORT_STEP,
    POLL_SECONDS,
    LocalServer,
    ReplicaSet,
    ReplicaSetError,
    Started,
    check_layout,
    find_replica_set,
    locked,
    make_replica_set,
    start_server,
    stop_servers,
    taken_ports,
    wait_until_started,
    write_configs,
)
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.config.values import Address

SERVERS_DEFAULT = 3
BASE_PORT_DEFAULT = 9092
STOP_PATIENCE_SECONDS = 5.0
EXIT_INTERRUPTED = 130
ADD_SECONDS = 0.2
"""Interval at which servers that wait are added."""
MAKE_OPTIONS = {"--base-port": "PORT=", "--data": "DATA=", "--nodes": "NODES="}

Processes = dict[ServerId, subprocess.Popen[bytes]]


@click.command()
@click.option("--nodes", type=int, help=f"Number of servers.  [default: {SERVERS_DEFAULT}]")
@click.option(
    "--per-host", type=int, metavar="N",
    help="Servers of each host: N share a rack, and no two replicas of a partition are on them.",
)  # fmt: skip
@click.option(
    "--data", type=click.Path(path_type=Path), default="data", show_default=True,
    help="Folder of the replica set. An existing set is started again.",
)  # fmt: skip
@click.option(
    "--base-port", type=int,
    help=(
        "Kafka port of server 1; the other servers use the next ports.  [default: "
        f"{BASE_PORT_DEFAULT}]"
    ),
)  # fmt: skip
@click.option(
    "--secure", is_flag=True,
    help="Make a set with TLS on all connections and with passwords for clients.",
)  # fmt: skip
@click.option(
    "--detach", is_flag=True, help="Return once all servers serve, and leave them running."
)
@click.option(
    "--timeout", type=float, default=30.0, show_default=True,
    help="Seconds to wait until all servers serve.",
)  # fmt: skip
def up(
    *,
    nodes: int | None,
    per_host: int | None,
    data: Path,
    base_port: int | None,
    secure: bool,
    detach: bool,
    timeout: float,
) -> None:
    """Start a replica set on this machine.

    It runs in the foreground until ^C. With `--detach` it returns, and starts only servers that do
    not run yet. If a server of an existing set cannot start, the others still do: the command
    prints the reason, and with `--detach` exits with code 1. A new set needs all of its servers.

    With `--per-host` the cluster begins with a server of each host, and the others are added.
    """
    os.umask(0o077)
    check_layout(
        count=SERVERS_DEFAULT if nodes is None else nodes,
        base_port=BASE_PORT_DEFAULT if base_port is None else base_port,
        per_host=per_host or 0,
    )
    with locked(data):
        is_new = find_replica_set(data) is None
        replica_set = _open(data, nodes, per_host, base_port, is_secure=secure)
        if replica_set.is_secure:
            secure_replica_set(replica_set)
        missing = _missing(replica_set, data, is_detached=detach)
        failed = taken_ports(missing)
        if failed and (is_new or len(failed) == len(replica_set.servers)):
            raise ReplicaSetError(
                f"{_reasons(failed)}; choose other ports with {_option('--base-port')} (and "
                f"another {_option('--data')})"
            )
        missing = [server for server in missing if server.id not in failed]
        # From here on a signal must not leave half a replica set running.
        stop = _StopFlag()
        processes: Processes = {}
        try:
            for server in missing:
                try:
                    processes[server.id] = start_server(server)
                except ReplicaSetError as error:
                    failed[server.id] = str(error)
            awaited = [server for server in replica_set.servers if server.id not in failed]
            deadline = time.monotonic() + timeout
            started = wait_until_started(awaited, processes, timeout_seconds=timeout)
            if replica_set.per_host and started.outside:
                _add(replica_set, started, processes, deadline)
            failed |= started.failed
            if failed and not started.serving:
                raise ReplicaSetError(_reasons(failed))
        except BaseException:
            stop_servers(missing, patience_seconds=STOP_PATIENCE_SECONDS)
            raise
    _greet(replica_set, data, serving=started.serving, is_detached=detach)
    for server_id in started.outside:
        click.echo(
            f"server {server_id} waits: its data directory is not known to the cluster; see "
            f"{data}/{server_id}/server.log",
            err=True,
        )
    if failed:
        again = f"{_command()} up --data {data} --detach"
        click.echo(f"{_reasons(failed)}\nafter the repair run: {again}", err=True)
    if not detach:
        _stay(replica_set, data, processes, stop, reported=set(failed))
    elif failed or (replica_set.per_host and started.outside):
        raise click.exceptions.Exit(1)


@click.command()
@click.option(
    "--data", type=click.Path(path_type=Path), default="data", show_default=True,
    help="Folder of the replica set.",
)  # fmt: skip
def down(*, data: Path) -> None:
    """Stop the replica set that was started in a folder."""
    replica_set = find_replica_set(data)
    if replica_set is None:
        raise ReplicaSetError(f"there is no replica set in {data}")
    # A start in progress completes first; then everything it started is stopped.
    waiting = f"waiting for another `vdl up` or `vdl down` in {data}"
    with locked(replica_set.directory, on_wait=lambda: click.echo(waiting, err=True)):
        endings = stop_servers(replica_set.servers, patience_seconds=STOP_PATIENCE_SECONDS)
    for server_id, ending in endings.items():
        click.echo(f"server {server_id} {ending}")
    if not endings:
        click.echo("nothing was running")


def _add(replica_set: ReplicaSet, started: Started, processes: Processes, deadline: float) -> None:
    """Add the servers of a set with hosts that wait, and put them where they belong in `started`.

    Those that the cluster has with another data directory go on waiting.
    """
    from vdl.commands.checks.waiting_servers import add_waiting  # only a new set needs clients
    from vdl.commands.cluster.connection import resolve

    connection = resolve(
        profile=None,
        bootstrap=replica_set.bootstrap,
        config=replica_set.client_file if replica_set.is_secure else None,
    )
    waiting = {
        server.id: (server, Address("127.0.0.1", replica_set.port_of(server.id, PEER_PORT_STEP)))
        for server in replica_set.servers
        if server.id in started.outside and server.id not in replica_set.seeds
    }
    started.outside[:] = set(started.outside) - waiting.keys()
    while waiting:
        try:
            lost = add_waiting(connection, {one: found[1] for one, found in waiting.items()})
        except click.ClickException:
            lost = set()  # perhaps the catalog has no leader yet
        time.sleep(ADD_SECONDS)
        is_late = time.monotonic() > deadline
        again = wait_until_started(
            [server for server, _ in waiting.values()],
            processes,
            timeout_seconds=max(ADD_SECONDS, deadline - time.monotonic()),
        )
        started.serving.extend(again.serving)
        started.failed.update(again.failed)
        over = set(again.outside) if is_late else lost.intersection(again.outside)
        started.outside.extend(sorted(over))
        waiting = {one: waiting[one] for one in again.outside if one not in over}


def _open(
    data: Path,
    nodes: int | None,
    per_host: int | None,
    base_port: int | None,
    *,
    is_secure: bool,
) -> ReplicaSet:
    """Return the set in `data`, made if there is none. Options cannot change a recorded set."""
    found = find_replica_set(data)
    if found is None:
        return make_replica_set(
            data,
            count=SERVERS_DEFAULT if nodes is None else nodes,
            base_port=BASE_PORT_DEFAULT if base_port is None else base_port,
            is_secure=is_secure,
            retention_ms=NEW_SET_RETENTION_MS,
            per_host=per_host or 0,
        )
    if is_secure and not found.is_secure:
        raise ReplicaSetError(
            f"the replica set in {data} was made without --secure; docs/secure.md shows how to "
            "change this"
        )
    count = len(found.servers)
    if nodes not in {None, count}:
        raise ReplicaSetError(
            f"the replica set in {data} has {count} servers, not {nodes} ({_option('--nodes')})"
        )
    if per_host not in {None, found.per_host}:
        raise ReplicaSetError(
            f"the replica set in {data} has {found.per_host or 'no'} servers a host, not {per_host}"
        )
    if base_port not in {None, found.base_port}:
        raise ReplicaSetError(
            f"the replica set in {data} uses ports from {found.base_port}, not {base_port} "
            f"({_option('--base-port')}); to change them, edit {data}/*/vdl.toml and "
            f"{data}/replica_set.toml"
        )
    return found


def _missing(replica_set: ReplicaSet, data: Path, *, is_detached: bool) -> list[LocalServer]:
    """Return the servers to start, after writing their files. Raises ReplicaSetError."""
    write_configs(replica_set)
    running = replica_set.running()
    missing = [server for server in replica_set.servers if server.id not in running]
    if running and (not is_detached or not missing):
        pids = ", ".join(f"server {number} is process {pid}" for number, pid in running.items())
        way_out = f"stop with: {_command()} down --data {data}"
        raise ReplicaSetError(f"already running in {data} ({pids}); {way_out}")
    return missing


def _reasons(failed: dict[ServerId, str]) -> str:
    return "\n".join(f"server {server_id}: {why}" for server_id, why in sorted(failed.items()))


def _option(name: str) -> str:
    """Return the name of an option for the user: `make up` sets variables instead."""
    return MAKE_OPTIONS[name] if os.environ.get("VDL_CALLED_BY") == "make up" else name


def _greet(
    replica_set: ReplicaSet, data: Path, *, serving: list[ServerId], is_detached: bool
) -> None:
    count = len(replica_set.servers)
    bootstrap = replica_set.bootstrap
    python = sys.executable
    command = _command()
    if len(serving) == count:
        click.echo(f"{count} server{'s' if count > 1 else ''} up, data in {data}")
    else:
        names = ", ".join(map(str, sorted(serving)))
        click.echo(f"{len(serving)} of {count} servers up ({names}), data in {data}")
    click.echo(f"bootstrap.servers={bootstrap}\n")
    if replica_set.is_secure:
        click.echo(f"Settings of a client, from {data}/client.properties:")
        click.echo(replica_set.client_file.read_text(encoding="utf-8"))
    click.echo("Try:")
    if replica_set.is_secure:
        options = f"--bootstrap {bootstrap} --config {data}/client.properties"
        click.echo(f"  {command} status {options}")
        click.echo(f"  {command} user add alice {options}")
    else:
        click.echo(f"  {command} status --bootstrap {bootstrap}")
        click.echo(f"  {python} examples/flights.py --bootstrap {bootstrap}")
    click.echo(f"  kill -9 $(cat {data}/1/server.pid); {command} up --data {data} --detach")
    click.echo(
        f"\nStop with: {command} down --data {data}" if is_detached else "\n^C stops all servers.",
    )


def _command() -> str:
    """Return how this program was called, for lines that can be copied."""
    return sys.argv[0] if not sys.argv[0].endswith(".py") else f"{sys.executable} -m vdl.cli"


class _Stopped(click.exceptions.Exit):
    """A signal arrived before all servers were up."""

    def __init__(self) -> None:
        super().__init__(EXIT_INTERRUPTED)


class _StopFlag:
    """Turns SIGINT and SIGTERM into a flag, or an exception while starting."""

    def __init__(self) -> None:
        self.is_set = False
        self.is_starting = True
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.is_set = True
        if self.is_starting:
            raise _Stopped


def _stay(
    replica_set: ReplicaSet,
    data: Path,
    processes: Processes,
    stop: _StopFlag,
    *,
    reported: set[ServerId],
) -> None:
    """Wait for a signal, reporting servers that end and are not in `reported` yet. Then stop all,
    including those started meanwhile."""
    stop.is_starting = False
    while not stop.is_set:
        for server_id, process in processes.items():
            code = process.poll()
            if code is not None and server_id not in reported:
                reported.add(server_id)
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                click.echo(
                    f"server {server_id} ended with {how}; start it again with: {_command()} up "
                    f"--data {data} --detach"
                )
        if not replica_set.running():
            raise ReplicaSetError("all servers have ended")
        time.sleep(5 * POLL_SECONDS)
    click.echo("\nstopping")
    _report_stop(stop_servers(replica_set.servers, patience_seconds=STOP_PATIENCE_SECONDS))


def _report_stop(endings: dict[ServerId, str]) -> None:
    for server_id, ending in endings.items():
        if ending != "stopped":
            click.echo(f"server {server_id} did not stop in time and was {ending}")
