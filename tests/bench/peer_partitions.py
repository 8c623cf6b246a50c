"""What `many_partitions` measures, of a peer, by what any client sees.

A partition is led when Metadata names a server that runs as its leader. Servers are ended by their
process ids and started again by the command line they were started with; what they print then is in
a file. Where not all are led after `WAIT_SECONDS_MAX` seconds, that figure is `inf`, and the run
goes on.
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
    """The servers of a peer that is up, in the order of its bootstrap addresses."""

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
        """What servers print that were started again."""
        self.printed.unlink(missing_ok=True)

    @property
    def pids(self) -> list[int]:
        return [pid for pid in self._pids if pid is not None]

    @property
    def bootstrap(self) -> str:
        """Of those that run."""
        pairs = zip(self._addresses, self._pids, strict=True)
        return ",".join(address for address, pid in pairs if pid is not None)

    @property
    def running(self) -> int:
        """How many of those that should."""
        return sum(self._runs(pid) for pid in self.pids)

    def end(self, places: Sequence[int], number: signal.Signals) -> None:
        """Return when they are gone; who does not go is killed."""
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
        """Whatever state they are in."""
        for process in self._started:
            process.kill()
            process.wait()

    def _pid(self, place: int) -> int:
        pid = self._pids[place]
        assert pid is not None, f"server {place + 1} does not run"
        return pid

    def _runs(self, pid: int) -> bool:
        for process in self._started:
            process.poll()  # one of ours would stay as a zombie
        return Path(f"/proc/{pid}").exists()


def run_peer(peer: Peer, partitions: int, step: int, seconds: float) -> Figures:
    """The figures that a client can find, under the names of `many_partitions`."""
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
    """When Metadata says that all are led (monotonic); `inf`: not in time."""
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
    """How many partitions of our topics have a leader among the servers that are there."""
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
