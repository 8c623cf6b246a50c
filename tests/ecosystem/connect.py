"""A worker of Kafka Connect: its command and its REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.ecosystem.programs import java, libraries

HTTP_SECONDS_MAX = 60
ONCE_SETTINGS = """exactly.once.source.support=enabled
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=0
"""
"""Exactly once; a killed worker loses its tasks soon."""


def worker_command(settings: Path) -> list[str]:
    """Return the command that runs a worker with a file of settings."""
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    return java(f"{libraries('java')}/*", main, str(settings))


class Worker:
    """REST interface of a worker."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer; None if there is no answer yet, or no such resource."""
        request = urllib.request.Request(
            self._address + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS_MAX) as answer:
                return json.loads(answer.read() or b"null")
        except (urllib.error.URLError, ConnectionError):
            return None

    def is_up(self) -> bool:
        return self.ask("GET", "/") is not None

    def runs(self, connector: str) -> bool:
        """Return True if the connector and its task run."""
        status = self.ask("GET", f"/connectors/{connector}/status")
        if status is None:
            return False
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        assert "FAILED" not in states, status
        return len(states) == 2 and set(states) == {"RUNNING"}
