"""The audit log: who did what from where, and whether it was allowed. One JSON object a line.

    {"ts": "...", "event": "denied", "principal": "User:eve", "host": "10.0.0.7", "api": "Produce",
     "operation": "WRITE", "resource": "TOPIC", "name": "orders", "client": "app", "connection": 7}

A request that names several things of a kind has one line for all of them, with the first
`NAMES_MAX` and how many there are:

    {..., "operation": "DELETE", "resource": "TOPIC", "names": ["a", "b", ...], "count": 195000}

Rules:

* What is denied is noted each time, and so is every use of an API that changes something
  (`permissions.table.CHANGES`). Of all else, which may be thousands a second, a connection's first
  use of each thing is noted, and the first after permissions changed.
* An act, which is allowed and changes something, is always noted. A request is one act, or a few,
  whatever number of things it names. While what was noted cannot be written (`is_full`), requests
  that would change something wait: first those of whoever made most of what waits.
* Of the rest, `LINES_OF_ONE_MAX` lines of one principal and of one kind leave in a second, from
  whatever hosts; of those that have not shown who they are, as many from one host (of IPv6 a
  network). `LINES_MAX`
  leave in all, and `STRANGERS_LINES_MAX` of strangers, of which nobody has more than it leaves to
  others. What is beyond is counted, and a line says how many were left out, whose they were, and
  how they were decided. So nobody fills a disk, hides another's lines, or goes unmentioned.
* What a line says of a client is what the client was shown to be, and the names it used. No bytes
  of requests, no credentials.

Must not know: files (`vdl/server/audit_file.py`), how decisions are made.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from rpc.newcomers import network_of
from vdl.clock import MS, Clock
from vdl.kafka.security.principal import ANONYMOUS
from vdl.kafka.shares import Shares

LINES_MAX = 200
"""In a second, of principals; acts are not counted."""
STRANGERS_LINES_MAX = 100
"""In a second, of those that have not shown who they are."""
LINES_OF_ONE_MAX = 20
"""Of them, of one principal, or of strangers on one host, and of one kind."""
LEFT_OUT_MAX = 500
"""So many are named of those whose lines were left out in a second."""
FULL_RETRY_MS = 1_000
"""What waits because too much waits to be written looks again after this: a disk that refused is
not tried sooner."""
NAME_CHARS_MAX = 300
"""Of a name that a client chose."""
NAMES_MAX = 10
"""Of several things that a request named, these many names are in the line."""
_SECOND_NS = 1_000 * MS
_OTHERS = "(others)"
_STRANGER = str(ANONYMOUS)

_Whose = tuple[str, str, str]
"""(principal, host, event)."""


class WriteLine(Protocol):
    """Have a whole line written; return at once. `act_of`: whose act it tells of, if it does."""

    def __call__(self, line: bytes, *, act_of: str | None) -> None: ...


class IsFull(Protocol):
    """Whether too much waits to be written for another act of somebody."""

    def __call__(self, who: str, *, is_super: bool) -> bool: ...


def _sharer(principal: str, host: str) -> str:
    """Whose share a line is part of: see `ConnectionInfo.asker`."""
    return network_of(host) if principal == _STRANGER else principal


def _never_full(who: str, *, is_super: bool) -> bool:
    del who, is_super
    return False


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Where the audit log is, and how much of it is kept."""

    file: Path | None = None
    """None: none is kept."""
    bytes_max: int = 64 << 20
    """A file of this size is put aside, and a new one begun."""
    files_max: int = 8
    """Files put aside that are kept."""


class AuditLog:
    """See the module."""

    def __init__(
        self,
        write: WriteLine,
        clock: Clock,
        is_full: IsFull = _never_full,
    ) -> None:
        self._write = write
        self.is_full = is_full
        self._clock = clock
        self._second_ns = 0
        """When the present second began; nothing is counted before."""
        # Who takes a line leaves one: with one more than there are, the last can be taken.
        self._known = Shares(LINES_MAX + 1)
        self._strangers = Shares(STRANGERS_LINES_MAX + 1)
        self._of_one: Counter[tuple[str, str]] = Counter()
        """By who, as it is in the shares, and event."""
        self._left_out: Counter[_Whose] = Counter()
        self._is_flush_due = False
        self.lines = 0
        self.lines_left_out = 0

    def note(
        self,
        event: str,
        principal: str,
        host: str,
        *,
        is_act: bool = False,
        **fields: str | int | list[str],
    ) -> None:
        """Note anything that a client did, or that was done to it. `is_act`: it was allowed, and
        changes something."""
        if is_act or self._has_room(event, principal, host):
            act_of = _sharer(principal, host) if is_act else None
            self._line(event, act_of=act_of, principal=principal, host=host, **fields)
        else:
            self._leave_out((principal, host, event))

    def _has_room(self, event: str, principal: str, host: str) -> bool:
        """Count a line of this second, if it may leave."""
        now_ns = self._clock.now_ns()
        if now_ns - self._second_ns >= _SECOND_NS:
            self._begin_second(now_ns)
        shares = self._strangers if principal == _STRANGER else self._known
        who = _sharer(principal, host)
        if self._of_one[who, event] >= LINES_OF_ONE_MAX or not shares.may_take(who, 1):
            return False
        shares.change(who, 1)
        self._of_one[who, event] += 1
        return True

    def _leave_out(self, whose: _Whose) -> None:
        self.lines_left_out += 1
        if whose not in self._left_out and len(self._left_out) >= LEFT_OUT_MAX:
            whose = _OTHERS, _OTHERS, whose[2]
        self._left_out[whose] += 1
        if not self._is_flush_due:
            self._is_flush_due = True
            self._clock.call_later(_SECOND_NS, self._flush)

    def _flush(self) -> None:
        """A second after the first that was left out: also if nothing follows."""
        self._is_flush_due = False
        self._begin_second(self._clock.now_ns())

    def _begin_second(self, now_ns: int) -> None:
        self._second_ns = now_ns
        self._known.clear()
        self._strangers.clear()
        self._of_one.clear()
        left_out, self._left_out = self._left_out, Counter()
        for (principal, host, event), count in left_out.items():
            self._line("left_out", principal=principal, host=host, of=event, count=count)

    def close(self) -> None:
        """Say what is left to say."""
        self._begin_second(self._clock.now_ns())

    def _line(
        self, event: str, *, act_of: str | None = None, **fields: str | int | list[str]
    ) -> None:
        self.lines += 1
        stamp = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        line = {"ts": stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        text = json.dumps({**line, "event": event, **fields}, ensure_ascii=True)
        self._write(text.encode() + b"\n", act_of=act_of)
