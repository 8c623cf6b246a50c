"""Parts of the machine that a process works on: its files, its clock, its connections to peers.

A server takes all of them from the operating system. `vdl/testing` puts parts of its own in their
place, which fail on request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rpc.transport import SocketDialer
from segments.io.fs import FileSystem, RealFileSystem
from vdl.clock import Clock
from vdl.server.loop import LoopClock, TurnLoop


@dataclass(frozen=True, slots=True)
class Machine:
    """By default the operating system itself."""

    file_system: FileSystem = field(default_factory=RealFileSystem)
    clock: Callable[[TurnLoop], Clock] = LoopClock
    dialer: Callable[[TurnLoop], SocketDialer] = SocketDialer
    """Makes the dialer of the links to other servers."""
