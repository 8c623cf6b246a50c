"""Collected applied state that is in no transaction of the meta file yet.

State collected by a failed checkpoint is kept and merged with later state. State of a log whose
reset is not durable yet waits until it is; otherwise a crash would leave meta ahead of its log.
State that replaces everything (`clear`) and was collected after a reset *covers* the reset's state:
the transaction that holds it records this, and from then on the journal need not keep that state.

Does not depend on the meaning of keys or on when checkpoints happen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ids import LogId
from segments.api import MetaBatch
from segments.log.log import DiskLog, Install


@dataclass(frozen=True, slots=True)
class MetaCommit:
    """One transaction: batches, and by log id the resets that they cover."""

    batches: list[MetaBatch]
    covered: dict[LogId, Install]


class PendingMeta:
    """Collected state of all logs. Use: `collect`, `take`, and once that is durable `saved`."""

    __slots__ = ("_batches", "_covering")

    def __init__(self) -> None:
        self._batches: dict[LogId, MetaBatch] = {}
        self._covering: dict[LogId, Install] = {}

    @property
    def is_empty(self) -> bool:
        return not self._batches

    def collect(self, batches: Sequence[MetaBatch], logs: Mapping[LogId, DiskLog]) -> None:
        """Add the owner's changes since the last call."""
        for batch in batches:
            log = logs.get(batch.log_id)
            if log is None:
                continue
            install = log.install
            if install is not None and batch.clear and batch.applied >= install.first_index - 1:
                self._covering[batch.log_id] = install
            earlier = self._batches.get(batch.log_id)
            self._batches[batch.log_id] = batch if earlier is None else earlier.then(batch)

    def take(self, logs: Mapping[LogId, DiskLog], durable_token: int) -> MetaCommit:
        """Return the state that may be written now."""
        ready = [
            batch
            for log_id, batch in self._batches.items()
            if (log := logs.get(log_id)) is not None and log.reset_token <= durable_token
        ]
        covered = {
            batch.log_id: install
            for batch in ready
            if (install := self._covering.get(batch.log_id)) is not None
        }
        return MetaCommit(ready, covered)

    def saved(self, commit: MetaCommit, logs: Mapping[LogId, DiskLog]) -> None:
        """Note that the transaction is durable; state of logs whose meta is lost was dropped."""
        for batch in commit.batches:
            log = logs.get(batch.log_id)
            if log is not None and not log.is_meta_lost:
                log.applied = batch.applied
            self._batches.pop(batch.log_id, None)
        for log_id, install in commit.covered.items():
            log = logs.get(log_id)
            if log is not None and log.install is install:
                log.note_covered()
            self._covering.pop(log_id, None)

    def forget(self, log_id: LogId) -> None:
        """Forget a deleted log."""
        self._batches.pop(log_id, None)
        self._covering.pop(log_id, None)
