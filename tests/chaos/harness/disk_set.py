"""A replica set whose servers each have a disk of their own, which can lose power or fail.

The data directory of server `id` is the root of a file system at `DIR/<id>/store`, where a server
of `vdl up` has a plain folder; everything else is as there.

Does not depend on Kafka's protocol.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.chaos.harness.disks import MIB, Disks, release
from tests.chaos.harness.replica_set import ReplicaSet

DISK_BYTES = 512 * MIB

SMALL_FILES: Mapping[str, object] = {
    "kafka.message.max.bytes": 65_536,
    "kafka.log.segment.bytes": 262_144,
    "storage.journal_file_bytes": "2MiB",
    "storage.journal_first_file_bytes": "1MiB",
    "storage.checkpoint_bytes": "1MiB",
    "storage.checkpoint_interval": "500ms",
    "storage.index_segment_entries": 1_024,
}
"""Settings with small files and frequent checkpoints.

Every few seconds, at a few hundred records a second, journal files are recycled, segments sealed
and checkpoints made, so that a power cut interrupts all of these.
"""

BATCHES_THAT_FIT = {"batch.size": 32_768}
"""Producer setting with batches small enough for `SMALL_FILES`.

Records queued while the servers were away are sent in batches as large as the producer permits.
"""


class DiskSet(ReplicaSet):
    """Servers 1..nodes, each on its own disk. Created stopped; `up` starts it."""

    def __init__(
        self,
        disks: Disks,
        nodes: int = 3,
        *,
        disk_bytes: int = DISK_BYTES,
        settings: Mapping[str, object] = SMALL_FILES,
    ) -> None:
        super().__init__(nodes, directory=disks.make_folder())
        self.disks = {
            server_id: disks.make(self.directory / str(server_id) / "store", disk_bytes)
            for server_id in self.server_ids
        }
        self.configure(settings)

    @property
    def stores(self) -> list[Path]:
        """Return the data directory of each server."""
        return [self.directory / str(server_id) / "store" for server_id in self.server_ids]

    def power_cut(self, *server_ids: int) -> None:
        """Cut the power of some servers, so that their unsynced data is lost.

        Their disks are mounted again, with the journal of the file system replayed; the servers are
        not started. The disk goes first: the system would write the data that a killed process left
        behind.
        """
        for server_id in server_ids:
            self.disks[server_id].cut_power()
        self.end(*server_ids)
        for server_id in server_ids:
            self.remount(server_id)

    def remount(self, server_id: int, *, check: bool = False) -> None:
        """Unmount and mount the disk of a stopped server, so that it reads what is on disk."""
        self.disks[server_id].unmount()
        if check:
            self.disks[server_id].check()
        self.disks[server_id].mount()

    def close(self, *, failed: str = "") -> None:
        try:
            super().close(failed=failed)
        finally:
            release(self.directory)
            for disk in self.disks.values():
                disk.discard()
        shutil.rmtree(self.directory, ignore_errors=True)
