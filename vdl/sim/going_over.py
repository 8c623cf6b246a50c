"""Migration of a cluster to encrypted links, one process at a time (deploy/runbook.md).

A process starts one step further than the one before it on the same machine, but never two ahead of
any other machine: all must have done a round before the next one. So any two that connect are at
most one step apart, and must be able to connect. Does not depend on links or certificates.
"""

from __future__ import annotations

from collections.abc import Mapping

from rpc.tls_context import LinkEncryption

STEPS = (None, LinkEncryption.ACCEPTED, LinkEncryption.PREFERRED, LinkEncryption.REQUIRED)


class GoingOver:
    """Migration of one world."""

    def __init__(self) -> None:
        self._steps: dict[str, int] = {}
        self.met: set[tuple[int, int]] = set()
        """(lowest, highest) step of all machines at each start of a process."""

    @property
    def steps(self) -> Mapping[str, int]:
        """Machine → step of its last process."""
        return self._steps

    def begin(self, machine: str) -> LinkEncryption | None:
        """Return the encryption of a process that starts; a new machine takes the lowest step."""
        others = [step for name, step in self._steps.items() if name != machine]
        lowest = min(others, default=0)
        own = self._steps.get(machine)
        step = lowest if own is None else min(own + 1, lowest + 1, len(STEPS) - 1)
        self._steps[machine] = step
        self.met.add((min(step, lowest), max(step, *others, 0)))
        return STEPS[step]
