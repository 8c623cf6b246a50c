"""Checks that a store removes nothing before its replacement is durable.

The check runs at the moment a store decides, on the durable image alone, so it needs no crash:

* every entry of a removed journal file is in a newer file or, by a durable note, in a segment;
* a log is cut no further than a durable checkpoint reaches;
* the first checkpoint behind an installed state keeps nothing of the state before it
  (`Log.installed_state`);
* a replica that the catalog lists no more is deleted after the snapshot that may say so is durable;
* replaced entries are no longer in the cache.

Does not depend on how the store came to its decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ids import GroupId, Index, LogId, Offset, Term
from segments.api import Buffer, EntryLike, Log, MetaBatch
from segments.log.log import DiskLog
from segments.store import DiskStore
from vdl.logstream.state import CATALOG_GROUP
from vdl.sim.durable import DurableLogs
from vdl.sim.filesystem import SimMeta

Broken = Callable[[GroupId, str, str], None]


class StoreWatch:
    """Watch of one process's store. `broken` receives (group, rule, description)."""

    def __init__(self, store: DiskStore, durable: DurableLogs, broken: Broken) -> None:
        self._store = store
        self._durable = durable
        self._broken = broken
        journal = store._journal
        self._release, self._trim = journal.release, store.trim_log
        self._append, self._collect = store.append, store.checkpoint_collect
        self._reset, self._delete = store.reset_log, store.delete_log
        self._reset_token, self._reset_group = 0, GroupId(0)
        """Token of the batch that holds the newest reset, and the group of the log."""
        self._catalog_token = 0
        """Token of the batch that holds the newest snapshot of the catalog."""
        self._cleared: dict[int, int] = {}
        """By log: generation whose first checkpoint removed everything of earlier generations."""
        vars(journal)["release"] = self.release
        vars(store)["trim_log"] = self.trim
        vars(store)["reset_log"] = self.reset
        vars(store)["delete_log"] = self.delete
        vars(store)["append"] = self.append
        vars(store)["checkpoint_collect"] = self.collect

    def release(self, sequence: int, *, damaged_upto: int = 0) -> None:
        """Check and release the journal files before `sequence`."""
        journal = self._store._journal
        goes = any(number < sequence for number in journal.chain.paths)
        if goes and journal.queue.durable_token < self._reset_token:
            self._broken(
                self._reset_group, "journal-released", f"journal files before {sequence} go, the"
                " reset of a log that may need them is not durable",
            )  # fmt: skip
        for log in self._store.logs.values():
            known = self._durable.logs.get(log.log_id)
            if known is None or log.lost:
                continue
            needed = known.only_before(sequence)
            if needed:
                self._broken(
                    log.group_id, "journal-released", f"journal files before {sequence} go, which"
                    f" alone hold entries {needed[0]} to {needed[-1]}, flushed is {known.flushed}",
                )  # fmt: skip
        self._release(sequence, damaged_upto=damaged_upto)

    def trim(self, log: Log, *, first_index: Index) -> None:
        """Check and trim the log's entries before `first_index`."""
        stored = self._stored(log.log_id)
        if first_index > max(log.first_index, stored + 1):
            self._broken(
                log.group_id, "trimmed-early", f"entries before {first_index} go, the last"
                f" checkpoint holds the state after {stored}",
            )  # fmt: skip
        self._trim(log, first_index=first_index)

    def reset(
        self,
        log: Log,
        *,
        first_index: Index,
        prev_term: Term,
        next_offset: Offset,
        state: Buffer = b"",
    ) -> None:
        """Reset the log, and check that the journal files it may need are kept.

        Until the reset is durable a crash restores the log as it was.
        """
        self._reset_token, self._reset_group = self._store._journal.queue.batch.token, log.group_id
        if log.group_id == CATALOG_GROUP:
            self._catalog_token = self._reset_token
        self._reset(
            log, first_index=first_index, prev_term=prev_term, next_offset=next_offset, state=state
        )
        awaited = self._store._checkpoints._note_token
        if 0 < awaited < self._reset_token:
            self._broken(
                log.group_id, "files-not-held", f"journal files go when write {awaited} is durable,"
                f" the log's reset is in write {self._reset_token}",
            )  # fmt: skip

    def delete(self, log_id: LogId) -> None:
        """Check and delete a log. One that has a successor here is no longer needed.

        A restart without the catalog's snapshot would create the log again, without its votes.
        """
        group_id = self._store.logs[log_id].group_id
        self._delete(log_id)
        has_successor = any(one.group_id == group_id for one in self._store.logs.values())
        if not has_successor and self._store._journal.queue.durable_token < self._catalog_token:
            self._broken(
                group_id, "deleted-early", "the catalog's snapshot, which may be the reason, is not"
                " durable",
            )  # fmt: skip

    def append(self, log: Log, entries: Sequence[EntryLike]) -> None:
        """Append entries, and check that replaced ones have left the cache."""
        replaces = bool(entries) and entries[0].index <= log.last_index
        self._append(log, entries)
        if replaces:
            assert isinstance(log, DiskLog), log
            ends = [chunk.end for chunk in log.tail.chunks]
            begins = [chunk.first for chunk in log.tail.chunks]
            if ends != [*begins[1:], log.last_index + 1]:
                self._broken(
                    log.group_id, "cache-not-cut", f"chunks of its tail begin at {begins}, end at"
                    f" {ends}, the log at {log.last_index}",
                )  # fmt: skip

    def collect(self, logs: Sequence[DiskLog]) -> list[MetaBatch]:
        """Collect a checkpoint's batches, and check the first one behind an installed state."""
        batches = self._collect(logs)
        for batch in batches:
            log = self._store._logs.get(batch.log_id)
            install = None if log is None else log.install
            if log is None or install is None or batch.applied < install.first_index - 1:
                continue
            if self._cleared.get(log.id) != log.generation and not batch.clear:
                self._broken(
                    log.group, "checkpoint-of-two-states", "the first one behind an installed state"
                    f" keeps what was stored before, applied is {batch.applied}",
                )  # fmt: skip
            self._cleared[log.id] = log.generation
        return batches

    def _stored(self, log_id: LogId) -> int:
        """Return the applied index of the log's last durable checkpoint."""
        meta = self._store._meta
        if log_id in meta.outdated:
            return 0
        file = meta._file
        assert isinstance(file, SimMeta), file
        stored = file.durable(log_id.to_bytes(4, "big") + b"a")
        return 0 if stored is None else int.from_bytes(stored[:8], "little")
