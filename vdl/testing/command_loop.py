"""The process that runs a test cluster: it forks the servers and obeys commands, one a line.

It has loaded a server's modules before it forks, so that a server starts in milliseconds. The first
line it writes is about the cluster, and each further one answers a command:

    {"bootstrap": "127.0.0.1:…", "servers": [{"id": 1, "port": …, "pid": …}, …],
     "pid": …, "directory": "…", "seconds": …}
    kill 1          {"ok": true}
    kill 9          {"ok": false, "error": "there is no server 9"}

`COMMANDS` has the commands. A command may have a number before it, which its answer repeats: `#7
kill 1` is answered with `{"ok": true, "request": 7}`. So who was interrupted between a command and
its answer knows the late one.

`vdl test-server` takes the same commands over HTTP (`control_port.py`).

When standard input ends, the servers are killed and the directory is removed; also when the process
that made the cluster ends, as a child of it may keep standard input open. Servers end with this
process, also when it is killed.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from vdl.errors import VdlError
from vdl.testing.server_process import END_SIGNALS
from vdl.testing.supervisor import Supervisor

if TYPE_CHECKING:
    from vdl.testing.control_port import ControlPort, Request

LINE_BYTES_MAX = 64 << 10

Answer = dict[str, object] | None
COMMANDS: Mapping[str, Callable[..., Answer]] = {
    "start": Supervisor.start,
    "wait": Supervisor.wait,
    "kill": Supervisor.kill,
    "stop": Supervisor.stop,
    "pause": Supervisor.pause,
    "resume": Supervisor.resume,
    "partition": Supervisor.partition,
    "isolate": Supervisor.isolate,
    "heal": Supervisor.heal,
    "slow_disk": Supervisor.slow_disk,
    "lose_disk": Supervisor.lose_disk,
    "advance_time": Supervisor.advance_time,
    "power_cut": Supervisor.power_cut,
    "restore": Supervisor.restore,
    "topic": Supervisor.topic,
    "topics": Supervisor.topics,
    "grow_topic": Supervisor.grow_topic,
    "delete_topics": Supervisor.delete_topics,
    "leader": Supervisor.leader,
    "status": Supervisor.status,
}


HARMLESS = frozenset(
    ("wait", "restore", "topic", "topics", "grow_topic", "delete_topics", "leader", "status")
)


def obey(supervisor: Supervisor, line: str) -> dict[str, object]:
    """Run one command and return its answer, with the number that is before the command."""
    number, _, rest = line.strip().partition(" ")
    if number.startswith("#") and number[1:].isdecimal():
        return {"request": int(number[1:]), **_obey(supervisor, rest)}
    return _obey(supervisor, line)


def _obey(supervisor: Supervisor, line: str) -> dict[str, object]:
    name, *words = line.split() or [""]
    return carry_out(supervisor, name, words)


def carry_out(supervisor: Supervisor, name: str, words: Sequence[str]) -> dict[str, object]:
    """Run one command and return its answer."""
    command = COMMANDS.get(name)
    if command is None:
        return {"ok": False, "error": f"unknown command {name!r}; known: {', '.join(COMMANDS)}"}
    try:
        inspect.signature(command).bind(supervisor, *words)
    except TypeError:
        return {"ok": False, "error": f"{name} does not take {len(words)} arguments"}
    supervisor.is_disturbed |= name not in HARMLESS
    try:
        result = command(supervisor, *words)
    except (VdlError, OSError) as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True, **(result or {})}


class Commands:
    """Commands from a descriptor, until that ends or `maker` does: a pidfd; and from a control port
    beside it."""

    def __init__(self, commands: int, maker: int | None = None, *, has_port: bool = False) -> None:
        """Wait for commands. Raises OSError if the port cannot be opened."""
        self._commands = commands
        self._maker = maker
        # Not epoll, which takes no files: standard input may be one.
        self._selector = selectors.PollSelector()
        self.port: ControlPort | None = None
        if has_port:
            # Its libraries take a tenth of a start, and most clusters have no port.
            from vdl.testing.control_port import ControlPort

            self.port = ControlPort(self._selector)
        for descriptor in (commands, maker):
            if descriptor is not None:
                self._selector.register(descriptor, selectors.EVENT_READ)

    def close(self) -> None:
        """Close the port."""
        if self.port is not None:
            self.port.close()
        self._selector.close()

    def __iter__(self) -> Iterator[bytes | Request]:
        """Yield lines, and requests of the port. A line that is too long is yielded in parts."""
        rest = b""
        while True:
            timeout = None if self.port is None else self.port.wait_seconds()
            ready = {key.fd for key, _ in self._selector.select(timeout)}
            if self._maker in ready:
                return
            if self.port is not None:
                yield from self.port.take()
            if self._commands not in ready:
                continue
            data = os.read(self._commands, LINE_BYTES_MAX)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
            if len(rest) >= LINE_BYTES_MAX or (rest and not data):
                yield rest
                rest = b""
            if not data:
                return


def _ignore_signals() -> None:
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    _ignore_signals()  # a second one must not interrupt the removal
    raise SystemExit(0)


def run(
    nodes: int,
    settings: Mapping[str, object],
    directory: Path | None,
    commands: int,
    answers: TextIO,
    maker: int | None = None,
    *,
    has_port: bool = False,
) -> int:
    """Run a cluster until `commands`, a descriptor, or `maker`, a pidfd, ends. Return the exit
    code. `has_port`: take commands over HTTP, too."""
    began = time.monotonic()

    def say(answer: Mapping[str, object]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    for number in END_SIGNALS:
        signal.signal(number, _end)
    # While the folder is made, no code could remove it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
    try:
        supervisor = Supervisor(nodes, settings, directory)
    except (VdlError, OSError) as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        say({"ok": False, "error": str(error)})
        return 1
    try:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _start(supervisor)
            with contextlib.closing(Commands(commands, maker, has_port=has_port)) as given:
                about = {
                    "ok": True,
                    "bootstrap": supervisor.bootstrap,
                    "servers": supervisor.servers(),
                    "pid": os.getpid(),
                    "directory": str(supervisor.folder),
                    "seconds": round(time.monotonic() - began, 3),
                }
                say(about if given.port is None else {**about, "control": given.port.about()})
                for one in given:
                    if isinstance(one, bytes):
                        say(obey(supervisor, one.decode(errors="replace")))
                    else:
                        one.answer(carry_out(supervisor, one.command, one.words))
        except VdlError as error:
            tails = "".join(node.log_tail() for node in supervisor.nodes)
            say({"ok": False, "error": f"{error}{tails}"})
            return 1
        except BrokenPipeError:
            pass  # the reader of the answers is gone
        finally:
            _ignore_signals()
    finally:
        # Twice: the first signal may come within the lines above. `_end` raises only once.
        _ignore_signals()
        supervisor.close()
    return 0


def _start(supervisor: Supervisor) -> None:
    # Loaded before the fork, so that no server does it again.
    from vdl.kafka.api import load

    load()
    # The modules stay: servers need not look through them for garbage, which copies their memory.
    gc.freeze()
    gc.enable()
    supervisor.start()
    supervisor.wait()


def _watched(maker: int) -> int | None:
    """Return a pidfd of this process's parent; None where there are none. Exits if the parent has
    ended."""
    try:
        found = os.pidfd_open(maker)
    except ProcessLookupError:
        sys.exit(0)
    except OSError:
        return None
    if os.getppid() != maker:  # another process got its number
        sys.exit(0)
    return found


def main() -> int:
    """Run a cluster as the arguments say: NODES DIRECTORY SETTINGS MAKER, the third one as JSON,
    the last one the process id of the parent."""
    nodes, directory, settings, maker = sys.argv[1:]
    return run(
        int(nodes),
        json.loads(settings),
        Path(directory) if directory else None,
        sys.stdin.fileno(),
        sys.stdout,
        _watched(int(maker)),
    )
