"""Faults for applications: an application on a cluster, under drawn faults, shrunk to a few.

`check_under_faults` draws schedules of faults with Hypothesis. One under which the application's
check fails is shrunk to as few and as early faults as possible, and printed as a test.
`run_under_faults` is that test: it repeats one schedule.

A fault strikes at a step of the application, never at a time, so that a schedule does nearly the
same each time. Real servers and clients remain: a schedule may fail sometimes only. So each that
fails is repeated once, and counts only if it fails again; results are remembered, as Hypothesis
expects a condition that repeats. One that failed once is reported if no other is found.
"""

from __future__ import annotations

import random
import selectors
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from vdl.testing.application import App, AppProcess, Code, Env
from vdl.testing.errors import ClusterError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from vdl.testing.cluster import Cluster

__all__ = [
    "App", "Env", "Event", "Fault", "FaultFound", "check_under_faults", "run_under_faults",
    "schedules",
]  # fmt: skip

FAULT_SECONDS = 2.5
"""Duration of faults of the cluster that end by themselves: two of the longest elections."""
SLOW_SECONDS = 1.5
"""Addition to each sync of a slow disk."""
END_SECONDS_MAX = 60.0
"""Time that an application has for its work after the last fault has ended."""
EVENTS_MAX = 3
STARTS_MAX = 20


class Fault(Enum):
    """Kinds of faults, the simplest first."""

    CRASH = "the application is killed (SIGKILL) and started again"
    REPLACE = "the application is paused, another one is started, and the first one resumes after"
    KILL_LEADER = "the leader of the first topic is killed, and started again later"
    ISOLATE_LEADER = "the leader of the first topic is cut off from the other servers for a while"
    SLOW_DISKS = "each sync of each server takes long for a while"
    POWER_CUT = "all servers lose power, with what was not synced, and start again"
    GROW_TOPIC = "the first topic gets one more partition"


@dataclass(frozen=True, slots=True)
class Event:
    """A fault at a step. Steps count from 0, over all processes of the application."""

    step: int
    fault: Fault

    @property
    def order(self) -> tuple[int, int]:
        """Order in which events strike."""
        return self.step, list(Fault).index(self.fault)

    def __repr__(self) -> str:
        return f"Event({self.step}, Fault.{self.fault.name})"


class FaultFound(AssertionError):
    """Raised if an application fails under faults. The text has a test that repeats it."""

    def __init__(self, app: App, schedule: Sequence[Event], problem: str, seen: str) -> None:
        super().__init__(f"{problem}\n\n{seen}; to repeat it:\n\n{as_test(app, schedule)}")
        self.schedule = list(schedule)
        self.problem = problem


def as_test(app: App, schedule: Sequence[Event]) -> str:
    """Return the source of a test that runs the application under this schedule."""
    faults = "_and_".join(event.fault.name.lower() for event in schedule) or "no_fault"
    return (
        f"from {_module_of(app.run)} import {app.name}\n"
        "from vdl.testing import Cluster\n"
        "from vdl.testing.faults import Event, Fault, run_under_faults\n\n\n"
        f"def test_{app.name.lower()}_survives_{faults}() -> None:\n"
        "    with Cluster() as cluster:\n"
        f"        run_under_faults(cluster, {app.name}, {list(schedule)})\n"
    )


def _module_of(code: Code) -> str:
    while isinstance(code, partial):
        code = code.func
    return code.__module__


def schedules(
    steps: int, faults: Sequence[Fault] = tuple(Fault), events_max: int = EVENTS_MAX
) -> SearchStrategy[list[Event]]:
    """Return a strategy for schedules of 1 to `events_max` faults at the first `steps` steps."""
    from hypothesis import strategies as st

    events = [Event(step, fault) for fault in faults for step in range(steps)]
    # Half of them are single faults: most bugs need no more, and they shrink fastest.
    return st.one_of(
        st.sampled_from(events).map(lambda event: [event]),
        st.lists(st.sampled_from(events), min_size=2, max_size=events_max, unique=True).map(
            sorted_by_step
        )
        if len(events) > 1 and events_max > 1
        else st.nothing(),
    )


def sorted_by_step(events: list[Event]) -> list[Event]:
    """Return the events in the order in which they strike."""
    return sorted(events, key=lambda event: event.order)


def run_under_faults(cluster: Cluster, app: App, schedule: Sequence[Event] = ()) -> int:
    """Run an application once under a schedule. Return the number of its steps. Raises
    AssertionError if its check fails, or if the application fails or does not end. The cluster is
    whole before and after."""
    cluster.restore()
    run = _Run(cluster, app, schedule)
    try:
        return run.run()
    finally:
        run.close()


def check_under_faults(
    cluster: Cluster,
    app: App,
    *,
    faults: Sequence[Fault] = tuple(Fault),
    examples: int = 30,
    seconds: float = 120.0,
    seed: int = 0,
) -> int:
    """Run an application under up to `examples` schedules, for about `seconds`. Return the number
    of those that were run. Raises FaultFound with the smallest that fails, AssertionError if the
    application fails without faults, ClusterError if the cluster does not work."""
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.errors import NoSuchExample

    steps = run_under_faults(cluster, app)
    if not steps:
        raise ValueError(f"{app.name} announces no step, so no fault can strike")
    deadline = time.monotonic() + seconds
    problems: dict[tuple[Event, ...], str] = {}
    rare: dict[tuple[Event, ...], str] = {}
    broken: list[ClusterError] = []

    def fails(schedule: list[Event]) -> bool:
        key = tuple(schedule)
        if key not in problems:
            if broken or time.monotonic() > deadline:
                return False
            try:
                found = _problem(cluster, app, schedule)
                if found and not _problem(cluster, app, schedule):
                    rare[key], found = found, ""
                problems[key] = found
            except ClusterError as error:
                # Raised below: Hypothesis would take it for a failure of the application.
                broken.append(error)
                return False
        return bool(problems[key])

    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    smallest: list[Event] | None = None
    with suppress(NoSuchExample):
        smallest = find(
            schedules(steps, faults), fails, settings=chosen, random=random.Random(seed)
        )
    if broken:
        raise broken[0]
    if smallest is not None:
        raise FaultFound(app, smallest, problems[tuple(smallest)], "it failed in 2 of 2 runs")
    if rare:
        fewest = min(rare, key=lambda key: (len(key), [event.order for event in key]))
        raise FaultFound(app, fewest, rare[fewest], "it failed in 1 of 2 runs")
    return len(problems)


def _problem(cluster: Cluster, app: App, schedule: Sequence[Event]) -> str:
    try:
        run_under_faults(cluster, app, schedule)
    except AssertionError as error:
        return str(error) or "assertion failed"
    return ""


class _Run:
    """One run of an application."""

    def __init__(self, cluster: Cluster, app: App, schedule: Sequence[Event]) -> None:
        self._cluster = cluster
        self._app = app
        self._left = sorted_by_step(list(schedule))
        self._topics = {name: cluster.topic(count) for name, count in app.topics.items()}
        self._first = next(iter(app.topics))
        self._partitions = app.topics[self._first]
        self._steps = 0
        self._starts = 0
        self._effects: list[str] = []
        self._processes: list[AppProcess] = []
        self._zombies: list[AppProcess] = []
        """Paused processes that have been replaced."""
        self._replaced: set[AppProcess] = set()
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def run(self) -> int:
        """Set up, run under faults, and check."""
        self._alone(self._app.setup, "its set-up")
        self._start()
        self._work()
        while self._timers:
            self._fire()
            time.sleep(0.01)
        self._cluster.restore()
        self._alone(self._app.check, "")
        return self._steps

    def close(self) -> None:
        """End what is left, and remove the topics."""
        for process in self._processes:
            process.kill()
        self._processes.clear()
        self._cluster.restore()
        self._cluster.delete_topics(*self._topics.values())

    def _start(self, code: Code | None = None) -> AppProcess:
        process = AppProcess(
            code or self._app.run, self._cluster.bootstrap, self._topics, self._starts
        )
        if code is None:
            self._starts += 1
        self._processes.append(process)
        return process

    def _alone(self, code: Code, what: str) -> None:
        """Run code in a process of its own, without faults. Raises AssertionError."""
        process = self._start(code)
        deadline = time.monotonic() + END_SECONDS_MAX
        error: str | None = None
        while error is None and time.monotonic() < deadline:
            error = self._serve(process, deadline, strikes=False)
        self._end(process)
        if error is None:
            error = f"no end within {END_SECONDS_MAX:.0f} s"
        assert not error, f"{what} failed: {error}" if what else error

    def _work(self) -> None:
        """Serve the application until it has ended. Raises AssertionError if it fails."""
        deadline = time.monotonic() + END_SECONDS_MAX
        while self._processes:
            active = [process for process in self._processes if not process.is_paused]
            if not active:
                self._zombies.pop().resume()
                continue
            assert time.monotonic() < deadline, (
                f"the application did not end within {END_SECONDS_MAX:.0f} s"
            )
            self._fire()
            with selectors.DefaultSelector() as selector:
                for process in active:
                    selector.register(process.socket, selectors.EVENT_READ, process)
                ready = [key.data for key, _ in selector.select(0.02)]
            for process in ready:
                if process not in self._processes or process.is_paused:
                    continue
                error = self._serve(process, deadline, strikes=True)
                if error is None:
                    continue
                self._end(process)
                # A replaced process may fail: it was fenced.
                assert not error or process in self._replaced, f"the application failed: {error}"

    def _serve(self, process: AppProcess, deadline: float, *, strikes: bool) -> str | None:
        """Answer one process. Return None while it lives, else its error, empty for success."""
        process.socket.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            questions = process.questions()
        except TimeoutError:
            return None
        if questions is None:
            return "its process ended"
        for question in questions:
            if question["do"] == "end":
                return question["error"]
            if question["do"] == "effect":
                self._effects.append(question["value"])
                process.answer()
            elif question["do"] == "effects":
                process.answer(self._effects)
            elif not strikes or self._step(process):
                process.answer()
        return None

    def _end(self, process: AppProcess) -> None:
        self._processes.remove(process)
        process.kill()

    # --- faults -----------------------------------------------------------------------------------
    def _step(self, process: AppProcess) -> bool:
        """Let the faults of this step strike. Return True if the process goes on."""
        step = self._steps
        self._steps += 1
        goes_on = True
        while self._left and self._left[0].step <= step:
            fault = self._left.pop(0).fault
            if fault in (Fault.CRASH, Fault.REPLACE):
                goes_on &= self._strike_application(fault, process, goes_on)
            else:
                self._strike_cluster(fault)
        return goes_on

    def _strike_application(self, fault: Fault, process: AppProcess, goes_on: bool) -> bool:
        if not goes_on or self._starts >= STARTS_MAX:
            return goes_on
        if fault is Fault.CRASH:
            self._end(process)
            self._start()
            return False
        # Answered before it is paused: it goes on from here when it is resumed.
        process.pause()
        process.answer()
        self._zombies.append(process)
        self._replaced.add(process)
        self._start()
        return False

    def _strike_cluster(self, fault: Fault) -> None:
        cluster, topic = self._cluster, self._topics[self._first]
        if fault is Fault.KILL_LEADER:
            leader = cluster.leader(topic)
            if leader:
                cluster.kill(leader)
                self._later(lambda: self._start_server(leader))
        elif fault is Fault.ISOLATE_LEADER:
            leader = cluster.leader(topic)
            if leader:
                cluster.isolate(leader)
                self._later(cluster.heal)
        elif fault is Fault.SLOW_DISKS:
            self._set_disks(SLOW_SECONDS)
            self._later(lambda: self._set_disks(0.0))
        elif fault is Fault.POWER_CUT:
            cluster.power_cut()
            # Not awaited: they may start on slow disks.
            cluster.start(wait=False)
        else:
            # A change of the catalog needs a majority: other faults end before it.
            self._timers.clear()
            cluster.restore()
            self._partitions += 1
            cluster.grow_topic(topic, self._partitions)

    def _set_disks(self, seconds: float) -> None:
        for server in self._cluster.servers:
            self._cluster.slow_disk(server, seconds)

    def _start_server(self, server: int) -> None:
        with suppress(ClusterError):  # a power cut has started it
            self._cluster.start(server, wait=False)

    def _later(self, call: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + FAULT_SECONDS, call))

    def _fire(self) -> None:
        now = time.monotonic()
        due = [call for at, call in self._timers if at <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for call in due:
            call()
