"""Options of a `format("vdl")` reader, parsed once and checked.

| option | default | |
|---|---|---|
| bootstrap | | initial servers, `host:port,host:port` |
| topics | | names, separated by commas |
| start | earliest | `earliest`, `latest`, a time (ISO 8601 or ms since 1970), positions as JSON |
| end | latest | of a batch read: as `start` |
| maxRows | 200000 | limit on records of one micro-batch |
| maxBytes | 67108864 | approximate limit on its bytes, by samples; 0: no limit |
| minPartitions | 0 | minimum number of tasks of a batch, if there are enough records |
| stallSeconds | 60 | a read fails after this time without a record |
| headers | false | add a column `headers` |
| columns | | only these columns: Spark does not pass a Python source the needed ones |
| isolation | read_committed | or `read_uncommitted` |
| segments | | data directories of servers: sealed segments are read from there |
| allowLoss | false | if retention removed unread records, continue at the log's start, not fail |
| unreadable | fail | for an unreadable batch: `fail`, or `letter`, one row for it |
| client.* | | any setting of librdkafka, which reads everything itself unless all of them |
| | | concern identity and connection security (`fast_client.py`) |

Options that the official connector also has may use its names (`connector_options.py`).

Does not depend on Spark or on Kafka clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from vdl.pipeline.connector_options import OptionRefused, renamed
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.positions import Positions

MAX_ROWS_DEFAULT = 200_000
MAX_BYTES_DEFAULT = 64 << 20
STALL_SECONDS_DEFAULT = 60.0
CLIENT_PREFIX = "client."

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""Columns as in the official connector; `headers` is the eighth, on request."""

_TEXT = ("bootstrap", "topics", "start", "end", "isolation", "segments", "columns", "unreadable")
TEXTS = "texts"
"""Internal option of a job: `registered.values.Texts` as text."""
_NUMBERS = ("maxRows", "maxBytes", "minPartitions", "stallSeconds")
_SWITCHES = ("headers", "allowLoss")
NAMES = (*_TEXT, *_NUMBERS, *_SWITCHES)
SPARKS_OWN = frozenset({"path", "__schema__"})


class OptionError(PipelineError):
    """An option that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Earliest:
    """The start of the log."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The current end of the log."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of this time, ms since 1970, or a later one; the end if there is none."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class At:
    """These offsets, and the log's start for partitions they do not name.

    As in the official connector, -2 also is the log's start, and -1 its end.
    """

    positions: Positions


Where = Earliest | Latest | AtTime | At


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Parsed options; the module's docstring has their table."""

    bootstrap: str
    topics: tuple[str, ...]
    start: Where = field(default_factory=Earliest)
    end: Where = field(default_factory=Latest)
    rows_max: int = MAX_ROWS_DEFAULT
    bytes_max: int = MAX_BYTES_DEFAULT
    tasks_min: int = 0
    stall_seconds: float = STALL_SECONDS_DEFAULT
    columns: tuple[str, ...] = COLUMNS
    isolation: str = "read_committed"
    segments: tuple[str, ...] = ()
    allow_loss: bool = False
    letters: bool = False
    """True if a range without readable records becomes a row (`read.letter`)."""
    client: Mapping[str, str] = field(default_factory=dict)
    texts: str = ""
    """Settings of values read by a registry's schemas (`registered.values.Texts`); "" for none."""


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse options as Spark passes them, with names in any case. Raises OptionError."""
    try:
        given = renamed({name.lower(): value for name, value in options.items()})
    except OptionRefused as error:
        raise OptionError(str(error)) from None
    _refuse_unknown(given)
    columns = _columns(given)
    isolation = given.get("isolation", "read_committed")
    if isolation not in {"read_committed", "read_uncommitted"}:
        raise OptionError(f"isolation: {isolation!r} is not read_committed or read_uncommitted")
    return ReadOptions(
        bootstrap=_needed(given, "bootstrap"),
        topics=tuple(sorted(set(_list(_needed(given, "topics"))))),
        start=parse_where("start", given.get("start", "earliest")),
        end=parse_where("end", given.get("end", "latest")),
        rows_max=int(_number(given, "maxRows", MAX_ROWS_DEFAULT, least=1)),
        bytes_max=int(_number(given, "maxBytes", MAX_BYTES_DEFAULT, least=0)),
        tasks_min=int(_number(given, "minPartitions", 0, least=0)),
        stall_seconds=_number(given, "stallSeconds", STALL_SECONDS_DEFAULT, least=0.1),
        columns=columns,
        isolation=isolation,
        segments=tuple(_list(given.get("segments", ""))),
        allow_loss=_switch(given, "allowLoss"),
        letters=_letters(given),
        client={
            name.removeprefix(CLIENT_PREFIX): value
            for name, value in given.items()
            if name.startswith(CLIENT_PREFIX)
        },
        texts=given.get(TEXTS, ""),
    )


def parse_where(name: str, text: str) -> Where:
    """Parse a position option. Raises OptionError."""
    text = text.strip()
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        return Latest()
    if text.startswith("{"):
        try:
            return At(Positions.from_json(json.loads(text)))
        except ValueError as error:
            raise OptionError(f"{name}: {error}") from error
    if text.isdigit():
        return AtTime(int(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            f"{name}: {text!r} is not earliest, latest, a time or offsets as JSON"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return AtTime(round(when.timestamp() * 1000))


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower() for name in NAMES} | SPARKS_OWN | {TEXTS}
    unknown = [n for n in given if n not in known and not n.startswith(CLIENT_PREFIX)]
    if unknown:
        raise OptionError(f"unknown option: {', '.join(sorted(unknown))} (known: {NAMES})")


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    every = (*COLUMNS, "headers")
    named = _list(given.get("columns", ""))
    unknown = sorted(set(named) - set(every))
    if unknown:
        raise OptionError(f"columns: {', '.join(unknown)} is not one of {', '.join(every)}")
    if named:
        return tuple(name for name in every if name in named)
    return every if _switch(given, "headers") else COLUMNS


def _letters(given: Mapping[str, str]) -> bool:
    text = given.get("unreadable", "fail")
    if text not in {"fail", "letter"}:
        raise OptionError(f"unreadable: {text!r} is not fail or letter")
    return text == "letter"


def _needed(given: Mapping[str, str], name: str) -> str:
    value = given.get(name.lower(), "").strip()
    if not value:
        raise OptionError(f"{name}: is required")
    return value


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(given: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise OptionError(f"{name}: {text!r} is not a number") from None
    if value < least:
        raise OptionError(f"{name}: {text} is below {least:g}")
    return value


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name.lower(), "false").lower()
    if text not in {"true", "false"}:
        raise OptionError(f"{name}: {text!r} is not true or false")
    return text == "true"
