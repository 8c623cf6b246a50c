"""The server's log: one line per event, structured, rate-limited, quiet when all is well.

A line is an event name and fields, never prose with values inside it, so that it can be counted
and searched: `ts=2026-03-01T12:00:00.000Z level=warning event=peer_lost peer=2 after_ms=1200`.
Records of the standard `logging` module (of libraries, or of code that uses it) leave through the
same door.

Rules:

* `info` is for what happens a few times a day: started, leadership moved, stopped. `warning` is for
  what an operator may have to look at, `error` for what they must. Nothing is logged per request.
* At most `lines_per_second_max` lines leave in a second; the first line of the next second says
  how many were dropped. An error storm must not become a full disk. Errors are never dropped.
* Writing may block on a slow terminal or disk, so the line is written by one `os.write`, and a
  failed write is ignored: a full log disk does not stop a server.

Must not know: what the events mean.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_NAMES = {number: name for name, number in LEVELS.items()}

Field = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How the log looks and how much of it there may be."""

    format: str = "logfmt"
    """`logfmt` or `json`."""
    level: str = "info"
    """The least serious level that is written."""
    lines_per_second_max: int = 100


class Log:
    """Writes events to a file descriptor.

    `fields` given to `bind` are part of every line; a bound log shares its parent's rate limit.
    """

    def __init__(
        self, options: LogOptions, *, wall_ms: Callable[[], int], descriptor: int = 2
    ) -> None:
        self._options = options
        self._gate = _Gate(options.lines_per_second_max)
        self._wall_ms = wall_ms
        self._descriptor = descriptor
        self._level = LEVELS[options.level]
        self._render = _render_json if options.format == "json" else _render_logfmt
        self._bound: dict[str, Field] = {}

    def bind(self, **fields: Field) -> Log:
        """A log whose every line carries these fields too."""
        child = object.__new__(Log)
        child.__dict__.update(self.__dict__)
        child._bound = {**self._bound, **fields}
        return child

    def debug(self, event: str, **fields: Field) -> None:
        self._write(10, event, fields)

    def info(self, event: str, **fields: Field) -> None:
        self._write(20, event, fields)

    def warning(self, event: str, **fields: Field) -> None:
        self._write(30, event, fields)

    def error(self, event: str, **fields: Field) -> None:
        self._write(40, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Field]) -> None:
        if level < self._level:
            return
        now_ms = self._wall_ms()
        admitted, dropped = self._gate.admit(now_ms // 1000)
        if dropped:
            self._emit(now_ms, 30, "log_lines_dropped", {"lines": dropped})
        if admitted or level >= LEVELS["error"]:
            self._emit(now_ms, level, event, fields)

    def _emit(self, now_ms: int, level: int, event: str, fields: dict[str, Field]) -> None:
        stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        line: dict[str, Field] = {
            "ts": f"{stamp}.{now_ms % 1000:03}Z",
            "level": _NAMES[level],
            "event": event,
            **self._bound,
            **fields,
        }
        try:
            os.write(self._descriptor, self._render(line).encode("utf-8", "replace") + b"\n")
        except OSError:
            return


class LoggingHandler(logging.Handler):
    """Carries records of the standard `logging` module into a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Field] = {"logger": record.name, "message": record.getMessage()}
        if record.exc_info is not None and record.exc_info[1] is not None:
            formatter = self.formatter or logging.Formatter()
            fields["traceback"] = formatter.formatException(record.exc_info)
        if record.levelno >= logging.ERROR:
            self._log.error("log", **fields)
        elif record.levelno >= logging.WARNING:
            self._log.warning("log", **fields)
        elif record.levelno >= logging.INFO:
            self._log.info("log", **fields)
        else:
            self._log.debug("log", **fields)


class _Gate:
    """Counts the lines of the current second."""

    __slots__ = ("_dropped", "_limit", "_second", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._second = -1
        self._used = 0
        self._dropped = 0

    def admit(self, second: int) -> tuple[bool, int]:
        """(whether this line may leave, how many were dropped in an earlier second)."""
        dropped = 0
        if second != self._second:
            dropped, self._dropped = self._dropped, 0
            self._second = second
            self._used = 0
        if self._used >= self._limit:
            self._dropped += 1
            return False, dropped
        self._used += 1
        return True, dropped


def _render_json(line: dict[str, Field]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))


def _render_logfmt(line: dict[str, Field]) -> str:
    return " ".join(f"{key}={_logfmt_value(value)}" for key, value in line.items())


def _logfmt_value(value: Field) -> str:
    """A bare word where it can be one, else quoted and escaped as JSON does."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int):
        return str(value)
    # A value from outside must not be able to start a new line or a new field.
    if value and value.isprintable() and not any(char in ' "=\\' for char in value):
        return value
    return json.dumps(value, ensure_ascii=False)
