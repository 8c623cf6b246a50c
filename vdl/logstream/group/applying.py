"""Application of one partition's committed entries to its state: batches, markers and commands.

An entry is applied once, in log order, on every replica, and requests that wait for it are answered
then. A replica whose state came with a snapshot skips the entries that the state reflects.

Does not depend on how entries are committed, or on their records.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from raft.types import Entry
from vdl.logstream.group.commands import Commands
from vdl.logstream.group.log_start import LogStart
from vdl.logstream.group.long_polls import LongPolls
from vdl.logstream.group.transactions import Transactions
from vdl.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from vdl.records.markers import read_marker
from vdl.state.partition import PartitionState
from vdl.state.producers import Overlay

_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43
_ATTRIBUTES_POSITION = 22
"""Position of the low byte of the attributes."""


class Applying:
    """Application of committed entries to one replica of a partition: a base of `LogStream`.

    Invariant: the state after an entry follows from the state before it and the entry alone, so
    replicas that have applied the same entries are equal.
    """

    __slots__ = ()

    state: PartitionState
    overlay: Overlay
    transactions: Transactions
    log_start: LogStart
    commands: Commands
    polls: LongPolls

    def wake_later(self) -> None:
        """Run the long polls at the end of the turn."""
        raise NotImplementedError

    def apply(self, entries: Sequence[Entry]) -> None:
        """Update state, producer windows and transactions. Use: once for each committed entry."""
        if self.polls.for_stable:
            self.wake_later()
        transactions = self.transactions
        for entry in entries:
            if not entry.records:
                if len(entry.data):
                    self._apply_command(entry)
                continue
            if not len(entry.data):
                continue  # compacted away, and in no producer's window any more
            producer_id, epoch, sequence = _PRODUCER.unpack_from(entry.data, _PRODUCER_POSITION)
            if producer_id >= 0:
                attributes = entry.data[_ATTRIBUTES_POSITION]
                if attributes & CONTROL_FLAG:
                    self._apply_marker(entry)
                    continue
                self.state.producers.apply(
                    producer_id,
                    epoch,
                    sequence,
                    entry.records,  # includes records that compaction removed
                    entry.base_offset,
                    entry.index,
                    entry.timestamp,
                    is_transactional=attributes & TRANSACTIONAL_FLAG != 0,
                )
                self.overlay.committed(producer_id, entry.index)
                if transactions.endings:
                    transactions.answer_endings(entry.index)

    def _apply_marker(self, entry: Entry) -> None:
        marker = read_marker(memoryview(entry.data))
        if marker is None:
            return  # a control batch of another type
        self.state.apply_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            commit=marker.commit,
            offset=entry.base_offset,
            index=entry.index,
            timestamp=marker.timestamp,
            number=marker.number,
        )
        self.overlay.committed(marker.producer_id, entry.index)
        self.transactions.answer_endings(entry.index)

    def _apply_command(self, entry: Entry) -> None:
        state = self.state
        log_start = state.log_start_offset
        answer = state.apply(entry.data, end_offset=entry.base_offset)
        self.commands.applied(entry.index, answer)
        self.log_start.applied(entry.index)
        if state.log_start_offset != log_start:
            self.polls.run_all()  # the log start has moved: long polls must check it

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Build the list of aborted transactions from entries, if the snapshot had none."""
        state = self.state
        if state.lists_all:
            return
        for entry in entries:
            if not entry.records or not len(entry.data):
                continue
            (producer_id, *_) = _PRODUCER.unpack_from(entry.data, _PRODUCER_POSITION)
            attributes = entry.data[_ATTRIBUTES_POSITION]
            if attributes & CONTROL_FLAG:
                marker = read_marker(memoryview(entry.data))
                if marker is not None:
                    state.pass_marker(
                        producer_id,
                        commit=marker.commit,
                        offset=entry.base_offset,
                        index=entry.index,
                    )
            elif attributes & TRANSACTIONAL_FLAG:
                state.pass_batch(producer_id, entry.base_offset)
        if is_last:
            state.passed_all()
            if self.polls.for_stable:
                self.wake_later()


def is_control(entry: Entry) -> bool:
    """Return True if the entry is a control batch, such as a marker."""
    is_batch = bool(entry.records) and len(entry.data) > _ATTRIBUTES_POSITION
    return is_batch and entry.data[_ATTRIBUTES_POSITION] & CONTROL_FLAG != 0
