"""The server's log: one line per event, structured, rate-limited, quiet when all is well.

Code reports to the `Log` it was given: the name of an event, and values beside it. A line carries
them apart, so that it can be counted and searched:

    ts=2026-03-01T12:00:00.250Z level=warning event=link_refused peer=2 reason=WRONG_CLUSTER

Records that libraries give to the standard `logging` module leave the same way.

Rules:

* `info` is for what happens a few times a day: started, leadership moved, stopped. `warning` is for
  what an operator may have to look at, `error` for what they must. Nothing is logged per request.
* At most `lines_per_second_max` lines leave in a second; the next line that leaves says how many
  were dropped. An error storm must not become a full disk. Our own errors are never dropped; those
  of libraries are, for strangers can cause them.
* What comes again and again is one line, and then one a minute that says how often it came: lines
  of libraries here (`RepeatFilter`), our own where they arise (`Repeats`).
* Each part of the server has a logger of its own, below that of the whole (`EventLog.part`), so
  that the level of one can be changed at run time (`Loggers`).
* A value from outside can neither start a new line nor a new field.
* A line that cannot be written is lost: a full log disk does not stop a server.

Must not know: what the events mean.
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

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

_OWN_LOGGER = "vdl"
"""Whose errors always pass, and whose name no line has to carry; those below it as well."""

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
"""The words of Kafka's tools, from all to least (KIP-412)."""

Line = dict[str, object]

Value = str | float | bool | None
"""What stands beside an event: a number, a name."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How the log looks and how much of it there may be."""

    format: str = "logfmt"
    """`logfmt` or `json`."""
    level: str = "info"
    """The least serious level that is written."""
    lines_per_second_max: int = 100


def start_logging(options: LogOptions, *, descriptor: int = 2) -> logging.Logger:
    """The process's logger, writing to `descriptor`; `EventLog` makes a `Log` of it.

    Called once, by the command that runs a server. Python's own warnings are lines too.
    """
    handler = LineHandler(descriptor)
    handler.setFormatter(LineFormatter(options.format))
    handler.addFilter(RepeatFilter())
    handler.addFilter(RateLimit(options.lines_per_second_max))
    logging.basicConfig(level=LEVELS[options.level], handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    return logging.getLogger(_OWN_LOGGER)


class Log(Protocol):
    """Where the code of a server reports events: a short name, and values beside it."""

    def info(self, event: str, **fields: Value) -> None: ...

    def warning(self, event: str, **fields: Value) -> None: ...

    def error(self, event: str, **fields: Value) -> None: ...


class EventLog:
    """`Log` over the process's logger."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, event: str, **fields: Value) -> None:
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: Value) -> None:
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, **fields: Value) -> None:
        self._logger.error(event, extra={"fields": fields})

    def part(self, name: str) -> EventLog:
        """That of one part of the server."""
        return EventLog(self._logger.getChild(name))


class Loggers:
    """Levels of the process's loggers, in the words of Kafka's tools. What is changed lasts as long
    as the process."""

    def __init__(self, root: logging.Logger | None = None) -> None:
        """`root`: the process's own, unless said otherwise."""
        self._root = logging.getLogger() if root is None else root

    def _named(self) -> Iterator[tuple[str, logging.Logger]]:
        yield ROOT_LOGGER, self._root
        for name, logger in sorted(self._root.manager.loggerDict.items()):
            # What is no logger stands for a name between two of them.
            if isinstance(logger, logging.Logger):
                yield name, logger

    def levels(self) -> dict[str, str]:
        """The level in force of each logger."""
        return {name: _level_word(one.getEffectiveLevel()) for name, one in self._named()}

    def set(self, name: str, level: str) -> None:
        """Raises KeyError for a logger or a level that there is not."""
        dict(self._named())[name].setLevel(KAFKA_LEVELS[level])

    def unset(self, name: str) -> None:
        """It has the level of the one above it again. Raises KeyError."""
        assert name != ROOT_LOGGER, "there is none above it"
        dict(self._named())[name].setLevel(logging.NOTSET)


def _level_word(level: int) -> str:
    """The most serious word that lets all of the level pass."""
    fitting = [word for word, number in KAFKA_LEVELS.items() if number <= level]
    return fitting[-1] if fitting else "TRACE"


def _is_own(name: str) -> bool:
    return name == _OWN_LOGGER or name.startswith(f"{_OWN_LOGGER}.")


class LineHandler(logging.Handler):
    """Writes each line by one system call, so that lines of several threads do not mix."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(self._descriptor, self.format(record).encode("utf-8", "replace") + b"\n")
        except OSError:
            return


class Repeats:
    """Which of the events that come again and again are told: the first one, and then one in
    `REPEATED_NS`. Remembers `REPEATS_MAX` of them, those that were told last."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Hashable, tuple[int, int]] = {}
        """When it was told last, and how often it came since; the one told longest ago first."""

    def count(self, event: Hashable, now_ns: int) -> int:
        """Count one more. Return how often it came since it was told last, this time included; 0 if
        it is not to be told now."""
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
    """Lets a line of a library pass that did not come within the last minute, and says how often it
    came since."""

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
    """Lets `limit` records pass in each second of wall time, and all of our own errors."""

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
    """A record as one line of logfmt or JSON: ts, level, event, then the fields."""

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
        # Under one attribute of the record: as attributes of their own, as `logging` would have it,
        # a field could not be called `name` or `module`.
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
    """A bare word where it can be one, else quoted and escaped as JSON does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and not any(char in ' "=\\' for char in text):
        return text
    return json.dumps(text, ensure_ascii=False)
