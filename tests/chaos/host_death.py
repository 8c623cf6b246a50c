"""Death of a whole host with several servers, on real processes.

    python -m tests.chaos.host_death [--nodes 12] [--per-host 4] [--partitions 12] [--host 1]

`vdl up --per-host` starts the servers. An idempotent producer writes to all partitions with
acks=all all the time, while every server of one host gets SIGKILL at one moment. It prints by
partition how long after that a record is acknowledged that was sent after it, and the longest time
without an acknowledgement. Exits with 1 if two replicas of a partition were on one host, or if an
acknowledged record is lost or stored twice. Times are printed and not judged: they depend on the
machine. `make host-death`.

Does not depend on how servers are placed or elected.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.load import IDEMPOTENT, NS, QUIET, Load, assert_kept, read_back
from tests.chaos.harness.moves import replicas
from vdl.commands.servers.replica_set import ReplicaSet, find_replica_set

BASE_PORT = 20_100
TOPIC = "t"
REPLICAS = 3
SECONDS_BEFORE, SECONDS_AFTER = 8.0, 15.0
START_SECONDS_MAX = "240"


def say(text: str) -> None:
    print(text, flush=True)


def vdl(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "vdl.cli", *words], check=True, stdout=subprocess.DEVNULL)


def kill(servers: ReplicaSet, host: str) -> tuple[int, int]:
    """Kill all servers of a host. Return how many they were, and the time."""
    pids = [one.running_pid() for one in servers.servers if servers.host_of(one.id) == host]
    at_ns = time.monotonic_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids), at_ns


def run(servers: ReplicaSet, partitions: int, host: str) -> None:
    """Kill a host under load. Raises AssertionError if a promise does not hold."""
    bootstrap = servers.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, partitions, REPLICAS)])[TOPIC].result(60)
    placed = replicas(bootstrap, TOPIC)
    for partition, on in placed.items():
        hosts = {servers.host_of(server) for server in on}
        assert len(hosts) == REPLICAS, f"partition {partition} is on servers {on}"
    load = Load(bootstrap, TOPIC, IDEMPOTENT, partitions=partitions)
    load.start()
    try:
        load.wait_acknowledged(100, seconds_max=60)
        time.sleep(SECONDS_BEFORE)
        led = sum(servers.host_of(on[0]) == host for on in placed.values())
        count, at_ns = kill(servers, host)
        say(f"kill -9 of the {count} servers of {host}, which preferred to lead {led} partitions")
        time.sleep(SECONDS_AFTER)
    finally:
        load.stop()
    for partition in range(partitions):
        acks = [ack for ack in load.acks if ack.number % partitions == partition]
        later = [ack.returned_ns - at_ns for ack in acks if ack.sent_ns > at_ns]
        assert later, f"partition {partition} was not written after the kill"
        say(f"partition {partition} on {placed[partition]}: {min(later) / NS:.3f} s")
    gap_ms = load.longest_gap_ms(at_ns, at_ns + int(SECONDS_AFTER * NS))
    say(f"longest time without an acknowledgement of a partition: {gap_ms:.0f} ms")
    assert not load.failures, load.failures
    for partition in range(partitions):
        assert_kept(load, read_back(bootstrap, TOPIC, partition), partition)
    say(f"{len(load.acks)} records acknowledged, 0 lost, 0 twice")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--host", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="vdl-host-death-"))
    layout = ("--nodes", str(given.nodes), "--per-host", str(given.per_host))
    try:
        began = time.monotonic()
        vdl(
            "up", "--data", str(folder), "--base-port", str(BASE_PORT), *layout, "--detach",
            "--timeout", START_SECONDS_MAX,
        )  # fmt: skip
        say(f"{given.nodes} servers serve after {time.monotonic() - began:.1f} s")
        servers = find_replica_set(folder)
        assert servers is not None, folder
        run(servers, given.partitions, f"host-{given.host}")
    except AssertionError as error:
        say(f"violation: {error}")
        return 1
    finally:
        vdl("down", "--data", str(folder))
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
