"""Many concurrent transactional producers: records a second, and the time of a transaction.

Each producer is an unmodified librdkafka at its defaults with a transactional id of its own. It
begins a transaction, sends its records to one partition after another, commits, and begins the
next. They share a few processes, a thread each: a client's calls block. A thousand clients together
get less CPU weight than a server, as if they ran elsewhere, whichever system is measured.
`transaction` is the time from the beginning to the answer to the commit, so with N producers that
never pause it is about N divided by the rate.

With PEER=NAME in the environment each round measures both systems (tests/bench/systems.py).
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.bench.beside_peer import comparison, say, set_peer_defaults
from tests.bench.client_process import LOOK_SECONDS, ClientProcess, weigh_little
from tests.bench.rounds import Comparison, Figures
from tests.bench.systems import System, cpu_seconds
from tests.bench.targets import TRANSACTIONS
from tests.bench.topics import create_led_topic

CALL_SECONDS_MAX = 120.0
BEGIN_AT_ONCE = 8
"""Clients of a process that request their producer ids at once.

A thousand at once would measure only their own timeouts.
"""
LONGEST_MS = 60_000
"""Longer times count as this."""
ABORTED, READY, COUNTS = LONGEST_MS + 1, LONGEST_MS + 2, LONGEST_MS + 3
"""Layout of a process's counts: one for each millisecond that a transaction may take; then the
aborted transactions, the ready producers, and the length.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """Work of each producer."""

    partitions: int
    records: int
    record_bytes: int
    spread: int


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producers", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--records", type=int, default=100, help="of a transaction")
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--spread", type=int, default=1, help="partitions of a transaction")
    parser.add_argument("--processes", type=int, default=4, help="that clients run in")
    parser.add_argument("--warm-up-seconds", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=15.0, help="that are measured")
    set_peer_defaults(parser)
    parser.set_defaults(memory_in_use=False)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    yield comparison(partial(_one_pass, options=options), TRANSACTIONS)


def _one_pass(system: System, name: str, *, options: argparse.Namespace) -> Figures:
    topic = f"transactions-{name}"
    create_led_topic(system.bootstrap, topic, options.partitions)
    load = Load(options.partitions, options.records, options.record_bytes, options.spread)
    began = time.monotonic()
    with ExitStack() as stack:
        clients = [
            stack.enter_context(
                ClientProcess(_transact, system.bootstrap, topic, mine, load, counts=COUNTS)
            )
            for mine in _shares(options.producers, options.processes)
        ]
        while (ready := _total(clients)[READY]) < options.producers:
            assert time.monotonic() - began < CALL_SECONDS_MAX, f"{ready} producers may begin"
            time.sleep(LOOK_SECONDS)
        figures = {"init_seconds": time.monotonic() - began}
        time.sleep(options.warm_up_seconds)
        figures |= _measured(system, clients, options)
    say(f"{system.name}, {name}: {figures}")
    return figures


def _shares(producers: int, processes: int) -> list[range]:
    """Return the numbers of the producers of each process."""
    ends = [producers * number // processes for number in range(processes + 1)]
    return [range(*pair) for pair in pairwise(ends)]


def _total(clients: Sequence[ClientProcess]) -> list[int]:
    return [sum(column) for column in zip(*(one.counts for one in clients), strict=True)]


def _measured(
    system: System, clients: Sequence[ClientProcess], options: argparse.Namespace
) -> Figures:
    before, cpu_before, began = _total(clients), cpu_seconds(system.pids()), time.monotonic()
    time.sleep(options.seconds)
    after, used = _total(clients), cpu_seconds(system.pids()) - cpu_before
    elapsed = time.monotonic() - began
    taken = [new - old for new, old in zip(after, before, strict=True)]
    aborted, by_ms = taken[ABORTED], taken[: LONGEST_MS + 1]
    committed = sum(by_ms)
    assert committed, "nothing was committed"
    return {
        "transactions_per_second": committed / elapsed,
        "records_per_second": committed * options.records / elapsed,
        "transaction_p50_ms": _percentile(by_ms, 0.5),
        "transaction_p99_ms": _percentile(by_ms, 0.99),
        "server_cpu_ms_per_transaction": used / committed * 1_000,
        "aborted": aborted,
    }


def _percentile(by_ms: Sequence[int], part: float) -> float:
    wanted = part * sum(by_ms)
    return next(ms for ms, count in enumerate(accumulate(by_ms)) if count >= wanted)


# --- in a client's process -----------------------------------------------------------------------


def _transact(bootstrap: str, topic: str, mine: range, load: Load, counts: Any, ends: Any) -> None:
    weigh_little()
    lock = threading.Lock()  # protects the counts
    beginning = threading.Semaphore(BEGIN_AT_ONCE)
    all_ready = threading.Barrier(len(mine))

    def counted(what: int) -> None:
        with lock:
            counts[what] += 1

    def run(number: int) -> None:
        producer = _Transactional(bootstrap, topic, number, load)
        with beginning:
            producer.init()
        counted(READY)
        all_ready.wait(CALL_SECONDS_MAX)
        while not ends.is_set():
            began = time.monotonic()
            if producer.transact():
                counted(min(int((time.monotonic() - began) * 1_000), LONGEST_MS))
            else:
                counted(ABORTED)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class _Transactional:
    """One producer."""

    def __init__(self, bootstrap: str, topic: str, number: int, load: Load) -> None:
        self._topic = topic
        self._value = os.urandom(load.record_bytes)
        self._partitions = [(number + place) % load.partitions for place in range(load.spread)] * (
            load.records // load.spread
        )
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{topic}-{number}",
                "transaction.timeout.ms": int(CALL_SECONDS_MAX * 1_000),
                "log_level": 0,
            }
        )

    def init(self) -> None:
        self._retried(self._producer.init_transactions)

    def transact(self) -> bool:
        """Run one transaction. Return True if it was committed."""
        self._producer.begin_transaction()
        try:
            for partition in self._partitions:
                self._producer.produce(self._topic, self._value, partition=partition)
            self._retried(self._producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._retried(self._producer.abort_transaction)
            return False
        return True

    @staticmethod
    def _retried(call: Any) -> None:
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                call(CALL_SECONDS_MAX)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return
