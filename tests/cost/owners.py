"""Whose work a frame is: the server's, or that of the simulator which stands for the system.

A module of `raft`, `rpc`, `segments` or `vdl` is the server's, but for `vdl.sim`, which takes the
place of kernel, loop and threads. Any other, the standard library's above all, works for whoever
called it. What generated code belongs to is told by its globals: it has no file.

Must not know: what is counted.
"""

from __future__ import annotations

from enum import Enum
from types import CodeType, FrameType

PACKAGES = frozenset(("raft", "rpc", "segments", "vdl"))
SYSTEM = "vdl.sim"


class Owner(Enum):
    """Who a module works for."""

    SERVER = "server"
    SYSTEM = "system"
    CALLER = "caller"


class Owners:
    """Remembers what it has found out, by code object."""

    def __init__(self) -> None:
        # By identity: code objects that are equal, as of two generated methods, may be of two
        # modules. Kept alive here, so that no identity is given out twice.
        self._found: dict[int, Owner] = {}
        self._kept: list[CodeType] = []

    def is_server(self, frame: FrameType | None) -> bool:
        """Whether the frame runs on behalf of a server's code."""
        found = self._found
        while frame is not None:
            owner = found.get(id(frame.f_code)) or self._find(frame)
            if owner is not Owner.CALLER:
                return owner is Owner.SERVER
            frame = frame.f_back
        return False

    def _find(self, frame: FrameType) -> Owner:
        module = str(frame.f_globals.get("__name__", ""))
        if module == SYSTEM or module.startswith(SYSTEM + "."):
            owner = Owner.SYSTEM
        elif module.partition(".")[0] in PACKAGES:
            owner = Owner.SERVER
        else:
            owner = Owner.CALLER
        self._found[id(frame.f_code)] = owner
        self._kept.append(frame.f_code)
        return owner
