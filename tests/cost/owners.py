"""Owner of a frame's work: the server, or the simulator, which replaces the system.

A module of `raft`, `rpc`, `segments` or `vdl` is the server's, except `vdl.sim`, which takes the
place of kernel, loop and threads. Any other one, such as the standard library's, works for its
caller. Generated code is attributed by its globals: it has no file.

Does not depend on what is counted.
"""

from __future__ import annotations

from enum import Enum
from types import CodeType, FrameType

PACKAGES = frozenset(("raft", "rpc", "segments", "vdl"))
SYSTEM = "vdl.sim"


class Owner(Enum):
    """Owner of a module's work."""

    SERVER = "server"
    SYSTEM = "system"
    CALLER = "caller"


class Owners:
    """Cache of owners by code object."""

    def __init__(self) -> None:
        # By identity: equal code objects, such as two generated methods, may belong to two modules.
        # They are kept alive here, so that no identity is reused.
        self._found: dict[int, Owner] = {}
        self._kept: list[CodeType] = []

    def is_server(self, frame: FrameType | None) -> bool:
        """Return True if the frame runs on behalf of a server's code."""
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
