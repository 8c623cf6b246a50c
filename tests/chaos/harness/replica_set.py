"""A replica set of real server processes on loopback, started as a user starts it: `vdl up`.

Ports are chosen below the system's range for outgoing connections, so that no client's own port can
be one of ours. Data is in a folder of its own; a failing test moves it to `.cache/failed`, with the
logs, and prints the path.

Does not depend on Kafka's protocol.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from vdl.commands.servers.replica_set import (
    PEER_PORT_STEP,
    LocalServer,
    find_replica_set,
    make_replica_set,
    start_server,
    write_configs,
)

ROOT = Path(__file__).resolve().parents[3]
FAILED = ROOT / ".cache" / "failed"
FAILED_KEPT_MAX = 5
UP_SECONDS_MAX = 60
PORTS = range(22_000, 32_000, 50)
PORT_STEPS = (0, 10, 20, 30)
"""Kafka, peers, administration, metrics: each server has one port of every kind."""
POLL_SECONDS = 0.005


def free_base_port(nodes: int, rng: random.Random) -> int:
    """Return a base port whose whole set of ports is unused.

    This process owns it until it ends or gives it back: tests of two stages run in parallel, and
    stopped servers leave their ports free.
    """
    for base in rng.sample(PORTS, len(PORTS)):
        if base in _claims or not _claim(base):
            continue
        if all(_is_free(base + step + node) for step in PORT_STEPS for node in range(nodes)):
            return base
    raise RuntimeError(f"no free ports in {PORTS}")


def free_port() -> int:
    """Return a port that no other test has, and that no outgoing connection can take."""
    while True:
        if not _single_ports:
            base = free_base_port(1, random.Random())
            _single_ports.extend(range(base, base + PORTS.step))
        port = _single_ports.pop()
        if _is_free(port):
            return port


def give_back(base: int) -> None:
    """Release the ports; later calls do nothing."""
    claim = _claims.pop(base, None)
    if claim is not None:
        claim.close()


def _claim(base: int) -> bool:
    """Bind an abstract socket name, which only one process can have."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0vdl-test-ports-{base}")
    except OSError:
        claim.close()
        return False
    _claims[base] = claim
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class ReplicaSet:
    """Servers with ids 1..nodes below one folder. Created stopped; `up` starts it."""

    def __init__(self, nodes: int = 3, *, directory: Path | None = None, files: int = 0) -> None:
        """Create the set.

        `files`: maximum number of descriptors of a server that `up` starts; 0: as many as this
        process.
        """
        self.nodes = nodes
        self._files = files
        self._is_temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="vdl-test-"))
        self.base_port = free_base_port(nodes, random.Random())
        self._paused: set[int] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(server_id) for server_id in self.server_ids)

    @property
    def server_ids(self) -> range:
        return range(1, self.nodes + 1)

    def address(self, server_id: int) -> str:
        return f"127.0.0.1:{self.base_port + server_id - 1}"

    def peer_address(self, server_id: int) -> str:
        return f"127.0.0.1:{self.base_port + PEER_PORT_STEP + server_id - 1}"

    # --- the whole set ------------------------------------------------------------------------

    def configure(self, settings: Mapping[str, object], *, voters: int = 0) -> None:
        """Add settings beside those that `vdl up` writes, by dotted key.

        Called before the first `up`. With `voters`, the cluster begins with that many servers. The
        others have their addresses, and are started and added one by one.
        """
        made = make_replica_set(self.directory, count=self.nodes, base_port=self.base_port)
        write_configs(made)
        for server in made.servers:
            file, more = server.config_file, settings
            if voters:
                lines = file.read_text(encoding="utf-8").splitlines()
                later = tuple(f'{number} = "' for number in self.server_ids[voters:])
                kept = [line for line in lines if not line.startswith(later)]
                file.write_text("\n".join(kept) + "\n", encoding="utf-8")
                if server.id > voters:
                    more = {**settings, "peer.listen": self.peer_address(server.id)}
            with file.open("a", encoding="utf-8") as text:
                text.write(_toml(more))

    def up(self, *options: str) -> float:
        """Start servers that do not run.

        Return when all serve, with the seconds that it took. `options` are those of `vdl up`.
        """
        began = time.monotonic()
        layout = ("--nodes", str(self.nodes), "--base-port", str(self.base_port))
        self._vdl("up", *layout, "--detach", *options)
        return time.monotonic() - began

    def down(self) -> None:
        for server_id in sorted(self._paused):
            self.resume(server_id)
        self._vdl("down")

    def _vdl(self, command: str, *arguments: str) -> None:
        words = [sys.executable, "-m", "vdl.cli", command, "--data", str(self.directory)]
        if self._files:
            words = ["sh", "-c", f'ulimit -n {self._files}; exec "$0" "$@"', *words]
        done = subprocess.run(
            [*words, *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS_MAX,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"vdl {command} failed: {done.stdout}{done.stderr}")

    def close(self, *, failed: str = "") -> None:
        """Stop everything and remove the data, or keep it when the test named `failed` failed."""
        for server_id in sorted(self._paused):
            self.resume(server_id)
        if find_replica_set(self.directory) is not None:
            try:
                self._vdl("down")
            finally:
                self.kill(*self.running())
        if failed:
            kept = _keep(self.directory, failed)
            print(f"data and logs of the servers are in {kept}")
        give_back(self.base_port)
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    # --- one server -----------------------------------------------------------------------------

    def server(self, server_id: int) -> LocalServer:
        found = find_replica_set(self.directory)
        assert found is not None, f"nothing was started in {self.directory}"
        return found.servers[server_id - 1]

    def running(self) -> list[int]:
        """Return the ids of the servers whose process runs."""
        return [number for number in self.server_ids if self.server(number).running_pid()]

    def pid(self, server_id: int) -> int:
        pid = self.server(server_id).running_pid()
        assert pid, f"server {server_id} does not run"
        return pid

    def rss_bytes(self, server_id: int) -> int:
        """Return the resident memory of the server's process."""
        pages = Path(f"/proc/{self.pid(server_id)}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def cpu_seconds(self, server_id: int) -> float:
        """Return the user and system time of the server's process."""
        stat = Path(f"/proc/{self.pid(server_id)}/stat").read_text(encoding="ascii")
        # The name, in parentheses, may contain spaces; utime and stime are fields 14 and 15.
        fields = stat.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self, *server_ids: int) -> None:
        """Send SIGKILL to all of them as nearly at once as possible; return when they are gone."""
        pids = {server_id: self.pid(server_id) for server_id in server_ids}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for server_id in pids:
            self.wait_stopped(server_id)

    def end(self, *server_ids: int) -> None:
        """Send SIGKILL to those that still run; return when all are gone."""
        for server_id in server_ids:
            pid = self.server(server_id).running_pid()
            # It may end by itself at any moment: its disk has failed.
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)
        for server_id in server_ids:
            self.wait_stopped(server_id)

    def terminate(self, server_id: int) -> None:
        """Send SIGTERM: one server's planned stop. Does not wait."""
        os.kill(self.pid(server_id), signal.SIGTERM)

    def pause(self, server_id: int) -> None:
        os.kill(self.pid(server_id), signal.SIGSTOP)
        self._paused.add(server_id)

    def resume(self, server_id: int) -> None:
        self._paused.discard(server_id)
        pid = self.server(server_id).running_pid()
        if pid:
            os.kill(pid, signal.SIGCONT)

    def start(self, server_id: int) -> None:
        """Start one server; do not wait until it serves."""
        process = start_server(self.server(server_id))
        # Reaped by this process: a zombie would look like a running process.
        _children[process.pid] = process

    def wait_stopped(self, server_id: int, *, seconds_max: float = 10.0) -> None:
        deadline = time.monotonic() + seconds_max
        while self._is_running(server_id):
            is_late = time.monotonic() > deadline
            assert not is_late, f"server {server_id} did not end: {self._threads(server_id)}"
            time.sleep(POLL_SECONDS)

    def _threads(self, server_id: int) -> str:
        """Return the kernel state of each thread of the server.

        One that waits for a disk for ever keeps an exited process.
        """
        found = []
        for task in Path(f"/proc/{self.server(server_id).running_pid()}/task").glob("*"):
            with contextlib.suppress(OSError):
                state = (task / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
                found.append(f"{state} {(task / 'stack').read_text(encoding='ascii')}")
        return "\n".join(found)

    def _is_running(self, server_id: int) -> bool:
        pid = self.server(server_id).running_pid()
        if pid in _children and _children[pid].poll() is not None:
            return False
        return pid != 0

    def wait_serving(self, server_id: int, *, seconds_max: float = 20.0) -> None:
        """Wait until the server accepts clients."""
        deadline = time.monotonic() + seconds_max
        host, port = self.address(server_id).split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
            except OSError:
                assert time.monotonic() < deadline, f"server {server_id} does not serve"
                time.sleep(POLL_SECONDS)
            else:
                return

    def wipe(self, server_id: int) -> None:
        """Delete the data directory of a stopped server; its configuration stays."""
        assert not self._is_running(server_id), f"server {server_id} runs"
        shutil.rmtree(self.server(server_id).directory / "store")

    def log(self, server_id: int) -> str:
        return self.server(server_id).log_file.read_text(encoding="utf-8", errors="replace")


_claims: dict[int, socket.socket] = {}
"""Base ports owned by this process."""

_single_ports: list[int] = []
"""Ports of such a base that `free_port` has not given out."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that were started here and not by `vdl up`."""


def _toml(settings: Mapping[str, object]) -> str:
    """Return dotted keys as tables, to be appended to a configuration without these tables."""
    tables: dict[str, list[str]] = defaultdict(list)
    for name, value in settings.items():
        table, _, key = name.partition(".")
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        tables[table].append(f"{key} = {text}")
    return "".join(f"\n[{name}]\n" + "\n".join(rows) + "\n" for name, rows in tables.items())


def _keep(directory: Path, name: str) -> Path:
    """Copy a replica set's folder to the folder of failures, and drop the oldest ones."""
    FAILED.mkdir(parents=True, exist_ok=True)
    kept = sorted(FAILED.iterdir(), key=lambda path: path.stat().st_mtime)
    for old in kept[: max(0, len(kept) - FAILED_KEPT_MAX + 1)]:
        shutil.rmtree(old)
    target = FAILED / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    shutil.copytree(directory, target)
    return target


@contextlib.contextmanager
def serving(count: int, name: str) -> Iterator[ReplicaSet]:
    """Yield `count` servers that serve clients; their data is kept if the test `name` fails."""
    servers = ReplicaSet(count)
    is_over = False
    try:
        servers.up()
        yield servers
        is_over = True
    finally:
        servers.close(failed="" if is_over else name)
