"""Reports of servers with a fault: status, health, readiness, metric and log.

Does not depend on which faults there are.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.checks.cluster_status import collect
from vdl.commands.cluster.bootstrap_option import client_settings
from vdl.commands.servers.replica_set import HTTP_PORT_STEP
from vdl.commands.status import Shown, print_tables
from vdl.config.values import parse_address
from vdl.kafka.client import Unreachable

STATUS_SECONDS_MAX = 120.0
HTTP_SECONDS_MAX = 5.0
POLL_SECONDS = 0.5
EVENT = re.compile(r"^ts=\S+ level=(warning|error) event=(\S+)", re.MULTILINE)
"""Level and name of a warning or error in a log."""
_KIND = re.compile(r"^([a-z_]+): (.*)$", re.MULTILINE)
_METRIC = re.compile(r'^vdl_server_problem\{kind="([a-z_]+)"\} 1', re.MULTILINE)
NO_ANSWER = "no answer"


@dataclass(slots=True)
class Seen:
    """Reports collected at one time. Keys are server ids."""

    status: str = ""
    exit_code: int = -1
    health: dict[int, str] = field(default_factory=dict)
    """"200 ok", "200 wrong", or no answer."""
    ready: dict[int, str] = field(default_factory=dict)
    metric: dict[int, list[str]] = field(default_factory=dict)
    log: dict[int, list[str]] = field(default_factory=dict)
    """Warnings and errors since the fault, each event once."""

    @property
    def kinds(self) -> list[str]:
        """Return the problems listed by `vdl status`."""
        return [kind for kind, _ in _KIND.findall(self.status)]

    @property
    def states(self) -> dict[int, str]:
        """Return the states of servers that are not "up", from `vdl status`."""
        lines = self.status.splitlines()
        head = next((n for n, line in enumerate(lines) if line.startswith("server  ")), len(lines))
        found = {}
        for line in lines[head + 1 :]:
            number, _, _ = line.partition("  ")
            if not number.isdecimal():
                break
            state = line[lines[head].index("state") :].split("  ")[0]
            if state != "up":
                found[int(number)] = state
        return found

    @property
    def events(self) -> set[str]:
        return {event for events in self.log.values() for event in events}

    @property
    def metrics(self) -> set[str]:
        return {kind for kinds in self.metric.values() for kind in kinds}


class Watch:
    """Collector for one replica set.

    Created before the fault: of the logs only later lines count.
    """

    def __init__(self, replica_set: ReplicaSet) -> None:
        self._replica_set = replica_set
        file = replica_set.directory / "client.properties"
        self._config = file if file.exists() else None
        self._read = {n: len(replica_set.log(n)) for n in replica_set.server_ids}

    def look(self) -> Seen:
        """Query all servers once, as a user does."""
        seen = Seen()
        done = subprocess.run(
            [sys.executable, "-m", "vdl.cli", "status", "--bootstrap", self._replica_set.bootstrap,
             "--wrong", *(["--config", str(self._config)] if self._config else [])],
            cwd=ROOT, capture_output=True, text=True, timeout=STATUS_SECONDS_MAX, check=False,
        )  # fmt: skip
        seen.status, seen.exit_code = done.stdout + done.stderr, done.returncode
        return self._asked(seen)

    def until(self, is_enough: Callable[[Seen], bool], seconds_max: float) -> Seen:
        """Poll until `is_enough`, or until the time limit; return what a user sees then."""
        deadline = time.monotonic() + seconds_max
        while True:
            if is_enough(self._asked(self._glance())) or time.monotonic() > deadline:
                seen = self.look()
                if is_enough(seen) or time.monotonic() > deadline:
                    return seen
            time.sleep(POLL_SECONDS)

    def _glance(self) -> Seen:
        """Return the status without starting an interpreter, for frequent polling."""
        out = io.StringIO()
        addresses = map(parse_address, self._replica_set.bootstrap.split(","))
        try:
            cluster = collect(addresses, client_settings(self._config))
        except Unreachable as error:
            return Seen(str(error), 1)
        with contextlib.redirect_stdout(out):
            print_tables(cluster, Shown(only_wrong=True))
        return Seen(out.getvalue(), 0 if cluster.is_healthy else 1)

    def _asked(self, seen: Seen) -> Seen:
        """Add everything except the status."""
        for server_id in self._replica_set.server_ids:
            code, body = self._get(server_id, "/health")
            seen.health[server_id] = NO_ANSWER
            if code:
                seen.health[server_id] = f"{code} {'ok' if json.loads(body)['ok'] else 'wrong'}"
            code, _ = self._get(server_id, "/ready")
            seen.ready[server_id] = str(code) if code else NO_ANSWER
            seen.metric[server_id] = _METRIC.findall(self._get(server_id, "/metrics")[1])
            log = self._replica_set.log(server_id)[self._read[server_id] :]
            events = dict.fromkeys(event for _, event in EVENT.findall(log))
            seen.log[server_id] = list(events)
        return seen

    def _get(self, server_id: int, path: str) -> tuple[int, str]:
        # Computed from the layout, because the fault may be in the file.
        port = self._replica_set.base_port + HTTP_PORT_STEP + server_id - 1
        connection = HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS_MAX)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            connection.close()
