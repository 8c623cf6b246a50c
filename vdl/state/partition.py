"""The replicated state of one partition beside its records: producer windows and log start offset.

The windows follow from the committed batches. The log start offset is moved by commands in the
partition's own log, between the batches (entries without records): deleted records stay deleted
under every later leader. Idle producers are forgotten by commands as well, because a server cannot
rely on any time in the log. All of it is the same on every replica. A snapshot of a partition is
this, and a few numbers about its log.

Must not know: records, leadership, the log itself.
"""

from __future__ import annotations

import msgspec

from vdl.state.producers import Producers
from vdl.state.table import decode_value, encode_value

_KEY_LOG_START = b"s"


class AdvanceLogStart(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1
):
    """Records below `offset` are deleted: by retention, or because a client said so (KIP-107)."""

    offset: int


class ExpireProducers(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2
):
    """Producers are forgotten whose newest batch is in the entry at `index` or before it: they have
    been idle for `producer.id.expiration.ms` (KIP-98). Peers of protocol version 4 know it."""

    index: int


PartitionCommand = AdvanceLogStart | ExpireProducers
_COMMAND: msgspec.msgpack.Decoder[PartitionCommand] = msgspec.msgpack.Decoder(PartitionCommand)


def encode_command(command: PartitionCommand) -> bytes:
    """The payload of an entry without records."""
    return encode_value(command)


class PartitionState:
    """See the module. Fed by the log stream."""

    __slots__ = ("_start_is_dirty", "log_start_offset", "producers")

    def __init__(self) -> None:
        self.producers = Producers()
        self.log_start_offset = 0
        """Records below are deleted, even where their batch is still on disk. Never moves back."""
        self._start_is_dirty = False

    def apply(self, data: bytes | bytearray | memoryview, *, end_offset: int) -> None:
        """Apply a command that is committed behind `end_offset` records. Raises
        msgspec.DecodeError: a replica that does not understand one stops rather than diverge."""
        command = _COMMAND.decode(data)
        if isinstance(command, ExpireProducers):
            self.producers.expire(command.index)
            return
        start = min(command.offset, end_offset)
        if start > self.log_start_offset:
            self.log_start_offset = start
            self._start_is_dirty = True

    # --- storing ---------------------------------------------------------------------------
    def take_dirty(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) pairs that changed since the last call; None deletes."""
        dirty = self.producers.take_dirty()
        if self._start_is_dirty:
            self._start_is_dirty = False
            dirty.append((_KEY_LOG_START, encode_value(self.log_start_offset)))
        return dirty

    def load(self, items: list[tuple[bytes, bytes]]) -> None:
        """Replace the whole state."""
        self.log_start_offset = 0
        self._start_is_dirty = False
        if items and items[-1][0] == _KEY_LOG_START:
            self.log_start_offset = decode_value(items[-1][1], int)
            items = items[:-1]
        self.producers.load(items)

    def items(self) -> list[tuple[bytes, bytes]]:
        """The whole state, in key order: snapshots and digests."""
        items = self.producers.items()
        if self.log_start_offset:
            items.append((_KEY_LOG_START, encode_value(self.log_start_offset)))
        return items

    @property
    def item_count(self) -> int:
        """The number of items, at no cost."""
        return len(self.producers) + 1
