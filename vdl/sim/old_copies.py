"""A machine comes back with an older copy of its disk, as from a backup.

It has forgotten what it acknowledged since, and whom it voted for. Its peers remember: no replica
of before may take part any more, and all are to be replaced. What a set cannot know is left out: a
disk is put back only when every other server runs and has durably noted that it was further.

Must not know: how a server finds it out.
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
"""What servers then log as errors."""


class Target(Protocol):
    @property
    def machines(self) -> list[Machine]: ...
    def why_no_loss(self) -> str: ...


class OldCopy:
    """See the module. Copies are made when it is tried for the first time."""

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
    """Whether all others know, whatever becomes of them, that the disk was further than that."""
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
    """Whether a mark is of a later start than the copy knows, or of a later time in its last one.
    Not as servers judge: the judge must not be wrong with them."""
    last = boots[-1]
    if mark.number == last.number and mark.boot_id == last.boot_id:
        return mark.lsn > last.end_lsn
    return mark.number > last.number
