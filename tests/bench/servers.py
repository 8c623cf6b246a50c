"""Three servers of this working tree with direct control of their processes.

They can be started as they are or as a variant, stopped, killed, restarted on their data, and
queried.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.systems import io_bytes
from tests.chaos.harness.cluster import metrics_page, numbers
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.servers.replica_set import (
    LocalServer,
    ReplicaSetError,
    make_replica_set,
    start_server,
    stop_servers,
    wait_until_started,
    write_configs,
)

COUNT = 3
START_SECONDS_MAX = 60.0
LED_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.02
SETTLE_SECONDS = 12.0
"""Time after which a checkpoint by interval, and its follow-up work, have surely ended."""


class Servers:
    """Three servers, initially stopped and without data.

    `variant`: one of tests/bench/variants.py; `settings`: extra lines of each server's
    configuration.
    """

    name = "vdl"

    def __init__(self, variant: str = "", settings: str = "") -> None:
        self.replica_set = ReplicaSet(COUNT)
        layout = make_replica_set(
            self.replica_set.directory, count=COUNT, base_port=self.replica_set.base_port
        )
        write_configs(layout)
        for server in layout.servers:
            with server.config_file.open("a", encoding="utf-8") as file:
                file.write(f"\n{settings}")
        self.variant = variant
        self._servers = {server.id: server for server in layout.servers}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        return self.replica_set.bootstrap

    @property
    def ids(self) -> list[int]:
        return list(self._servers)

    def store(self, server_id: int) -> Path:
        """Return the server's data directory."""
        return self._servers[server_id].directory / "store"

    # --- processes ------------------------------------------------------------------------------
    def up(self) -> None:
        self.start()
        started = wait_until_started(
            list(self._servers.values()), self._processes, timeout_seconds=START_SECONDS_MAX
        )
        for server_id, why in started.failed.items():
            raise ReplicaSetError(f"server {server_id} {why}")

    def start(self) -> dict[int, float]:
        """Start all; return server id → start time (monotonic), without waiting."""
        started: dict[int, float] = {}
        for server in self._servers.values():
            started[server.id] = time.monotonic()
            self._processes[server.id] = self._start(server)
        return started

    def start_one(self, server_id: int) -> None:
        """Start a server that does not run."""
        self._processes[server_id] = self._start(self._servers[server_id])

    def _start(self, server: LocalServer) -> subprocess.Popen[bytes]:
        if not self.variant:
            return start_server(server)
        command = [sys.executable, "-m", "tests.bench.launcher", self.variant, "serve"]
        command += ["--config", str(server.config_file), "--pid-file", str(server.pid_file)]
        with server.log_file.open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def pid(self, server_id: int) -> int:
        process = self._processes[server_id]
        assert process.poll() is None, f"server {server_id} ended: {self.log(server_id)[-2_000:]}"
        return process.pid

    def running(self) -> list[int]:
        """Return the ids of the servers that were started and not ended by us."""
        return list(self._processes)

    def pids(self) -> list[int]:
        return [self.pid(server_id) for server_id in self._servers]

    def stop(self) -> None:
        """Stop all servers as planned. The data stays."""
        stop_servers(list(self._servers.values()), patience_seconds=STOP_SECONDS_MAX)
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL to all, as nearly at once as possible."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self._reap()

    def kill_one(self, server_id: int) -> None:
        """Send SIGKILL to one; return when it is gone."""
        os.kill(self.pid(server_id), signal.SIGKILL)
        self._processes.pop(server_id).wait(STOP_SECONDS_MAX)

    def _reap(self) -> None:
        for process in self._processes.values():
            process.wait(STOP_SECONDS_MAX)
        self._processes.clear()

    def down(self) -> None:
        """Kill all servers, whatever state they are in, and remove their data."""
        for process in self._processes.values():
            process.kill()
        self._reap()
        self.replica_set.close()

    # --- queries ----------------------------------------------------------------------------------
    def health(self, server_id: int) -> dict[str, Any]:
        """Return the contents of `/health`; empty if it does not answer."""
        address = self._servers[server_id].config().http
        assert address is not None
        connection = http.client.HTTPConnection(address.host, address.port, timeout=5)
        try:
            connection.request("GET", "/health")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        finally:
            connection.close()
        return found

    def metrics(self, server_id: int) -> dict[str, float]:
        return numbers(self.replica_set, server_id)

    def metrics_page(self, server_id: int) -> str:
        return metrics_page(self.replica_set, server_id)

    def log(self, server_id: int) -> str:
        return self.replica_set.log(server_id)

    def groups(self) -> int:
        """Return the number of groups: each has a replica on every server."""
        return max(int(self.health(server_id).get("groups", 0)) for server_id in self._servers)

    def wait_led(self, groups: int) -> float:
        """Wait until the servers lead `groups` groups between them; return the time (monotonic)."""
        deadline = time.monotonic() + LED_SECONDS_MAX
        while True:
            leading = sum(self.health(server_id).get("leading", 0) for server_id in self._servers)
            now = time.monotonic()
            if leading >= groups:
                return now
            assert now < deadline, f"{leading} of {groups} groups are led"
            time.sleep(POLL_SECONDS)

    def cpu_seconds(self) -> dict[int, float]:
        return {number: self.replica_set.cpu_seconds(number) for number in self._servers}

    def rss_mb(self) -> dict[int, float]:
        return {number: self.replica_set.rss_bytes(number) / 1e6 for number in self._servers}

    def written_bytes(self) -> int:
        """Return the bytes that the processes have made dirty in the page cache, together."""
        return sum(io_bytes(pid, "write_bytes") for pid in self.pids())
