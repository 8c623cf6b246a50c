"""All kinds of clients at once, in a process of their own, and the judgement of their results.

Each of three topics has a producer kind: plain, idempotent, transactional. Two groups read each
topic, one of the classic protocol and one of KIP-848; those of the transactional topic read
committed records only. The process is a separate one so that the faults' administration does not
delay what the clients measure.

Does not depend on the faults of servers.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from tests.chaos.harness.group import CLASSIC, MODERN, Members, by_number, committed
from tests.chaos.harness.load import (
    IDEMPOTENT,
    ORDERED_IN_TERM,
    Ack,
    Load,
    assert_kept,
    end_offset,
    read_back,
)
from tests.chaos.harness.transactions import Fate, Transactor, problems, read_committed

PLAINLY, IDEMPOTENTLY, BY_TRANSACTION = KINDS = "plain", "idempotent", "transactional"
"""Kinds of producers, and their topics."""
PARTITIONS = 6
RATE_PER_SECOND = 60
TRANSACTORS = 2
PAUSE_SECONDS = 0.2
"""Time between two transactions, of a record for each partition."""
MEMBERS = 2
LARGE_FETCHES: dict[str, object] = {"fetch.min.bytes": 100_000}
"""Consumers wait for half a second, so that fetches cost little."""
DELIVERY_SECONDS_MAX = 120.0
CALL_SECONDS_MAX = 1_200.0


@dataclass
class Outcome:
    """Results of the clients."""

    violations: list[str] = field(default_factory=list)
    acks: dict[str, list[Ack]] = field(default_factory=dict)
    """By kind. Of a transaction: its beginning, and the answer to its commit."""
    lines: dict[str, int] = field(default_factory=dict)
    """By kind: number of independent sequences of acknowledgements; see `longest_gap_ms`."""
    figures: dict[str, object] = field(default_factory=dict)


class Traffic:
    """The clients, from creation to `end`, seen from another process."""

    def __init__(self, bootstrap: str) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=live, args=(bootstrap, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def acknowledged(self) -> dict[str, int]:
        """Return the number of acknowledgements so far, by kind."""
        return dict(self._call("acknowledged"))

    def end(self) -> Outcome:
        """Stop the producers, wait until all is read, and judge."""
        outcome = self._call("end")
        assert isinstance(outcome, Outcome)
        return outcome

    def close(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(30)

    def _call(self, name: str) -> Any:
        self._pipe.send(name)
        assert self._pipe.poll(CALL_SECONDS_MAX), f"the clients do not answer to {name}"
        return self._pipe.recv()


def live(bootstrap: str, pipe: Connection) -> None:
    """Run the process of the clients until the other side ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the other process ends this one
    clients = Clients(bootstrap)
    clients.start()
    calls: dict[str, Callable[[], object]] = {
        "acknowledged": clients.acknowledged,
        "end": clients.end,
    }
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            os._exit(1)
        pipe.send(calls[name]())


class Clients:
    """The clients themselves, in threads."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._loads = {
            variant.name: Load(
                bootstrap,
                variant.name,
                variant,
                partitions=PARTITIONS,
                rate_per_second=RATE_PER_SECOND,
            )
            for variant in (ORDERED_IN_TERM, IDEMPOTENT)
        }
        self._transactors = [
            Transactor(bootstrap, BY_TRANSACTION, PARTITIONS, number, pause_seconds=PAUSE_SECONDS)
            for number in range(TRANSACTORS)
        ]
        self._groups = [
            Members(
                bootstrap,
                kind,
                f"{kind}-{protocol}",
                MEMBERS,
                settings={**settings, **LARGE_FETCHES, **isolation},
                identify=identify,
            )
            for kind, identify, isolation in (
                (PLAINLY, by_number, {}),
                (IDEMPOTENTLY, by_number, {}),
                (BY_TRANSACTION, by_name, {"isolation.level": "read_committed"}),
            )
            for protocol, settings in (("classic", CLASSIC), ("kip-848", MODERN))
        ]

    def start(self) -> None:
        for group in self._groups:
            group.start()
        for load in self._loads.values():
            load.start()
        for transactor in self._transactors:
            transactor.start()

    def acknowledged(self) -> dict[str, int]:
        found = {kind: len(load.acks) for kind, load in self._loads.items()}
        return found | {BY_TRANSACTION: sum(len(one.commits) for one in self._transactors)}

    def end(self) -> Outcome:
        """Stop the producers, wait for the groups, and judge; a violation ends nothing."""
        outcome = Outcome()
        for load in self._loads.values():
            self._try(outcome, f"{load.topic} producer", load.stop)
        for one in self._transactors:
            one.stop()
        for one in self._transactors:
            self._try(outcome, one.name, one.join)
        for load in self._loads.values():
            self._judge_load(outcome, load)
        self._judge_transactions(outcome)
        for group in self._groups:
            self._judge_group(outcome, group)
        return outcome

    def _try(self, outcome: Outcome, what: str, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - each violation is reported, whatever it raises
            outcome.violations.append(f"{what}: {error}")

    def _judge_load(self, outcome: Outcome, load: Load) -> None:
        kind, again = load.topic, 0
        outcome.acks[kind], outcome.lines[kind] = load.acks, PARTITIONS
        for number, error in load.failures.items():
            outcome.violations.append(f"{kind} producer: {number} failed: {error}")
        if missing := load.sent - len(load.acks) - len(load.failures):
            outcome.violations.append(f"{kind} producer: {missing} without an answer")

        def judge(partition: int) -> None:
            nonlocal again
            stored = read_back(self._bootstrap, kind, partition)
            again += len(stored) - len({record.value for record in stored})
            assert_kept(load, stored, partition)

        for partition in range(PARTITIONS):
            self._try(outcome, f"{kind}-{partition}", partial(judge, partition))
        outcome.figures[f"{kind}: acknowledged"] = len(load.acks)
        outcome.figures[f"{kind}: stored twice"] = again

    def _fates(self) -> dict[str, Fate]:
        return {name: fate for one in self._transactors for name, fate in one.fates.items()}

    def _judge_transactions(self, outcome: Outcome) -> None:
        fates = self._fates()
        outcome.lines[BY_TRANSACTION] = TRANSACTORS
        outcome.acks[BY_TRANSACTION] = [
            Ack(order * TRANSACTORS + number, 0, *times)
            for number, one in enumerate(self._transactors)
            for order, times in enumerate(one.commits)
        ]
        for one in self._transactors:
            outcome.violations += [f"{one.name}: {error}" for error in one.fatal]

        def judge() -> None:
            found = read_committed(self._bootstrap, BY_TRANSACTION, PARTITIONS)
            outcome.violations += problems(fates, found, PARTITIONS)

        self._try(outcome, BY_TRANSACTION, judge)
        for fate in Fate:
            count = sum(one is fate for one in fates.values())
            outcome.figures[f"{BY_TRANSACTION}: {fate.value}"] = count
        errors = sum((one.aborts for one in self._transactors), Counter())
        outcome.figures[f"{BY_TRANSACTION}: errors that aborted"] = dict(errors)

    def _judge_group(self, outcome: Outcome, group: Members) -> None:
        """Check that all was delivered, and that the committed positions are those after all."""
        fates, name = self._fates(), group.group
        if group.topic == BY_TRANSACTION:
            wanted = self._records(fates, Fate.COMMITTED)
        else:
            wanted = {ack.number for ack in self._loads[group.topic].acks}

        def judge() -> None:
            group.wait_seen(wanted, seconds_max=DELIVERY_SECONDS_MAX)
            group.wait_committed(seconds_max=DELIVERY_SECONDS_MAX)

        self._try(outcome, name, judge)
        self._try(outcome, name, group.stop)
        outcome.violations += [f"{name}: {problem}" for problem in group.problems]
        if group.topic == BY_TRANSACTION:
            uncommitted = self._records(fates, Fate.ABORTED) & set(group.seen)
            outcome.violations += [f"{name}: {one} was aborted" for one in sorted(uncommitted)]
        for partition, kept in enumerate(committed(self._bootstrap, name, group.topic, PARTITIONS)):
            delivered = group.delivered.get(partition, -1)
            deadline = time.monotonic() + DELIVERY_SECONDS_MAX
            end = end_offset(self._bootstrap, group.topic, partition, deadline)
            if not delivered <= kept <= end:
                outcome.violations.append(
                    f"{name}: {partition} is committed at {kept}, delivered up to {delivered}, "
                    f"and ends at {end}"
                )
        outcome.figures[f"{name}: delivered"] = len(group.seen)
        outcome.figures[f"{name}: delivered again"] = sum(group.seen.values()) - len(group.seen)
        outcome.figures[f"{name}: errors"] = dict(group.errors)

    @staticmethod
    def _records(fates: dict[str, Fate], wanted: Fate) -> set[Any]:
        return {
            (partition, name)
            for name, fate in fates.items()
            if fate is wanted
            for partition in range(PARTITIONS)
        }


def by_name(value: bytes, partition: int) -> tuple[int, str]:
    """Identify a record of a transaction."""
    return partition, value.decode()


def wait_acknowledged(traffic: Traffic, more: int, *, seconds_max: float = 60.0) -> None:
    """Wait until `more` further values or transactions of each kind were acknowledged."""
    first = traffic.acknowledged()
    deadline = time.monotonic() + seconds_max
    while any(count < first[kind] + more for kind, count in traffic.acknowledged().items()):
        assert time.monotonic() < deadline, f"no {more} acknowledgements: {traffic.acknowledged()}"
        time.sleep(0.1)
