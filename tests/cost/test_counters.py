"""The counters themselves, on short functions that stand for a server and the simulator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from tests.cost.calls import Calls
from tests.cost.memory import PAGE_BYTES, Memory
from vdl.sim.clock import NodeClock, VirtualTime

SERVER = """
from dataclasses import dataclass
from fnmatch import fnmatch

@dataclass
class Point:
    x: int

def works(system):
    Point(1)
    len("four")
    system(lambda: [abs(-1)])

def asks_library():
    fnmatch("a", "a")

def copies_again(data):
    first = bytes(data)
    del first
    second = bytes(data)
    return None

def hands_over(data, system):
    system(data)

def takes_in_library(data):
    return b"".join(data for _ in range(2))
"""
SYSTEM = """
def calls(function):
    sum([1, 2])
    function()

def copies(data):
    return bytes(data)
"""
COPIED_BYTES = 100_000


@pytest.fixture
def time() -> VirtualTime:
    """Return a clock on which a server's event is under way."""
    time = VirtualTime()
    time.running = NodeClock(time)
    return time


@pytest.fixture
def server(monkeypatch) -> Any:
    return module("segments.played", SERVER, monkeypatch)


@pytest.fixture
def system(monkeypatch) -> Any:
    return module("vdl.sim.played", SYSTEM, monkeypatch)


def module(name: str, source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, made)
    exec(compile(source, name, "exec", dont_inherit=True), vars(made))
    return made


def calls_of(time: VirtualTime, function: Callable[[], object]) -> Calls:
    assert time.running is not None
    calls = Calls(time, [time.running])
    calls.during(function)
    return calls


def bytes_of(time: VirtualTime, function: Callable[[], object]) -> int:
    assert time.running is not None
    memory = Memory(time, [time.running])
    memory.during(function)
    return memory.taken.total()


def test_calls_of_a_server_are_told_apart_from_the_system(time, server, system) -> None:
    """Calls that the simulator makes for itself are not counted.

    Its callbacks into the server are.
    """
    calls = calls_of(time, lambda: server.works(system.calls))
    assert calls.python == {
        "segments.played.works": 1,
        "segments.played.Point.__init__": 1,
        "segments.played.works.<locals>.<lambda>": 1,
    }
    assert calls.builtin == {"len": 1, "abs": 1}


def test_calls_inside_the_library_are_their_callers(time, server) -> None:
    calls = calls_of(time, server.asks_library)
    assert calls.python["segments.played.asks_library"] == 1
    assert calls.python["fnmatch.fnmatch"] == 1


def test_calls_outside_servers_events_are_not_counted(time, server, system) -> None:
    """Clients use the same code: frames, the codec."""
    clock = time.running
    time.running = None
    calls = Calls(time, [clock])
    calls.during(lambda: server.works(system.calls))
    assert not calls.python
    assert not calls.builtin


def test_memory_given_back_and_taken_again_is_counted_twice(time, server) -> None:
    """Reallocated memory counts again; otherwise freed memory could hide a copy."""
    taken = bytes_of(time, lambda: server.copies_again(bytearray(COPIED_BYTES)))
    assert abs(taken - 2 * COPIED_BYTES) < PAGE_BYTES


def test_memory_that_the_system_takes_is_not_counted(time, server, system) -> None:
    """The simulator copies in place of the kernel."""
    data = bytearray(COPIED_BYTES)
    assert bytes_of(time, lambda: server.hands_over(data, system.copies)) == 0


def test_memory_taken_inside_the_library_is_its_callers(time, server) -> None:
    data = bytes(COPIED_BYTES)
    taken = bytes_of(time, lambda: server.takes_in_library(data))
    assert abs(taken - 2 * COPIED_BYTES) < PAGE_BYTES
