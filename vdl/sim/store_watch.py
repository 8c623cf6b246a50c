"""Nothing that a store holds goes before what takes its place is durable.

Asked when a store decides, of the durable image alone: a journal file that goes leaves no entry
behind that neither a newer file nor, by a durable note, a segment holds; and a log is cut no
further than a durable checkpoint reaches. What a crash just then would show needs no crash here.

Must not know: how the store came to its decision.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.api import Log
from segments.store import DiskStore
from vdl.sim.durable import DurableLogs
from vdl.sim.filesystem import SimMeta

Broken = Callable[[int, str, str], None]


class StoreWatch:
    """One process's store. `broken` is told (group, rule, what went too early)."""

    def __init__(self, store: DiskStore, durable: DurableLogs, broken: Broken) -> None:
        self._store = store
        self._durable = durable
        self._broken = broken
        journal = store._journal
        self._release, self._trim = journal.release, store.trim_log
        vars(journal)["release"] = self.release
        vars(store)["trim_log"] = self.trim

    def release(self, sequence: int) -> None:
        """Journal files before `sequence` go."""
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
        self._release(sequence)

    def trim(self, log: Log, *, first_index: int) -> None:
        """The log's entries before `first_index` go."""
        stored = self._stored(log.log_id)
        if first_index > max(log.first_index, stored + 1):
            self._broken(
                log.group_id, "trimmed-early", f"entries before {first_index} go, the last"
                f" checkpoint holds the state after {stored}",
            )  # fmt: skip
        self._trim(log, first_index=first_index)

    def _stored(self, log_id: int) -> int:
        """The applied index of the log's last durable checkpoint."""
        meta = self._store._meta
        if log_id in meta.outdated:
            return 0
        file = meta._file
        assert isinstance(file, SimMeta), file
        stored = file.durable(log_id.to_bytes(4, "big") + b"a")
        return 0 if stored is None else int.from_bytes(stored[:8], "little")
