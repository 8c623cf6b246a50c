"""Starts of a data directory, by which peers detect that it was restored from an older copy.

Each start is a *boot*: a number, one above that of the previous boot, and a random id. The identity
file lists the last boots, and for each that has ended, the LSN at which the next start found the
journal's end. A process sends this list and its durable LSN to its peers. A peer keeps the newest
such *mark* of each directory. A directory whose list lacks the boot of the mark was restored from a
copy made before that boot, or is another process's copy. If its journal ended below the mark, the
directory was restored too, or its disk lost data that it had reported as durable.

A mark contains only what the directory itself knew to be durable, and a start finds all of that. So
a tail that was cut because nothing proved it durable is never mistaken for an older copy.

Does not depend on files or peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

BOOTS_MAX = 32
"""Maximum number of listed boots. A peer whose mark is older than the list cannot judge the
directory."""
GOES_ON = (1 << 64) - 1
"""`end_lsn` of a boot that has not ended."""


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of a directory."""

    number: int
    boot_id: int
    """64 random bits."""
    end_lsn: int = GOES_ON
    """LSN at which the next start found the journal's end."""


@dataclass(frozen=True, slots=True)
class JournalMark:
    """In that boot, the directory's journal was durable up to this LSN."""

    number: int
    boot_id: int
    lsn: int = 0


def next_boot(boots: Sequence[Boot], *, end_lsn: int, boot_id: int) -> list[Boot]:
    """Return the list with one more boot, at whose start the journal ended at `end_lsn`."""
    past = ended(boots, end_lsn=end_lsn)
    number = past[-1].number + 1 if past else 1
    return [*past, Boot(number, boot_id)][-BOOTS_MAX:]


def ended(boots: Sequence[Boot], *, end_lsn: int) -> list[Boot]:
    """Return the list with its last boot ended at `end_lsn`, where the next start found the end."""
    past = list(boots)
    if past and past[-1].end_lsn == GOES_ON:
        past[-1] = replace(past[-1], end_lsn=end_lsn)
    return past


def is_behind(boots: Sequence[Boot], mark: JournalMark) -> bool:
    """Return True if a directory with these boots lacks data that the mark proves it had.

    False also if its list does not reach back that far.
    """
    if not boots:
        return True
    if mark.number < boots[0].number:
        return False
    for boot in boots:
        if boot.number == mark.number:
            return boot.boot_id != mark.boot_id or boot.end_lsn < mark.lsn
    return True
