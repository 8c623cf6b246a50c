"""The `many_partitions` measurement for a peer, through client interfaces only.

A partition has a leader if Metadata names a running server. Servers are ended by their process ids
and restarted with their original command line; their later output goes to a file. If not all have
leaders after `WAIT_SECONDS_MAX` seconds, that figure is `inf`, and the run continues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.bench.beside_peer import say
from tests.bench.partition_load import create_topics, record_to_each
from tests.bench.rounds import Figures
from tests.bench.servers import SETTLE_SECONDS
from tests.bench.systems import Peer, cpu_seconds, rss_mb

POLL_SECONDS = 0.1
LOOK_SECONDS_MAX = 20.0
WAIT_SECONDS_MAX = 300.0
STOP_SECONDS_MAX = 120.0


class _Processes:
    """The servers of a running peer, in the order of its bootstrap addresses."""

    def __init__(self, peer: Peer) -> None:
        self._addresses = peer.bootstrap.split(",")
        pids = peer.pids()
        self._commands = [
            Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")[:-1]
            for pid in pids
        ]
        self._pids: list[int | None] = [*pids]
        self._started: list[subprocess.Popen[bytes]] = []
        self.printed = Path(tempfile.gettempdir()) / f"vdl-bench-{peer.name}-restarted.log"
        """Output of restarted servers."""
        self.printed.unlink(missing_ok=True)

    @property
    def pids(self) -> list[int]:
        return [pid for pid in self._pids if pid is not None]

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses of the running servers."""
        pairs = zip(self._addresses, self._pids, strict=True)
        return ",".join(address for address, pid in pairs if pid is not None)

    @property
    def running(self) -> int:
        """Number of servers that run and should."""
        return sum(self._runs(pid) for pid in self.pids)

    def end(self, places: Sequence[int], number: signal.Signals) -> None:
        """Signal the servers; return when they are gone. Kill those that do not end in time."""
        for place in places:
            with suppress(ProcessLookupError):  # it ended by itself
                os.kill(self._pid(place), number)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for place in places:
            pid = self._pid(place)
            while self._runs(pid):
                if time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(POLL_SECONDS / 10)
            self._pids[place] = None

    def start(self, places: Sequence[int]) -> None:
        for place in places:
            with self.printed.open("ab") as printed:
                process = subprocess.Popen(
                    self._commands[place],
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._started.append(process)
            self._pids[place] = process.pid

    def end_all(self) -> None:
        """Kill all restarted servers, whatever state they are in."""
        for process in self._started:
            process.kill()
            process.wait()

    def _pid(self, place: int) -> int:
        pid = self._pids[place]
        assert pid is not None, f"server {place + 1} does not run"
        return pid

    def _runs(self, pid: int) -> bool:
        for process in self._started:
            process.poll()  # reaps ours, which would stay as zombies
        return Path(f"/proc/{pid}").exists()


def run_peer(peer: Peer, partitions: int, step: int, seconds: float) -> Figures:
    """Return the figures that a client can measure, under the names of `many_partitions`."""
    peer.up()
    servers = _Processes(peer)
    everyone = range(len(servers.pids))
    try:
        began = time.monotonic()
        figures = create_topics(peer.bootstrap, partitions, step)
        figures["create_to_all_led_seconds"] = _wait_led(servers, partitions) - began
        figures |= record_to_each(peer.bootstrap, partitions, step)
        time.sleep(SETTLE_SECONDS)
        figures |= _idleness(servers, partitions, seconds)
        began = time.monotonic()
        servers.end([0], signal.SIGKILL)
        figures["kill_of_one_to_all_led_seconds"] = _wait_led(servers, partitions) - began
        servers.start([0])
        time.sleep(SETTLE_SECONDS)
        _wait_led(servers, partitions)
        for name, number in (("planned_stop", signal.SIGTERM), ("kill_of_all", signal.SIGKILL)):
            servers.end(everyone, number)
            began = time.monotonic()
            servers.start(everyone)
            figures[f"{name}_to_all_led_seconds"] = _wait_led(servers, partitions) - began
            time.sleep(SETTLE_SECONDS)
    finally:
        servers.end_all()
        peer.down()
    return figures


def _idleness(servers: _Processes, partitions: int, seconds: float) -> Figures:
    before, began = [cpu_seconds([pid]) for pid in servers.pids], time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    used = [
        (cpu_seconds([pid]) - was) / elapsed * 100
        for pid, was in zip(servers.pids, before, strict=True)
    ]
    return {
        "idle_cpu_percent_of_the_busiest": max(used),
        "idle_cpu_percent_per_thousand": sum(used) / len(used) / (partitions / 1_000),
        "rss_mb_of_the_largest": rss_mb(servers.pids),
    }


def _wait_led(servers: _Processes, partitions: int) -> float:
    """Return when Metadata shows leaders for all partitions (monotonic); `inf`: not in time."""
    admin = AdminClient({"bootstrap.servers": servers.bootstrap, "log_level": 0})
    deadline, told = time.monotonic() + WAIT_SECONDS_MAX, 0.0
    while True:
        led = _led(admin)
        now = time.monotonic()
        if led >= partitions:
            return now
        if now - told > 1.0:
            told = now
            say(f"  {led} of {partitions} are led, {servers.running} servers run")
        if now >= deadline:
            return float("inf")
        time.sleep(POLL_SECONDS)


def _led(admin: AdminClient) -> int:
    """Return the number of our topics' partitions with a leader among the running servers."""
    try:
        found = admin.list_topics(timeout=LOOK_SECONDS_MAX)
    except KafkaException:
        return 0
    return sum(
        partition.leader in found.brokers
        for name, topic in found.topics.items()
        if name.startswith("many-")
        for partition in topic.partitions.values()
    )
