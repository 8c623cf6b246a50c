"""Trace of a run: a running hash and a tail of notes to print.

Every delivery and every note goes into one hash: runs with equal hashes did the same things in the
same order at the same times. The tail keeps the last notes for the diagnosis of a failure.
"""

from __future__ import annotations

from collections import deque
from hashlib import blake2b
from struct import Struct
from zlib import crc32

TAIL_NOTES = 400

_DELIVERY = Struct("<QIII")


class Trace:
    """Trace of one run. With `echo` every note is printed as it is made."""

    __slots__ = ("_hash", "_machines", "delivered_bytes", "deliveries", "echo", "tail")

    def __init__(self, *, echo: bool = False) -> None:
        self._hash = blake2b(digest_size=8)
        self._machines: dict[str, int] = {}
        self.tail: deque[str] = deque(maxlen=TAIL_NOTES)
        self.echo = echo
        self.deliveries = 0
        self.delivered_bytes = 0

    def delivery(self, now_ns: int, source: str, target: str, data: bytes) -> None:
        """Hash a delivery of bytes to a machine."""
        machines = self._machines
        link = machines.setdefault(source, len(machines)) << 16
        link |= machines.setdefault(target, len(machines))
        self.deliveries += 1
        self.delivered_bytes += len(data)
        self._hash.update(_DELIVERY.pack(now_ns, link, len(data), crc32(data)))

    def note(self, now_ns: int, text: str) -> None:
        """Hash a note and keep it in the tail."""
        line = f"{now_ns / 1e9:12.6f} {text}"
        self._hash.update(line.encode())
        self.tail.append(line)
        if self.echo:
            print(line)

    def digest(self) -> str:
        """Return the hash so far, 16 hexadecimal digits."""
        return self._hash.hexdigest()
