"""A machine that comes back with an older copy of its disk, as from a backup.

It has lost its later acknowledgements and votes. Its peers remember: none of its old replicas may
take part any more, and all are to be replaced. States that a cluster cannot detect are left out: a
disk is put back only when every other server runs and has durably recorded later progress of it.

Does not depend on how a server detects it.
"""

from __future__ import annotations

from random import Random
from typing import Protocol

from segments.boots import Boot, JournalMark
from vdl.logstream.peers.journal_marks import marks_of
from vdl.sim.machine import Machine
from vdl.sim.old_disk import copy_of

EVENTS = frozenset(
    ("directory_from_the_past", "peer_from_the_past", "replica_lost", "group_halted")
)
"""Log events of errors that servers then report."""


class Target(Protocol):
    @property
    def machines(self) -> list[Machine]: ...
    def why_no_loss(self) -> str: ...


class OldCopy:
    """Fault that rolls back a machine's disk. Copies are made when it is first tried."""

    def begin(self, world: Target, rng: Random) -> bool:
        for machine in world.machines:
            if machine.old_disk is None and machine.life is not None:
                machine.old_disk = copy_of(machine.disk)
        if world.why_no_loss():
            return False
        ready = [one for one in world.machines if _is_remembered(one, world.machines)]
        if not ready:
            return False
        self.machine = rng.choice(ready)
        for machine in world.machines:
            machine.excused |= EVENTS
        old = self.machine.old_disk
        assert old is not None, self.machine.name
        self.machine.roll_back(old.root, old.identity.next_log_id)
        return True

    def end(self, world: Target) -> None:
        self.machine.start()


def _is_remembered(machine: Machine, machines: list[Machine]) -> bool:
    """Return True if all others have durably recorded progress beyond the old copy."""
    old = machine.old_disk
    if old is None:
        return False
    boots = old.boots()
    if not boots:
        return False
    for other in machines:
        if other is machine:
            continue
        if other.life is None:
            return False
        mark = marks_of(other.life.store.peers_note()).get(old.identity.directory_id)
        if mark is None or not _is_further(mark, boots):
            return False
    return True


def _is_further(mark: JournalMark, boots: list[Boot]) -> bool:
    """Return True if a mark is later than the copy: of a later start, or later in its last start.

    The servers' own code is not used, so that the check cannot share their errors.
    """
    last = boots[-1]
    if mark.number == last.number and mark.boot_id == last.boot_id:
        return mark.lsn > last.end_lsn
    return mark.number > last.number
