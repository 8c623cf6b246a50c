"""Points of `vdl consume --from` and `--until`: offsets, times and distances.

| text | point |
|---|---|
| `start`, `end` | first record; the end as it is now |
| `42` | offset 42 |
| `-10` | 10 records before the end |
| `@1700000000`, `@1700000000000` | time since 1970: seconds to 11 digits, milliseconds above |
| `2026-11-30`, `2026-11-30T04:00`, `...+02:00` | that time; UTC unless it names a zone |
| `15m`, `15m ago`, `1h30m ago`, `2d` | so long ago |

Does not depend on a client or the clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from vdl.commands.times import parse_time_ms

OFFSET_MAX = (1 << 63) - 1

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_STEP = r"\d{1,12}(?:\.\d{1,6})?(?:ms|s|m|h|d|w)"
_DURATION = re.compile(rf"((?:{_STEP})+)(?:\s+ago)?")
_FORMS = (
    "start, end, an offset, -N (N before the end), @SECONDS, @MILLISECONDS, an ISO time or a"
    " duration such as 15m"
)


class Kind(Enum):
    """Kinds of points."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before the end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Point:
    """A point in every partition. `number`: an offset, a distance, or milliseconds since 1970."""

    kind: Kind
    number: int = 0


START, END = Point(Kind.START), Point(Kind.END)


def parse_point(text: str, *, now_ms: int) -> Point:
    """Return the point that a text means. Raises ValueError."""
    text = text.strip()
    if text in ("start", "beginning", "earliest"):
        return START
    if text in ("end", "latest"):
        return END
    if re.fullmatch(r"-?[0-9]{1,20}", text):
        number = int(text)
        if abs(number) > OFFSET_MAX:
            raise ValueError(f"{text}: larger than any offset")
        if text.startswith("-"):
            return Point(Kind.BEFORE_END, -number)
        return Point(Kind.OFFSET, number)
    return Point(Kind.TIME, _time_ms(text, now_ms))


def _time_ms(text: str, now_ms: int) -> int:
    if not (duration := _DURATION.fullmatch(text)):
        try:
            return parse_time_ms(text)
        except ValueError as error:
            raise ValueError(f"{error}; expected {_FORMS}") from None
    found = now_ms - duration_ms(duration[1])
    if found < 0:
        raise ValueError(f"{text}: before the year 1970")
    return found


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as `1h30m`. Raises ValueError."""
    if not re.fullmatch(rf"(?:{_STEP})+", text):
        raise ValueError(f"{text!r} is no duration such as 1h30m")
    steps = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)", text)
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in steps))
