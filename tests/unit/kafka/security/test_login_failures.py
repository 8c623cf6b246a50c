"""Delays after failed logins, against password guessing."""

from __future__ import annotations

from vdl.kafka.security import login_failures
from vdl.kafka.security.login_failures import FORGET_SECONDS, FREE, LOCK_SECONDS_MAX, LoginFailures
from vdl.sim.clock import NodeClock, VirtualTime

USER, HOST = "alice", "10.0.0.1"


def test_each_failure_beyond_the_free_ones_locks_for_longer() -> None:
    time = VirtualTime()
    failures = LoginFailures(NodeClock(time))
    for _ in range(FREE):
        failures.failed(USER, HOST)
    assert not failures.is_locked(USER, HOST)
    locked = []
    for _ in range(9):
        failures.failed(USER, HOST)
        failures.failed(USER, HOST)  # while it is locked: not counted
        seconds = 0
        while failures.is_locked(USER, HOST):
            time.run_until(time.now_ns + 1_000_000_000)
            seconds += 1
        locked.append(seconds)
    assert locked == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert locked[-1] == LOCK_SECONDS_MAX
    assert failures.refused == len(locked)


def test_login_that_is_done_or_a_long_time_begins_anew() -> None:
    time = VirtualTime()
    failures = LoginFailures(NodeClock(time))
    for _ in range(FREE):
        failures.failed(USER, HOST)
    failures.done(USER, HOST)
    assert len(failures) == 0
    for _ in range(FREE):
        failures.failed(USER, HOST)
    time.run_until(time.now_ns + FORGET_SECONDS * 1_000_000_000)
    failures.failed(USER, HOST)
    assert not failures.is_locked(USER, HOST)


def test_what_is_known_is_bounded_by_its_oldest(monkeypatch) -> None:
    monkeypatch.setattr(login_failures, "KNOWN_MAX", 2)
    failures = LoginFailures(NodeClock(VirtualTime()))
    for _ in range(FREE + 1):
        failures.failed("oldest", HOST)
    for user in ("b", "c"):
        failures.failed(user, HOST)
    assert len(failures) == 2
    assert not failures.is_locked("oldest", HOST)
