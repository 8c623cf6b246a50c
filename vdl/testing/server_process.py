"""One server of a test cluster: a process forked from the supervisor, with `vdl serve`'s own code.

It obeys one-line commands from the supervisor, each answered with `ok`:

    disk SECONDS                 each sync takes that much longer
    clock MILLISECONDS           time of day, ahead of the machine's
    link SERVER SENDS RECEIVES   1: the direction to or from that server is cut

It ends with the supervisor, however that ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rpc.transport import SocketDialer
from vdl.clock import Clock
from vdl.config.settings import Config
from vdl.server.loop import TurnLoop
from vdl.server.machine import Machine
from vdl.server.process import Process
from vdl.testing.clock import SetClock
from vdl.testing.disk import Disk, NotedFileSystem, Unsynced
from vdl.testing.switch import Switch, SwitchedDialer

PR_SET_PDEATHSIG = 1
COMMAND_BYTES_MAX = 4_096
LOOP_SECONDS_MAX = 1.0
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Blocked by the supervisor while it forks."""
SWITCH_INTERVAL_SECONDS = 0.0005
"""As for `vdl serve`."""


@dataclass(slots=True)
class Faults:
    """Faults in force at one server, also when it starts."""

    delay_seconds: float = 0.0
    ahead_ms: int = 0
    cut: dict[int, tuple[bool, bool]] = field(default_factory=dict)
    """(cannot send, cannot receive) by server id."""


def run_server(config: Config, folder: Path, faults: Faults, control: socket.socket) -> NoReturn:
    """Run the server in this process, which was just forked, and end it. Output goes to
    `server.log` in `folder`."""
    code = 1
    try:
        _part_from_supervisor(folder, control)
        code = _serve(config, folder, faults, control)
    finally:
        # Never back into the supervisor's code, whatever happens.
        os._exit(code)


def _part_from_supervisor(folder: Path, control: socket.socket) -> None:
    """Give up all that was inherited from the supervisor but its modules and `control`."""
    supervisor = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)  # it ended before
    os.setsid()
    for number in END_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    log = os.open(folder / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, descriptor)
    own = control.fileno()
    os.closerange(3, own)
    os.closerange(own + 1, max(int(one.name) for one in Path("/dev/fd").iterdir()) + 1)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


def _serve(config: Config, folder: Path, faults: Faults, control: socket.socket) -> int:
    disk = Disk(Unsynced(folder / "undo.log", folder / "trash"))
    peers = {(address.host, address.port): number for number, address in config.seeds.items()}
    switch = Switch({address: int(number) for address, number in peers.items()})
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, TurnLoop), loop
        clock = SetClock(loop)
        obeying = _Obeying(control, disk, clock, switch, loop)
        obeying.set(faults)
        # A thread: the loop of a server that starts on a slow disk is busy for long.
        threading.Thread(target=obeying.run, name="faults", daemon=True).start()

        def clock_of(loop: TurnLoop) -> Clock:
            del loop
            return clock

        def dialer_of(loop: TurnLoop) -> SocketDialer:
            return SwitchedDialer(loop, switch)

        machine = Machine(NotedFileSystem(disk), clock_of, dialer_of)
        return runner.run(Process(config, loop, _nothing, machine).run())


def _nothing() -> None:
    """Do nothing: there is no pid file."""


class _Obeying:
    """Commands of the supervisor."""

    def __init__(
        self, control: socket.socket, disk: Disk, clock: SetClock, switch: Switch, loop: TurnLoop
    ) -> None:
        self._control = control
        self._disk = disk
        self._clock = clock
        self._switch = switch
        self._loop = loop

    def set(self, faults: Faults) -> None:
        """Put the faults in force that were there before this process."""
        self._disk.delay_seconds = faults.delay_seconds
        self._clock.ahead_ms = faults.ahead_ms
        for server_id, (sends, receives) in faults.cut.items():
            self._switch.set(server_id, sends=sends, receives=receives)

    def run(self) -> None:
        """Obey commands until the supervisor is gone, which ends this process."""
        with self._control.makefile("rb") as lines:
            while line := lines.readline(COMMAND_BYTES_MAX):
                self._obey(line.decode().split())
                self._control.sendall(b"ok\n")
        os._exit(1)

    def _obey(self, words: list[str]) -> None:
        if words[0] == "disk":
            self._disk.delay_seconds = float(words[1])
        elif words[0] == "clock":
            self._clock.ahead_ms = int(words[1])
        elif words[0] == "link":
            self._set_link(int(words[1]), sends=words[2] == "1", receives=words[3] == "1")
        else:
            raise AssertionError(words)

    def _set_link(self, server_id: int, *, sends: bool, receives: bool) -> None:
        """Set a switch on the loop, where the links are. A busy loop sends and receives nothing, so
        it is not waited for without end."""
        is_set = threading.Event()

        def change() -> None:
            self._switch.set(server_id, sends=sends, receives=receives)
            is_set.set()

        self._loop.call_soon_threadsafe(change)
        is_set.wait(LOOP_SECONDS_MAX)
