"""MariaDB rows as the JSON of Debezium's envelopes.

Values without a JSON type are text: decimals with all their digits, dates and times as ISO 8601 (a
TIMESTAMP in UTC, with a Z; a DATETIME as it is), bytes as base64. A BIT is a number, a date that is
none (0000-00-00) NULL.

Does not depend on clients.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

TIMESTAMPS = (7, 17)
"""Type numbers of timestamps."""
DATES = (7, 10, 12, 14, 17, 18)
BIT = 16


def plain(value: Any, kind: int) -> Any:
    """Return a value as JSON has it.

    `kind`: type number of its column in the protocol or the binlog.
    """
    if kind == BIT and isinstance(value, bytes | str):
        return int.from_bytes(value, "big") if isinstance(value, bytes) else int(value, 2)
    if kind in DATES and isinstance(value, str):
        return None
    if isinstance(value, datetime.datetime):
        return value.isoformat() + ("Z" if kind in TIMESTAMPS else "")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return _time(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value


def _time(value: datetime.timedelta) -> str:
    micros = abs(value) // datetime.timedelta(microseconds=1)
    seconds, micros = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if value < datetime.timedelta(0) else ""
    rest = f".{micros:06d}" if micros else ""
    return f"{sign}{hours:02d}:{minutes:02d}:{seconds:02d}{rest}"


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one row.

    `op`: Debezium's; `before` and `after` as JSON has them, None if there is no such row.
    """

    op: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None

    def in_parts(self, key: Sequence[str]) -> Iterator[Change]:
        """Yield the change, or a deletion and a creation if an update changes the key."""
        before, after = self.before, self.after
        if before is None or after is None or all(before[name] == after[name] for name in key):
            yield self
            return
        yield Change("d", before, None)
        yield Change("c", None, after)

    def key(self, key: Sequence[str]) -> bytes:
        row = self.after if self.after is not None else self.before
        assert row is not None, self.op
        return as_json({name: row[name] for name in key})

    def value(self, source: Mapping[str, Any], ts_ms: int) -> bytes:
        return as_json(
            {
                "before": self.before, "after": self.after, "op": self.op, "ts_ms": ts_ms,
                "source": source,
            }
        )  # fmt: skip


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
