"""Audit log: actions of clients, their origin, and decisions on them. One JSON object a line.

    {"ts": "...", "event": "denied", "principal": "User:eve", "host": "10.0.0.7", "api": "Produce",
     "operation": "WRITE", "resource": "TOPIC", "name": "orders", "client": "app", "connection": 7}

A request that names several things of a kind has one line for all of them, with the first
`NAMES_MAX` and their number:

    {..., "operation": "DELETE", "resource": "TOPIC", "names": ["a", "b", ...], "count": 195000}

Rules:

* Every denial is noted, and every use of an API that changes something
  (`permissions.table.CHANGES`). Other uses may be thousands a second: a connection's first use of
  each thing is noted, and the first one after permissions changed.
* An act, which is allowed and changes something, is always noted. A request is one act, or a few,
  independently of the number of things it names. While noted lines cannot be written (`is_full`),
  requests that would change something wait: first those of the client with the largest share of the
  queued lines.
* Other lines are limited. In a second, one principal may write `LINES_OF_ONE_MAX` lines of one kind
  from all its hosts together; clients without an identity may write as many from one host (of IPv6
  a network). In all, `LINES_MAX` may be written, and `STRANGERS_LINES_MAX` by clients without an
  identity; no client gets more than it leaves to others. Lines beyond that are counted, and one
  line reports their number, client and event. So no client can fill a disk, hide the lines of
  another one, or remain unmentioned.
* A line about a client contains its proven identity and the names it used. It contains no bytes of
  requests and no credentials.

Does not depend on files (`vdl/server/audit_file.py`), or on how decisions are made.
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
"""Maximum number of lines in a second, of principals. Acts are not counted."""
STRANGERS_LINES_MAX = 100
"""Maximum number of lines in a second, of clients without an identity."""
LINES_OF_ONE_MAX = 20
"""Maximum number of these lines of one kind, of one principal or one host without an identity."""
LEFT_OUT_MAX = 500
"""Maximum number of clients and events that are named for the lines left out in a second."""
FULL_RETRY_MS = 1_000
"""Time after which requests that wait for room in the log check again. A disk that failed is not
retried sooner."""
NAME_CHARS_MAX = 300
"""Maximum length of a name that a client chose."""
NAMES_MAX = 10
"""Maximum number of names in the line of a request that named several things."""
_SECOND_NS = 1_000 * MS
_OTHERS = "(others)"
_STRANGER = str(ANONYMOUS)

_Whose = tuple[str, str, str]
"""(principal, host, event)."""


class WriteLine(Protocol):
    """Queue a whole line for writing, and return at once.

    `act_of` is the client whose act the line reports, if it reports one.
    """

    def __call__(self, line: bytes, *, act_of: str | None) -> None: ...


class IsFull(Protocol):
    """Return True if too many lines are queued for another act of a client."""

    def __call__(self, who: str, *, is_super: bool) -> bool: ...


def _sharer(principal: str, host: str) -> str:
    """Return the name of the share of which a line is part: see `ConnectionInfo.asker`."""
    return network_of(host) if principal == _STRANGER else principal


def _never_full(who: str, *, is_super: bool) -> bool:
    del who, is_super
    return False


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Location and size of the audit log."""

    file: Path | None = None
    """None if there is no audit log."""
    bytes_max: int = 64 << 20
    """Size at which a file is put aside and a new one begun."""
    files_max: int = 8
    """Number of files put aside that are kept."""


class AuditLog:
    """Writer of the audit log, with rate limits; see the module."""

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
        """Start of the present second; before the first one nothing is counted."""
        # A client that takes a line must leave one to others. One more than the maximum lets the
        # last one be taken.
        self._known = Shares(LINES_MAX + 1)
        self._strangers = Shares(STRANGERS_LINES_MAX + 1)
        self._of_one: Counter[tuple[str, str]] = Counter()
        """Lines of this second by (client, event); the client is named as in the shares."""
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
        """Log an action of a client, or an event that concerns it.

        `is_act`: it was allowed, and changes something.
        """
        if is_act or self._has_room(event, principal, host):
            act_of = _sharer(principal, host) if is_act else None
            self._line(event, act_of=act_of, principal=principal, host=host, **fields)
        else:
            self._leave_out((principal, host, event))

    def _has_room(self, event: str, principal: str, host: str) -> bool:
        """Count a line of this second. Return True if it may be written."""
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
        """Report omitted lines one second after the first one, even if no line follows."""
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
        """Report omitted lines before the end."""
        self._begin_second(self._clock.now_ns())

    def _line(
        self, event: str, *, act_of: str | None = None, **fields: str | int | list[str]
    ) -> None:
        self.lines += 1
        stamp = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        line = {"ts": stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        text = json.dumps({**line, "event": event, **fields}, ensure_ascii=True)
        self._write(text.encode() + b"\n", act_of=act_of)
