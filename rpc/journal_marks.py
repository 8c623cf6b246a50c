"""Journal positions exchanged between servers: starts, durability, and what a peer remembers.

They reveal a directory that was restored from an old copy, or copied: see `segments/boots.py`.
Little-endian, as everything here.

`info` of HELLO: the last starts of the sender's directory, oldest first, at most `BOOTS_MAX`:

    0   number   u64
    8   id       u64   random
    16  end      u64   LSN at which the next start found the journal's end; all ones: still running

JOURNAL, with the heartbeat when it has changed: the LSN up to which the sender's journal is durable
in the last start of its HELLO, u64.

REMEMBERED, the first frame of a link: the sender's record of the receiver's directory.

    0   directory  16s
    16  number     u64   of the last start that it has heard of; 0: none
    24  id         u64
    32  lsn        u64   up to which the journal was durable then

Servers below `VERSION_OF_BOOTS` are sent neither frame: they would end the link.

Does not depend on the consequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from ids import DirectoryId
from rpc.errors import MalformedFrame
from rpc.reader import Buffer

BOOTS_MAX = 32
_BOOT: Final = Struct("<QQQ")
_JOURNAL: Final = Struct("<Q")
_REMEMBERED: Final = Struct("<16sQQQ")


class BootRow(NamedTuple):
    """One start of a directory."""

    number: int
    boot_id: int
    end_lsn: int


class Remembered(NamedTuple):
    """A peer's last record of a directory; `number` 0: none."""

    directory_id: DirectoryId
    number: int = 0
    boot_id: int = 0
    lsn: int = 0


def encode_boots(boots: Sequence[BootRow]) -> bytes:
    """Encode the `info` of HELLO."""
    assert len(boots) <= BOOTS_MAX, len(boots)
    return b"".join(_BOOT.pack(*boot) for boot in boots)


def decode_boots(info: bytes) -> list[BootRow]:
    """Decode the `info` of HELLO. Raises MalformedFrame, also if the numbers do not ascend."""
    count, rest = divmod(len(info), _BOOT.size)
    if rest or count > BOOTS_MAX:
        raise MalformedFrame("boots", len(info))
    boots = [BootRow(*row) for row in _BOOT.iter_unpack(info)]
    numbers = [boot.number for boot in boots]
    if numbers != sorted(set(numbers)) or 0 in numbers:
        raise MalformedFrame("boots that are not in order")
    return boots


def encode_journal(lsn: int) -> list[Buffer]:
    """Encode the payload of a JOURNAL frame."""
    return [_JOURNAL.pack(lsn)]


def decode_journal(payload: memoryview) -> int:
    """Decode the LSN of a JOURNAL payload. Raises MalformedFrame."""
    if len(payload) != _JOURNAL.size:
        raise MalformedFrame("journal", len(payload))
    (lsn,) = _JOURNAL.unpack(payload)
    return int(lsn)


def encode_remembered(remembered: Remembered) -> list[Buffer]:
    """Encode the payload of a REMEMBERED frame."""
    return [_REMEMBERED.pack(*remembered)]


def decode_remembered(payload: memoryview) -> Remembered:
    """Decode a REMEMBERED payload. Raises MalformedFrame."""
    if len(payload) != _REMEMBERED.size:
        raise MalformedFrame("remembered", len(payload))
    return Remembered(*_REMEMBERED.unpack(payload))
