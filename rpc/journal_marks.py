"""What servers tell each other of their journals: when a directory was started, how far it is
durable, and what its peer remembers of that.

By this a directory that was restored from an old copy, or copied, is found out: see
`segments/boots.py`. Little-endian, as everything here.

`info` of HELLO: the last starts of the sender's directory, oldest first, at most `BOOTS_MAX`:

    0   number   u64
    8   id       u64   random
    16  end      u64   LSN at which the next start found the journal's end; all ones: it goes on

JOURNAL, with the heartbeat when it has changed: the LSN up to which the sender's journal is durable
in the start that its HELLO ends with, u64.

REMEMBERED, the first frame of a link: what the sender remembers of the receiver's directory.

    0   directory  16s
    16  number     u64   of the start that it heard of last; 0: of none
    24  id         u64
    32  lsn        u64   up to which the journal was durable then

Servers that speak less than `VERSION_OF_BOOTS` are sent neither frame: they would end the link.

Must not know: what follows from it.
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
    """What a peer has heard of a directory last; `number` 0: nothing."""

    directory_id: DirectoryId
    number: int = 0
    boot_id: int = 0
    lsn: int = 0


def encode_boots(boots: Sequence[BootRow]) -> bytes:
    """The `info` of HELLO."""
    assert len(boots) <= BOOTS_MAX, len(boots)
    return b"".join(_BOOT.pack(*boot) for boot in boots)


def decode_boots(info: bytes) -> list[BootRow]:
    """Raises MalformedFrame, also where the numbers do not ascend."""
    count, rest = divmod(len(info), _BOOT.size)
    if rest or count > BOOTS_MAX:
        raise MalformedFrame("boots", len(info))
    boots = [BootRow(*row) for row in _BOOT.iter_unpack(info)]
    numbers = [boot.number for boot in boots]
    if numbers != sorted(set(numbers)) or 0 in numbers:
        raise MalformedFrame("boots that do not follow each other")
    return boots


def encode_journal(lsn: int) -> list[Buffer]:
    """The payload of a JOURNAL frame."""
    return [_JOURNAL.pack(lsn)]


def decode_journal(payload: memoryview) -> int:
    """The LSN. Raises MalformedFrame."""
    if len(payload) != _JOURNAL.size:
        raise MalformedFrame("journal", len(payload))
    (lsn,) = _JOURNAL.unpack(payload)
    return int(lsn)


def encode_remembered(remembered: Remembered) -> list[Buffer]:
    """The payload of a REMEMBERED frame."""
    return [_REMEMBERED.pack(*remembered)]


def decode_remembered(payload: memoryview) -> Remembered:
    """Raises MalformedFrame."""
    if len(payload) != _REMEMBERED.size:
        raise MalformedFrame("remembered", len(payload))
    return Remembered(*_REMEMBERED.unpack(payload))
