"""Processor time that processes of a test had, and waited for, as the kernel counts it.

Figures of a test whose processes share few cores with other programs mean little without it.

Does not depend on the processes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

_NS = 1e9


class Loops:
    """Main threads of some processes, from now on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._began = time.monotonic()
        self._before = [_schedstat(pid) for pid in pids]

    def shares(self) -> list[tuple[float, float]]:
        """Return for each the part of the time for which it ran, and waited for a core."""
        took_ns = (time.monotonic() - self._began) * _NS
        after = [_schedstat(pid) for pid in self._pids]
        return [
            (round((ran - ran_before) / took_ns, 2), round((waited - waited_before) / took_ns, 2))
            for (ran, waited), (ran_before, waited_before) in zip(after, self._before, strict=True)
        ]


def _schedstat(pid: int) -> tuple[int, int]:
    """Return the time for which a main thread ran and waited for a core, in ns."""
    text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii")
    ran, waited, _ = text.split()
    return int(ran), int(waited)
