"""The server's log: one line per event, structured, rate-limited, quiet in normal operation.

Code reports to the `Log` it was given: the name of an event, and values. A line keeps them apart,
so that it can be counted and searched:

    ts=2026-03-01T12:00:00.250Z level=warning event=link_refused peer=2 reason=WRONG_CLUSTER

Records that libraries log through the standard `logging` module are written in the same way.

Rules:

* `info` is for events that happen a few times a day: started, leadership moved, stopped. `warning`
  is for events that an operator may have to look at, `error` for those that an operator must look
  at. Nothing is logged per request.
* At most `lines_per_second_max` lines are written in a second; the next line has the number of
  dropped ones. An error storm must not fill the disk. VDL's own errors are never dropped; those of
  libraries are, because clients can cause them.
* A repeated event is one line, and then one a minute with the number of repetitions: lines of
  libraries here (`RepeatFilter`), VDL's own where they are reported (`Repeats`).
* Each part of the server has a logger of its own, below that of the server (`EventLog.part`), so
  that its level can be changed at run time (`Loggers`).
* Each event is also kept in memory for a while (`vdl/events.py`).
* A value from outside can start neither a new line nor a new field.
* A line that cannot be written is lost: a full log disk does not stop a server.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from vdl.events import Events, Value

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_OWN_LOGGER = "vdl"
"""Logger whose errors always pass and whose name is omitted from lines; includes its children."""

ROOT_LOGGER = "root"

REPEATED_NS = 60_000_000_000
REPEATS_MAX = 256

_TRACE = 5
KAFKA_LEVELS: Mapping[str, int] = {
    "TRACE": _TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Level names of Kafka's tools, from most to least verbose (KIP-412)."""

Line = dict[str, object]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Format of the log, and its limits."""

    format: str = "logfmt"
    """`logfmt` or `json`."""
    level: str = "info"
    """Least serious level that is written."""
    lines_per_second_max: int = 100


def start_logging(options: LogOptions, *, descriptor: int = 2) -> logging.Logger:
    """Configure the process's logger to write to `descriptor`; `EventLog` wraps it as a `Log`.

    Called once, by the command that runs a server. Python's own warnings are logged as well.
    """
    handler = LineHandler(descriptor)
    handler.setFormatter(LineFormatter(options.format))
    handler.addFilter(RepeatFilter())
    handler.addFilter(RateLimit(options.lines_per_second_max))
    logging.basicConfig(level=LEVELS[options.level], handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    return logging.getLogger(_OWN_LOGGER)


class Log(Protocol):
    """Interface for reporting events: a short name, and values.

    `note` reports one that has no line: it is only kept in memory for a while (`vdl/events.py`).
    """

    def note(self, event: str, **fields: Value) -> None: ...

    def info(self, event: str, **fields: Value) -> None: ...

    def warning(self, event: str, **fields: Value) -> None: ...

    def error(self, event: str, **fields: Value) -> None: ...


class EventLog:
    """`Log` that writes to the process's logger, and keeps the latest events in memory."""

    __slots__ = ("_events", "_logger")

    def __init__(self, logger: logging.Logger, events: Events) -> None:
        self._logger = logger
        self._events = events

    def note(self, event: str, **fields: Value) -> None:
        self._events.add(event, "", fields)

    def info(self, event: str, **fields: Value) -> None:
        self._events.add(event, "info", fields)
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Value) -> None:
        self._events.add(event, "warning", fields)
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: Value) -> None:
        self._events.add(event, "error", fields)
        self._logger.error(event, extra={"fields": fields})

    def part(self, name: str) -> EventLog:
        """Return the log of one part of the server."""
        return EventLog(self._logger.getChild(name), self._events)


class Loggers:
    """Levels of the process's loggers, by the names of Kafka's tools.

    Changes last as long as the process.
    """

    def __init__(self, root: logging.Logger | None = None) -> None:
        """`root` is the process's root logger by default."""
        self._root = logging.getLogger() if root is None else root

    def _named(self) -> Iterator[tuple[str, logging.Logger]]:
        yield ROOT_LOGGER, self._root
        for name, logger in sorted(self._root.manager.loggerDict.items()):
            # A placeholder instead of a logger stands for an intermediate name.
            if isinstance(logger, logging.Logger):
                yield name, logger

    def levels(self) -> dict[str, str]:
        """Return the effective level of each logger."""
        return {name: _level_word(one.getEffectiveLevel()) for name, one in self._named()}

    def set(self, name: str, level: str) -> None:
        """Set a logger's level. Raise KeyError if the logger or the level does not exist."""
        dict(self._named())[name].setLevel(KAFKA_LEVELS[level])

    def unset(self, name: str) -> None:
        """Let a logger inherit its level again. Raise KeyError if it does not exist."""
        assert name != ROOT_LOGGER, "the root logger has no parent to inherit from"
        dict(self._named())[name].setLevel(logging.NOTSET)


def _level_word(level: int) -> str:
    """Return the most serious level name that does not filter out the level."""
    fitting = [word for word, number in KAFKA_LEVELS.items() if number <= level]
    return fitting[-1] if fitting else "TRACE"


def _is_own(name: str) -> bool:
    return name == _OWN_LOGGER or name.startswith(f"{_OWN_LOGGER}.")


class LineHandler(logging.Handler):
    """Handler that writes each line by one system call, so that lines of threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._descriptor, self.format(record).encode("utf-8", "replace") + b"\n")
        except OSError:
            return


class Repeats:
    """Limiter for repeated events: reports the first one, and then one in `REPEATED_NS`.

    It remembers the `REPEATS_MAX` events that were reported last.
    """

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[int, int]] = {}
        """Event → (time of its last report, repetitions since), least recently reported first."""

    def count(self, event: Hashable, now_ns: int) -> int:
        """Count an event.

        Return the number of times it occurred since its last report, this one included; 0 if it
        must not be reported now.
        """
        told_ns, count = self._told.get(event, (now_ns - REPEATED_NS, 0))
        if now_ns - told_ns < REPEATED_NS:
            self._told[event] = told_ns, count + 1
            return 0
        self._told.pop(event, None)
        self._told[event] = now_ns, 0
        if len(self._told) > REPEATS_MAX:
            del self._told[next(iter(self._told))]
        return count + 1


class RepeatFilter(logging.Filter):
    """Filter that passes a library's line at most once a minute, with the number of repetitions."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__()
        self._now_ns = now_ns
        self._repeats = Repeats()

    def filter(self, record: logging.LogRecord) -> bool:
        if _is_own(record.name):
            return True
        event = record.name, record.levelno, record.getMessage()
        times = self._repeats.count(event, self._now_ns())
        if times > 1:
            record.times = times
        return times > 0


class RateLimit(logging.Filter):
    """Filter that passes `limit` records per second of wall time, and all of VDL's own errors."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self._second = -1
        self._used = 0
        self._dropped = 0

    def filter(self, record: logging.LogRecord) -> bool:
        second = int(record.created)
        if second != self._second:
            self._second = second
            self._used = 0
        is_kept = _is_own(record.name) and record.levelno >= logging.ERROR
        if self._used >= self._limit and not is_kept:
            self._dropped += 1
            return False
        self._used += 1
        if self._dropped:
            record.dropped_lines = self._dropped
            self._dropped = 0
        return True


class LineFormatter(logging.Formatter):
    """Formatter of a record as one line of logfmt or JSON: ts, level, event, then the fields."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._render = _render_json if style == "json" else _render_logfmt

    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: Line = {
            "ts": stamp.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if not _is_own(record.name):
            line["logger"] = record.name
        # All fields are in one attribute of the record: as separate attributes, as `logging` does
        # it, a field could not be called `name` or `module`.
        line.update(getattr(record, "fields", {}))
        times = getattr(record, "times", 0)
        if times:
            line["times"] = times
        dropped = getattr(record, "dropped_lines", 0)
        if dropped:
            line["dropped_lines"] = dropped
        if record.exc_info is not None and record.exc_info[1] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return self._render(line)


def _render_json(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


def _render_logfmt(line: Line) -> str:
    return " ".join(f"{name}={_logfmt_value(value)}" for name, value in line.items())


def _logfmt_value(value: object) -> str:
    """Return a bare word if possible, else the value quoted and escaped as in JSON."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and not any(char in ' "=\\' for char in text):
        return text
    return json.dumps(text, ensure_ascii=False)
