"""Plans against what happens: each is made, and carried out under load while a fault happens.

    python -m tests.chaos.plans_tried [--only move,grow] [--megabytes 4]

Six servers, each with a disk of its own, of which three began the cluster. A producer with acks=all
and idempotence writes all the time. A row of the table is a plan: bytes, seconds and least
copies as planned and as seen. Seen bytes are those of the new replicas on their disks; seen copies
are the durable ones (`Watch`). A plan that a fault stops is made and carried out again, as an
operator does; `tries` counts.

Violations: a partition with fewer than two durable copies, an acknowledged record that is lost, a
plan that cannot be carried out after the fault. `make plans`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import MIB, Disks
from tests.chaos.harness.load import IDEMPOTENT, Load, audit, read_back
from tests.chaos.harness.members import catalog_leader, until, vdl
from tests.chaos.harness.moves import ask
from vdl.commands.checks.cluster_status import NOT_SECURED, collect_answers
from vdl.config.values import parse_address
from vdl.kafka.client import Unreachable
from vdl.kafka.wire.describe_log_dirs import DescribeLogDirsRequest
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic

TOPIC = "planned"
PARTITIONS = 12
SERVERS, VOTERS = 6, (1, 2, 3)
DISK_BYTES = 384 * MIB
RATE = "4MiB"
LOAD_A_SECOND = 60
COPIES_MIN = 2
COPIES_UNKNOWN = 99
TRIES_MAX = 20
LOOK_SECONDS = 0.1
FAULT_AFTER_SECONDS, FAULT_SECONDS = 0.5, 4.0
SETTINGS = {"raft.catch_up_rate": RATE, "storage.journal_first_file_bytes": "4MiB"}
VALUE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Trial:
    """A plan, by the words of the command, and the fault while it is carried out."""

    name: str
    words: tuple[str, ...]
    fault: str = ""
    """"kill", "pause" or "full", with the server: "kill 2"; "kill leader": the catalog's."""
    returns: int = 0
    """A removed server that waits with an empty disk before the plan."""


TRIALS = (
    Trial("one replica moves", ("move", f"{TOPIC}:0=4,2,3")),
    Trial("another leader", ("move", f"{TOPIC}:1=3,1,2")),
    Trial(
        "three partitions move",
        ("move", *(f"{TOPIC}:{n}=4,5,6" for n in (2, 3, 4))),
        "kill 2",
    ),
    Trial("a fourth replica", ("move", f"{TOPIC}:5=1,2,3,4"), "pause 4"),
    Trial("back to three", ("move", f"{TOPIC}:5=1,2,3")),
    Trial("balance", ("balance",), "full 5"),
    Trial("server 6 leaves", ("remove", "6"), "kill leader"),
    Trial("server 6 returns", ("add", "6"), "pause 2", returns=6),
    Trial("server 5 leaves", ("remove", "5"), "full 4"),
    Trial("server 5 returns", ("add", "5"), "kill 3", returns=5),
)


@dataclass(slots=True)
class Seen:
    """Result of a trial."""

    planned_bytes: int = 0
    planned_seconds: float = 0.0
    planned_copies: int | None = None
    seen_bytes: int = 0
    seen_seconds: float = 0.0
    seen_copies: int = COPIES_UNKNOWN
    tries: int = 0
    stopped: list[str] = field(default_factory=list)


class Watch:
    """Counts the durable copies of each partition, in a thread of its own.

    A copy is a listed replica that was seen to hold all that was committed at the look before. A
    dead server keeps its copy. Two looks in a row count, as a server may answer one look late.
    """

    def __init__(self, servers: DiskSet) -> None:
        self._addresses = [*map(parse_address, servers.bootstrap.split(","))]
        self._ends = threading.Event()
        self._held: dict[tuple[str, int], int] = {}
        self._committed: dict[str, int] = {}
        self._before: dict[str, int] = {}
        self.least = COPIES_UNKNOWN
        self.looks = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ends.set()
        self._thread.join(60)

    def _run(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            try:
                status, _ = collect_answers(self._addresses, NOT_SECURED)
            except Unreachable:
                continue
            self.looks += 1
            for topic in status.topics:
                for partition in topic.partitions:
                    self._look(partition)

    def _look(self, partition: Any) -> None:
        name = partition.name
        copies = 0
        for replica in partition.replicas:
            held = max(self._held.get((name, replica.server), 0), replica.end_offset)
            self._held[name, replica.server] = held
            copies += held >= self._committed.get(name, 0)
        self.least = min(self.least, max(copies, self._before.get(name, copies)))
        self._before[name] = copies
        seen = max(replica.high_watermark for replica in partition.replicas)
        self._committed[name] = max(self._committed.get(name, 0), seen)


def partitions(bootstrap: str) -> list[Any]:
    """Return the partitions as a server describes them; none if no server answers."""
    try:
        found = ask(bootstrap, 3, MetadataRequest([MetadataRequestTopic(name=TOPIC)]))
    except AssertionError:
        return []
    return list(found.topics[0].partitions)


def replicas(bootstrap: str) -> dict[int, list[int]]:
    return {one.partition_index: list(one.replica_nodes) for one in partitions(bootstrap)}


class Course:
    """The cluster, and its trials one after the other."""

    def __init__(self, servers: DiskSet, megabytes: int) -> None:
        self.servers = servers
        self.bootstrap = servers.bootstrap
        self._megabytes = megabytes
        self.violations: list[str] = []

    def begin(self) -> None:
        """Grow the cluster to six, and fill the topic."""
        for server in self.servers.server_ids:
            self.servers.start(server)
        for server in self.servers.server_ids[len(VOTERS) :]:
            peer = self.servers.peer_address(server)
            added = partial(self._is_done, "member", "add", str(server), "--peer", peer)
            until(added, f"server {server} is not added")
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        placed = [
            [VOTERS[n % 3], VOTERS[(n + 1) % 3], VOTERS[(n + 2) % 3]] for n in range(PARTITIONS)
        ]
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, replica_assignment=placed)])[TOPIC].result(
            60
        )
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all"})
        for number in range(self._megabytes * PARTITIONS * MIB // VALUE_BYTES):
            value = os.urandom(VALUE_BYTES)
            producer.produce(TOPIC, value, partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(120) == 0

    def _is_done(self, *words: str) -> bool:
        return not vdl(self.bootstrap, *words)[0]

    def is_whole(self) -> bool:
        found = partitions(self.bootstrap)
        return len(found) == PARTITIONS and all(
            one.leader_id >= 0 and len(one.isr_nodes) == len(one.replica_nodes) for one in found
        )

    def plan(self, trial: Trial, *more: str) -> tuple[int, Any, str]:
        words = ("plan", *trial.words, "--rate", RATE, "--json", *more)
        code, out, error = vdl(self.bootstrap, *words)
        return code, json.loads(out) if out.startswith("{") else None, error.strip()

    def try_out(self, trial: Trial) -> Seen:
        """Make a plan, and carry it out until nothing is left of it."""
        until(self.is_whole, "the partitions are not in sync before the plan")
        if trial.returns:
            self._return(trial.returns)
        seen, before = Seen(), replicas(self.bootstrap)
        _, document, error = self.plan(trial)
        assert document is not None, error
        steps = document["plan"]["steps"]
        seen.planned_bytes = sum(step["bytes"] for step in steps)
        seen.planned_seconds = sum(step["seconds"] for step in steps)
        copies = [step["copies_left"] for step in steps if step["copies_left"] is not None]
        seen.planned_copies = min(copies, default=None)
        kind, _, whom = trial.fault.partition(" ")
        struck = catalog_leader(self.bootstrap) if whom == "leader" else int(whom or 0)
        fault = threading.Thread(target=self._strike, args=(kind, struck), daemon=True)
        began = time.monotonic()
        with Watch(self.servers) as watch:
            fault.start()
            for _ in range(TRIES_MAX):
                seen.tries += 1
                code, done, error = self.plan(trial, "--execute")
                if not code and done is not None:
                    break
                seen.stopped.append(error[:300])
                time.sleep(1.0)
                if trial.words[0] == "remove" and "not registered" in f"{done}{error}":
                    break  # it was removed by the try before
                if trial.words[0] == "add" and "is a member" in error:
                    trial = Trial(trial.name, ("balance",))
            else:
                self.violations.append(f"{trial.name}: not carried out: {seen.stopped[-1]}")
            seen.seen_seconds = time.monotonic() - began
            fault.join(120)
            until(self.is_whole, "the partitions are not in sync after the plan")
        after = replicas(self.bootstrap)
        sizes = self._sizes({server for on in after.values() for server in on})
        seen.seen_bytes = sum(
            sizes.get((server, partition), 0)
            for partition, on in after.items()
            for server in set(on) - set(before[partition])
        )
        seen.seen_copies = watch.least
        if watch.least < COPIES_MIN:
            self.violations.append(f"{trial.name}: {watch.least} copies were left")
        return seen

    def _return(self, server: int) -> None:
        """Start a removed server on an empty disk."""
        self.servers.end(server)
        for path in self.servers.stores[server - 1].iterdir():
            if path.name != "lost+found":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.servers.start(server)

        def waits() -> bool:
            _, out, _ = vdl(self.bootstrap, "member", "list", "--json")
            rows = json.loads(out)["members"] if out else []
            return any(
                one["server_id"] == server and one["standing"] == "waiting" and one["address"]
                for one in rows
            )

        until(waits, f"server {server} does not wait")

    def _strike(self, kind: str, server: int) -> None:
        if not kind:
            return
        time.sleep(FAULT_AFTER_SECONDS)
        if kind == "kill":
            self.servers.kill(server)
            time.sleep(FAULT_SECONDS)
            self.servers.start(server)
        elif kind == "pause":
            self.servers.pause(server)
            time.sleep(FAULT_SECONDS)
            self.servers.resume(server)
        else:
            filler = self.servers.stores[server - 1] / "lost+found" / "filler"
            _fill(filler)
            time.sleep(FAULT_SECONDS)
            filler.unlink()

    def _sizes(self, servers: set[int]) -> dict[tuple[int, int], int]:
        """Return the bytes of each replica of the topic, by server and partition."""
        found = {}
        for server in sorted(servers):
            self.servers.wait_serving(server, seconds_max=60.0)
            answer = ask(self.servers.address(server), 35, DescribeLogDirsRequest(topics=None))
            for topic in answer.results[0].topics:
                for one in topic.partitions:
                    if topic.name == TOPIC:
                        found[server, one.partition_index] = one.partition_size
        return found


def _fill(path: Any) -> None:
    """Write a file until the disk is full."""
    with path.open("wb") as file:
        try:
            while True:
                file.write(bytes(MIB))
                file.flush()
        except OSError:
            return


def rows_of(results: list[tuple[Trial, Seen]]) -> list[str]:
    """Return the table."""
    rows = [
        "| plan | fault | MB planned | MB seen | s planned | s seen | × | copies planned "
        "| copies seen | tries |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for trial, seen in results:
        ratio = seen.seen_seconds / seen.planned_seconds if seen.planned_seconds else float("nan")
        rows.append(
            f"| {trial.name} | {trial.fault or '-'} | {seen.planned_bytes / 1e6:.1f} "
            f"| {seen.seen_bytes / 1e6:.1f} | {seen.planned_seconds:.0f} | {seen.seen_seconds:.0f} "
            f"| {ratio:.1f} | {seen.planned_copies} | {seen.seen_copies} | {seen.tries} |"
        )
    return rows


def try_plans(trials: tuple[Trial, ...], megabytes: int) -> tuple[list[str], list[str]]:
    """Carry out some plans on a new cluster. Return the table, and the violations."""
    with ExitStack() as stack:
        disks = stack.enter_context(Disks())
        servers = DiskSet(disks, SERVERS, disk_bytes=DISK_BYTES, settings=SETTINGS)
        violations = ["it did not end"]
        stack.callback(lambda: servers.close(failed="plans_tried" if violations else ""))
        servers.configure({}, voters=len(VOTERS))
        course = Course(servers, megabytes)
        course.begin()
        load = Load(
            servers.bootstrap, TOPIC, IDEMPOTENT, partitions=PARTITIONS,
            rate_per_second=LOAD_A_SECOND,
        )  # fmt: skip
        results: list[tuple[Trial, Seen]] = []
        load.start()
        try:
            load.wait_acknowledged(LOAD_A_SECOND)
            for trial in trials:
                results.append((trial, course.try_out(trial)))
                sys.stdout.write(f"{rows_of(results)[-1]}\n")
                for line in results[-1][1].stopped[:3]:
                    sys.stdout.write(f"  stopped: {line}\n")
                sys.stdout.flush()
        finally:
            load.stop()
        if load.failures:
            course.violations.append(f"writes failed: {list(load.failures.values())[:3]}")
        for partition in range(PARTITIONS):
            acks = [ack for ack in load.acks if ack.number % PARTITIONS == partition]
            audit(acks, read_back(servers.bootstrap, TOPIC, partition))
        violations = course.violations
        return rows_of(results), list(violations)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", help="first words of plans: move,add,...")
    parser.add_argument("--megabytes", type=int, default=4, help="of each partition")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    trials = tuple(one for one in TRIALS if not only or one.words[0] in only)
    rows, violations = try_plans(trials, options.megabytes)
    sys.stdout.write("\n".join([*rows, "", *violations, ""]))
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
