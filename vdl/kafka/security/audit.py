"""The audit log: who did what from where, and whether it was allowed. One JSON object a line.

    {"ts": "...", "event": "denied", "principal": "User:eve", "host": "10.0.0.7", "api": "Produce",
     "operation": "WRITE", "resource": "TOPIC", "name": "orders", "client": "app", "connection": 7}

Rules:

* What is denied is noted each time, and so is every use of an API that changes something
  (`permissions.table.CHANGES`). Of all else, which may be thousands a second, a connection's first
  use of each thing is noted, and the first after permissions changed.
* At most `lines_max` lines of one principal on one host, and `LINES_MAX` in all, leave in a second.
  The rest is counted, and a line says how many were left out, whose they were, and how they were
  decided. So nobody fills a disk, hides another's lines, or goes unmentioned.
* What a line says of a client is what the client was shown to be, and the names it used. No bytes
  of requests, no credentials.

Must not know: files (`vdl/server/audit_file.py`), how decisions are made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vdl.clock import MS, Clock

LINES_MAX = 200
"""In a second."""
LINES_OF_ONE_MAX = 20
"""Of them, of one principal on one host and of one kind."""
LEFT_OUT_MAX = 500
"""So many are named of those whose lines were left out in a second."""
NAME_CHARS_MAX = 300
"""Of a name that a client chose."""
_SECOND_NS = 1_000 * MS
_OTHERS = "(others)"

_Whose = tuple[str, str, str]
"""(principal, host, event)."""


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

    def __init__(self, write: Callable[[bytes], None], clock: Clock) -> None:
        """`write` takes a whole line, and returns at once."""
        self._write = write
        self._clock = clock
        self._second_ns = 0
        """When the present second began; nothing is counted before."""
        self._written = 0
        self._of_one: Counter[_Whose] = Counter()
        self._left_out: Counter[_Whose] = Counter()
        self._is_flush_due = False
        self.lines = 0
        self.lines_left_out = 0

    def note(self, event: str, principal: str, host: str, **fields: str | int) -> None:
        """Note anything that a client did, or that was done to it."""
        now_ns = self._clock.now_ns()
        if now_ns - self._second_ns >= _SECOND_NS:
            self._begin_second(now_ns)
        whose = principal, host, event
        if self._written >= LINES_MAX or self._of_one[whose] >= LINES_OF_ONE_MAX:
            self._leave_out(whose)
            return
        self._written += 1
        self._of_one[whose] += 1
        self._line(event, principal=principal, host=host, **fields)

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
        self._written = 0
        self._of_one.clear()
        left_out, self._left_out = self._left_out, Counter()
        for (principal, host, event), count in left_out.items():
            self._line("left_out", principal=principal, host=host, of=event, count=count)

    def close(self) -> None:
        """Say what is left to say."""
        self._begin_second(self._clock.now_ns())

    def _line(self, event: str, **fields: str | int) -> None:
        self.lines += 1
        stamp = datetime.fromtimestamp(self._clock.wall_ms() / 1_000, UTC)
        line = {"ts": stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        text = json.dumps({**line, "event": event, **fields}, ensure_ascii=True)
        self._write(text.encode() + b"\n")
