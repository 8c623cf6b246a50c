"""Transactions append to lists while servers and their own producers fail.

`vdl check` finds no anomaly in the recorded history, and finds every planted one.

LISTS sets the duration in seconds, TRANSACTIONS the minimum number of transactions, however long
that takes; without LISTS a few producers run for a few seconds.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from itertools import count
from pathlib import Path

from tests.chaos.conftest import Figure
from tests.chaos.harness.append_process import PLACES
from tests.chaos.harness.appends import AppendProcess, StableWatch, final_reads, history
from tests.chaos.harness.cluster import create_topic, wait_healthy
from tests.chaos.harness.plants import planted
from tests.chaos.harness.replica_set import ReplicaSet
from tests.chaos.harness.wires import Wires
from vdl.check.history import write
from vdl.check.report import find

LISTS_SECONDS = float(os.environ.get("LISTS", "0"))
IS_FULL = LISTS_SECONDS > 0
SECONDS = LISTS_SECONDS if IS_FULL else 12.0
PROCESSES, PRODUCERS = (4, 24) if IS_FULL else (2, 4)
"""Processes, and producers in each process."""
READERS = 2
TOPIC, PARTITIONS = "lists", 8
TRANSACTIONS_MIN = int(os.environ.get("TRANSACTIONS", "50"))
SERVING_SECONDS_MAX = 120.0
"""Limit for a server that reads its logs while all others work, on two processors."""
FAULT_SECONDS, CALM_SECONDS = (1.0, 4.0), (2.0, 5.0) if IS_FULL else (1.0, 2.0)
AT_ONCE_SECONDS = (0.3, 1.2)
"""Time between two kills of a server that is restarted at once.

Both are within the period for which a leader still answers requests of the first process.
"""
SHOWN = 10


class Workload:
    """The processes, and the operations on them."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._bootstrap, self._folder = bootstrap, folder
        self._numbers = count(1)
        self.appending = [
            self._start("append", number * PRODUCERS, PRODUCERS) for number in range(PROCESSES)
        ]
        self._others = [self._start("read") for _ in range(READERS)]
        self.retired = 0

    def _start(self, role: str, *rest: int) -> AppendProcess:
        number = next(self._numbers)
        file = self._folder / f"{number}.jsonl"
        return AppendProcess(role, self._bootstrap, TOPIC, PARTITIONS, file, number, *rest)

    def _succeed(self, place: int) -> AppendProcess:
        """Start producers that take over the transactional ids; return their previous owner."""
        before = self.appending[place]
        self.appending[place] = self._start("append", place * PRODUCERS, PRODUCERS)
        return before

    def kill(self, place: int) -> None:
        self.appending[place].kill()
        self._others.append(self._succeed(place))

    def replace(self, place: int, seconds: float) -> None:
        """Replace a paused process; its producers do not know that they are fenced."""
        self.appending[place].pause()
        before = self._succeed(place)
        self._others.append(before)
        time.sleep(seconds)
        before.retire()
        self.retired += 1

    def committed(self) -> int:
        """Return the number of transactions committed so far."""
        return sum(
            path.read_bytes().count(b'"f":"txn","type":"ok"')
            for path in self._folder.glob("*.jsonl")
        )

    def end(self) -> int:
        """End all processes; return the number of those that did not end by themselves."""
        everybody = self.appending + self._others
        for process in everybody:
            process.end()
        return sum(not process.wait() for process in everybody)

    def abandon(self) -> None:
        for process in self.appending + self._others:
            process.abandon()


def strike(
    fault: str, replica_set: ReplicaSet, wires: Wires, workload: Workload, rng: random.Random
) -> None:
    """Make one fault, and heal it."""
    server_id = rng.choice(replica_set.server_ids)
    place = rng.randrange(PROCESSES)
    seconds = rng.uniform(*FAULT_SECONDS)
    if fault == "kill a server":
        replica_set.kill(server_id)
        time.sleep(seconds)
        replica_set.start(server_id)
        replica_set.wait_serving(server_id, seconds_max=SERVING_SECONDS_MAX)
    elif fault == "restart a server twice":
        # Requests that it sent last wait for the paused server, and are answered to its successors.
        held_up = rng.choice([other for other in replica_set.server_ids if other != server_id])
        replica_set.pause(held_up)
        for _ in range(2):
            replica_set.kill(server_id)
            replica_set.start(server_id)
            time.sleep(rng.uniform(*AT_ONCE_SECONDS))
        replica_set.resume(held_up)
        replica_set.wait_serving(server_id, seconds_max=SERVING_SECONDS_MAX)
    elif fault == "pause a server":
        replica_set.pause(server_id)
        time.sleep(seconds)
        replica_set.resume(server_id)
    elif fault == "silence a server":
        wires.silence(server_id)
        time.sleep(seconds)
        wires.heal()
    elif fault == "deafen a server":
        wires.deafen(server_id)
        time.sleep(seconds)
        wires.heal()
    elif fault == "kill producers":
        workload.kill(place)
    else:
        workload.replace(place, seconds)


FAULTS = (
    "kill a server",
    "restart a server twice",
    "pause a server",
    "silence a server",
    "deafen a server",
    "kill producers",
    "replace producers",
)


def test_lists_of_transactions_show_no_anomaly_under_faults(tmp_path: Path, figure: Figure) -> None:
    """Servers are killed, restarted at once, paused and cut off in one direction.

    Producers are killed, or replaced while they are paused. Every kind of anomaly that is planted
    into the history is found.
    """
    seed = int(os.environ.get("SEED", str(random.randrange(1 << 32))))
    print(f"SEED={seed}")
    rng = random.Random(seed)
    replica_set = ReplicaSet(3)
    struck: Counter[str] = Counter()
    failed = "list-append"
    with Wires(replica_set) as wires:
        try:
            replica_set.up()
            create_topic(replica_set, TOPIC, partitions=PARTITIONS)
            create_topic(replica_set, PLACES, partitions=PROCESSES * PRODUCERS)
            watch = StableWatch(replica_set.bootstrap, TOPIC)
            watch.start()
            workload = Workload(replica_set.bootstrap, tmp_path)
            try:
                ends = time.monotonic() + SECONDS
                faults: list[str] = []
                while (
                    time.monotonic() < ends
                    or len(struck) < len(FAULTS)
                    or workload.committed() < TRANSACTIONS_MIN
                ):
                    time.sleep(rng.uniform(*CALM_SECONDS))
                    if not faults:
                        faults = rng.sample(FAULTS, len(FAULTS))
                    fault = faults.pop()
                    strike(fault, replica_set, wires, workload, rng)
                    struck[fault] += 1
                figure("hung", workload.end())
            finally:
                workload.abandon()
                watch.stop()
            wait_healthy(replica_set)
            ops = history(tmp_path) + watch.ops
            ops += final_reads(replica_set.bootstrap, TOPIC, PARTITIONS)
            failed = ""
        finally:
            replica_set.close(failed=failed)
    found = find(ops)
    if found:
        with Path(".cache/list-append.jsonl").open("w", encoding="utf-8") as file:
            write(ops, file)
    fates = Counter(op.type for op in ops if op.f == "txn")
    figure("transactions", dict(fates))
    figure("operations", len(ops))
    figure("faults", dict(struck))
    assert found == [], "\n".join(map(str, found[:SHOWN]))
    assert fates["ok"] >= TRANSACTIONS_MIN
    assert fates["ok"] > fates["fail"] > 0
    with_plants, expected = planted(ops, rng)
    names = {(one.name, i) for one in find(with_plants) for i in one.ops}
    assert expected <= names, expected - names
