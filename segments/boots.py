"""The starts of a data directory, by which one that went back in time is told from what its peers
have heard of it.

Each start is a *boot*: a number, one above that of the boot before, and a random id. The identity
file lists the last ones, and of each that has ended the LSN at which the start after it found the
journal's end. A process tells its peers this list and how far its journal is durable. A peer keeps
the newest such *mark* of each directory. A directory whose list does not hold the boot of the mark
was restored from a copy made before that boot, or is another process's copy. One whose journal
ended below the mark was restored, too, or its disk lost what it had said was durable.

Only what a directory itself knew to be durable is ever in a mark, and a start finds all of that. So
a tail that was cut because nothing proved it durable is never mistaken for the past.

Must not know: files, peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

BOOTS_MAX = 32
"""Boots that are listed. A directory that was started more often since a peer heard of it last
cannot be judged by that peer."""
GOES_ON = (1 << 64) - 1
"""As the end of the boot that has not ended."""


@dataclass(frozen=True, slots=True)
class Boot:
    """One start of a directory."""

    number: int
    boot_id: int
    """64 random bits."""
    end_lsn: int = GOES_ON
    """Where the next start found the journal's end."""


@dataclass(frozen=True, slots=True)
class JournalMark:
    """In that boot of a directory its journal was durable up to this LSN."""

    number: int
    boot_id: int
    lsn: int = 0


def next_boot(boots: Sequence[Boot], *, end_lsn: int, boot_id: int) -> list[Boot]:
    """The list with one more boot, at whose start the journal ended at `end_lsn`."""
    past = ended(boots, end_lsn=end_lsn)
    number = past[-1].number + 1 if past else 1
    return [*past, Boot(number, boot_id)][-BOOTS_MAX:]


def ended(boots: Sequence[Boot], *, end_lsn: int) -> list[Boot]:
    """The list, its last boot over: the next start found the journal's end there."""
    past = list(boots)
    if past and past[-1].end_lsn == GOES_ON:
        past[-1] = replace(past[-1], end_lsn=end_lsn)
    return past


def is_behind(boots: Sequence[Boot], mark: JournalMark) -> bool:
    """Whether a directory with these boots lacks what the mark says it once had. False also when
    its list does not reach back so far."""
    if not boots:
        return True
    if mark.number < boots[0].number:
        return False
    for boot in boots:
        if boot.number == mark.number:
            return boot.boot_id != mark.boot_id or boot.end_lsn < mark.lsn
    return True
