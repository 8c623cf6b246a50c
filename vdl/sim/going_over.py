"""A set that goes over to encrypted links, one process at a time, as deploy/runbook.md says.

A process begins one step further than the one before it on the same machine, but never two ahead of
any other machine: before the next round all must have done the one before. So any two that meet are
at most one step apart, and have to find each other.

Must not know: links, certificates.
"""

from __future__ import annotations

from collections.abc import Mapping

from rpc.tls_context import LinkEncryption

STEPS = (None, LinkEncryption.ACCEPTED, LinkEncryption.PREFERRED, LinkEncryption.REQUIRED)


class GoingOver:
    """Of one world."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self.met: set[tuple[int, int]] = set()
        """(lowest, highest) step of all machines, whenever a process began."""

    @property
    def steps(self) -> Mapping[str, int]:
        """Machine → what its last process began with."""
        return self._steps

    def begin(self, machine: str) -> LinkEncryption | None:
        """A process begins on a machine. On a new one where the others are that are behind."""
        others = [step for name, step in self._steps.items() if name != machine]
        lowest = min(others, default=0)
        own = self._steps.get(machine)
        step = lowest if own is None else min(own + 1, lowest + 1, len(STEPS) - 1)
        self._steps[machine] = step
        self.met.add((min(step, lowest), max(step, *others, 0)))
        return STEPS[step]
