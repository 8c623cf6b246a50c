"""A copy of a disk's contents, to be put back later. Does not depend on machines or servers."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from segments.boots import Boot
from segments.directory.identity import Identity, decode
from vdl.sim.disk import Directory, Inode, SimDisk

_START_LSN = slice(32, 40)
"""Position of the start LSN in a journal file's header."""


@dataclass(slots=True)
class OldDisk:
    """Durable contents of a disk that holds a data directory."""

    root: Directory
    identity: Identity

    def boots(self) -> list[Boot]:
        """Return the starts listed in this copy, without the one that a start from it would add.

        The last one ended at `_end_lsn` at the latest.
        """
        boots = self.identity.boots
        if not boots:
            return []
        return [*boots[:-1], Boot(boots[-1].number, boots[-1].boot_id, self._end_lsn())]

    def _end_lsn(self) -> int:
        """Return an upper bound of the LSNs in the copy's journal."""
        data = self.root.entries["data"]
        assert isinstance(data, Directory), data
        journal = data.durable.get("journal")
        assert isinstance(journal, Directory), journal
        ends = [0]
        for node in journal.durable.values():
            if isinstance(node, Inode) and len(node.durable) >= _START_LSN.stop:
                start = int.from_bytes(node.durable[_START_LSN], "little")
                ends.append(start + len(node.durable))
        return max(ends)


def copy_of(disk: SimDisk) -> OldDisk | None:
    """Return a copy of the disk's durable contents; None while its directory is being created."""
    data = disk.root.entries.get("data")
    file = data.durable.get("identity") if isinstance(data, Directory) else None
    if not isinstance(file, Inode) or not file.durable:
        return None
    identity = decode(bytes(file.durable))
    return OldDisk(copy.deepcopy(disk.root), identity) if identity.is_whole else None
