"""The server's log: one structured line per event, rate-limited, safe against its values."""

import json
import logging
import sys

import pytest

from vdl.events import Events
from vdl.log import (
    REPEATED_NS,
    REPEATS_MAX,
    EventLog,
    LineFormatter,
    LineHandler,
    RateLimit,
    RepeatFilter,
    Repeats,
)


def record_of(
    message="started", level=logging.INFO, *, created=1_772_366_400.25, logger="vdl", **fields
):
    record = logging.LogRecord(logger, level, "x.py", 1, message, (), None)
    record.created = created
    record.fields = fields
    return record


def test_log_line_logfmt_has_time_level_event_and_fields():
    """One line: time, level and event, with the values separate from the text."""
    line = LineFormatter("logfmt").format(record_of("link up", peer=2, rtt_ms=0.25, born=True))
    assert line == (
        'ts=2026-03-01T12:00:00.250Z level=info event="link up" peer=2 rtt_ms=0.25 born=true'
    )


def test_log_line_json_is_one_object():
    """The JSON line is one object with the same fields."""
    line = LineFormatter("json").format(record_of("link up", peer=2, reason=None))
    assert json.loads(line) == {
        "ts": "2026-03-01T12:00:00.250Z",
        "level": "info",
        "event": "link up",
        "peer": 2,
        "reason": None,
    }


@pytest.mark.parametrize("style", ["logfmt", "json"])
@pytest.mark.parametrize("value", ["a\nlevel=error", 'x" level=error "', "\x1b[2J", "a b", ""])
def test_log_value_from_outside_cannot_break_out_of_its_field(style, value):
    """A client id with a line break stays inside its own field."""
    line = LineFormatter(style).format(record_of("closed", client=value))
    assert line.isprintable()
    if style == "json":
        assert json.loads(line)["client"] == value
    else:
        field = line.partition(" client=")[2]
        assert json.loads(field) == value


def test_log_line_of_an_exception_carries_its_traceback():
    """The traceback is part of the same line."""
    try:
        raise LookupError("gone")
    except LookupError:
        record = record_of("handler failed", logging.ERROR)
        record.exc_info = sys.exc_info()
    line = LineFormatter("json").format(record)
    assert "LookupError: gone" in json.loads(line)["traceback"]


def test_log_rate_at_the_limit_passes_and_one_more_is_counted():
    """A burst of warnings becomes a number on the next line that is written."""
    gate = RateLimit(3)
    assert [gate.filter(record_of(created=7.1)) for _ in range(5)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    after = record_of(created=8.0)
    assert gate.filter(after)
    assert LineFormatter("logfmt").format(after).endswith(" dropped_lines=2")


def test_log_rate_errors_always_pass():
    """An error is never dropped."""
    gate = RateLimit(1)
    assert gate.filter(record_of(created=7.1))
    assert not gate.filter(record_of(level=logging.WARNING, created=7.2))
    assert gate.filter(record_of(level=logging.ERROR, created=7.3))


def test_log_rate_holds_for_errors_of_libraries():
    """A stranger can make a library log repeatedly: 500 become 3 lines."""
    gate = RateLimit(3)
    storm = [
        record_of("decoding failed", logging.ERROR, created=7.1, logger="grpc._cython.cygrpc")
        for _ in range(500)
    ]
    assert sum(map(gate.filter, storm)) == 3
    own = record_of(level=logging.ERROR, created=7.2)
    assert gate.filter(own)
    assert own.dropped_lines == 497


def test_log_event_fields_may_have_any_name():
    """A field named like an attribute of `logging`'s records is still only a field."""
    logger = logging.Logger("vdl")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(LineFormatter("json").format(record))
    logger.addHandler(handler)
    EventLog(logger, Events(lambda: 0)).warning("topic_made", name="t", args="100%s", module=None)
    line = json.loads(lines[0])
    assert line["event"] == "topic_made"
    assert (line["name"], line["args"], line["module"]) == ("t", "100%s", None)


def test_log_line_that_cannot_be_written_is_lost_quietly():
    """A log that is full or closed does not stop the server."""
    LineHandler(descriptor=-1).handle(record_of())


def test_log_line_of_a_library_that_comes_again_is_one_a_minute_with_its_count():
    """A repeated line of a library is logged once a minute with its count.

    An example is asyncio's for each write to a closed connection. Our own repeated events are
    limited at their source.
    """
    now_ns = 0
    passing = RepeatFilter(lambda: now_ns)
    lines = []
    for second in range(61):
        now_ns = second * 1_000_000_000
        for logger in ("asyncio", "vdl.kafka"):
            record = record_of("raised exception", logging.WARNING, logger=logger)
            if passing.filter(record):
                lines.append(LineFormatter("logfmt").format(record))
    foreign = [line for line in lines if "logger=asyncio" in line]
    assert len(foreign) == 2
    assert "times=" not in foreign[0]
    assert foreign[1].endswith("times=60")
    assert len(lines) - len(foreign) == 61


def test_log_repeats_are_bounded_and_apart():
    """The least recent one is removed, and logged again."""
    repeats = Repeats()
    told = [repeats.count(number, number) for number in range(REPEATS_MAX + 1)]
    assert told == [1] * len(told)
    assert repeats.count(1, REPEATED_NS) == 0
    assert repeats.count(0, REPEATED_NS) == 1
    assert repeats.count(2, 2 + REPEATED_NS) == 1
