"""Three servers of this working tree whose processes are ours: started as they are or as a variant,
stopped, killed and started again on their data, and asked how they are."""

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
from tests.chaos.harness.cluster import numbers
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.replica_set import (
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
"""Until a checkpoint by time, and what follows it, have surely ended."""


class Servers:
    """Built stopped, on no data. `variant`: one of tests/bench/variants.py; `settings`: lines that
    each server's configuration has besides."""

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
        """The server's data directory."""
        return self._servers[server_id].directory / "store"

    # --- their processes ------------------------------------------------------------------------
    def up(self) -> None:
        self.start()
        started = wait_until_started(
            list(self._servers.values()), self._processes, timeout_seconds=START_SECONDS_MAX
        )
        for server_id, why in started.failed.items():
            raise ReplicaSetError(f"server {server_id} {why}")

    def start(self) -> dict[int, float]:
        """Server id → when its process was started (monotonic); does not wait."""
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
        """The ids of the servers whose process was started and not ended by us."""
        return list(self._processes)

    def pids(self) -> list[int]:
        return [self.pid(server_id) for server_id in self._servers]

    def stop(self) -> None:
        """A planned stop of the whole set; the data stays."""
        stop_servers(list(self._servers.values()), patience_seconds=STOP_SECONDS_MAX)
        self._reap()

    def kill(self) -> None:
        """SIGKILL to all, as nearly at once as can be."""
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)
        self._reap()

    def kill_one(self, server_id: int) -> None:
        """SIGKILL to one; returns when it is gone."""
        os.kill(self.pid(server_id), signal.SIGKILL)
        self._processes.pop(server_id).wait(STOP_SECONDS_MAX)

    def _reap(self) -> None:
        for process in self._processes.values():
            process.wait(STOP_SECONDS_MAX)
        self._processes.clear()

    def down(self) -> None:
        """Whatever state they are in: gone, with their data."""
        for process in self._processes.values():
            process.kill()
        self._reap()
        self.replica_set.close()

    # --- what they say ----------------------------------------------------------------------------
    def health(self, server_id: int) -> dict[str, Any]:
        """What `/health` says; empty when it does not answer."""
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

    def log(self, server_id: int) -> str:
        return self.replica_set.log(server_id)

    def groups(self) -> int:
        """How many groups there are: each has a replica everywhere."""
        return max(int(self.health(server_id).get("groups", 0)) for server_id in self._servers)

    def wait_led(self, groups: int) -> float:
        """Return when the servers lead so many groups between them: at which time (monotonic)."""
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
        """What the processes have given to the page cache to write, together."""
        return sum(io_bytes(pid, "write_bytes") for pid in self.pids())
