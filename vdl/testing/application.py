"""An application under test, in processes of its own, and what it sees of the test.

All code of the application runs in forked processes, which can be killed and paused like real ones.
The process that runs the test makes no Kafka client, so that forking it is safe.

A process talks to the test over a socket, one line of JSON each way: it announces steps, at which
faults strike, and writes *effects*, which stand for rows of a database that outlives it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

PR_SET_PDEATHSIG = 1
LINE_BYTES_MAX = 1 << 20


class Env:
    """The surroundings of an application's process."""

    def __init__(
        self, bootstrap: str, topics: Mapping[str, str], starts: int, channel: socket.socket
    ) -> None:
        self.bootstrap = bootstrap
        """Addresses for `bootstrap.servers`."""
        self.starts = starts
        """Number of processes of this application before this one."""
        self._topics = topics
        self._channel = channel
        self._lines = channel.makefile("rb")

    def topic(self, name: str = "in") -> str:
        """Return the real name of one of the application's topics."""
        return self._topics[name]

    def step(self) -> None:
        """Announce a step: faults strike here, before this returns."""
        self._ask({"do": "step"})

    def effect(self, value: str) -> None:
        """Write a row that outlives this process."""
        self._ask({"do": "effect", "value": value})

    def effects(self) -> list[str]:
        """Return all rows, in order."""
        found = self._ask({"do": "effects"})
        assert isinstance(found, list), found
        return found

    def end(self, error: str) -> None:
        """Announce the end of the process; `error` is empty for success."""
        self._channel.sendall(json.dumps({"do": "end", "error": error}).encode() + b"\n")

    def _ask(self, question: Mapping[str, object]) -> object:
        self._channel.sendall(json.dumps(question).encode() + b"\n")
        return json.loads(self._lines.readline(LINE_BYTES_MAX))


Code = Callable[[Env], None]


def _nothing(env: Env) -> None:
    del env


@dataclass(frozen=True, slots=True)
class App:
    """An application, and how to judge it.

    It is started again when it was killed, as an orchestrator does. It ends when its work is done.
    """

    name: str
    """Name of the variable that holds it, for the printed test."""
    run: Code
    """The application. Announces at least one step."""
    check: Code
    """Raises AssertionError for a wrong result, after all faults have ended."""
    setup: Code = _nothing
    """Runs first, without faults."""
    topics: Mapping[str, int] = field(default_factory=lambda: {"in": 1})
    """Number of partitions by name. Faults strike the leader of the first one."""


class AppProcess:
    """One process, as the test sees it."""

    def __init__(self, code: Code, bootstrap: str, topics: Mapping[str, str], starts: int) -> None:
        self.socket, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads: this process has no Kafka clients, which have some.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            self.socket.close()
            _live(code, Env(bootstrap, topics, starts, theirs))
        theirs.close()
        self.is_paused = False
        self._received = b""

    def questions(self) -> list[dict[str, str]] | None:
        """Return what the process has asked since; None if it has ended."""
        try:
            data = self.socket.recv(LINE_BYTES_MAX)
        except ConnectionError:
            data = b""
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def answer(self, value: object = None) -> None:
        """Answer the last question, unless the process is gone."""
        try:
            self.socket.sendall(json.dumps(value).encode() + b"\n")
        except ConnectionError:
            pass

    def pause(self) -> None:
        """Stop the process without ending it."""
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let the process continue."""
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def kill(self) -> None:
        """End the process at once, if it has not ended, and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.socket.close()


def _live(code: Code, env: Env) -> NoReturn:
    """Run the code in this process, which was just forked, and end it."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        error = ""
        try:
            code(env)
        except Exception as problem:  # noqa: BLE001 - the edge of the application
            error = str(problem) if isinstance(problem, AssertionError) else _last_lines()
            error = error or "assertion failed"
        env.end(error)
        status = 0
    finally:
        os._exit(status)


def _last_lines() -> str:
    return "".join(traceback.format_exc().splitlines(keepends=True)[-4:])
