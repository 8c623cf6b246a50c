"""Parser of OpenTelemetry's MetricsData, as clients push it (KIP-714), within bounds.

Only the exported parts are read: name, kind and points of sums and gauges, with the attributes of
the points. Histograms and summaries are skipped. The layout is protobuf's, by opentelemetry-proto
1.x:

```
MetricsData      1 ResourceMetrics*       Metric           1 name, 5 Gauge, 7 Sum
ResourceMetrics  2 ScopeMetrics*          Gauge, Sum       1 NumberDataPoint*
ScopeMetrics     2 Metric*                Sum              2 temporality (1 delta), 3 is monotonic
NumberDataPoint  4 as double, 6 as int (both 8 bytes), 7 KeyValue*
KeyValue         1 key, 2 AnyValue        AnyValue         1 string, 2 bool, 3 int, 4 double
```

Does not depend on the client that pushed, or on the use of the points.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from vdl.errors import VdlError

POINTS_MAX = 2_000
FIELDS_MAX = 50_000
"""Maximum number of points and fields of one push; the rest is not read. A field costs a
microsecond or two, independently of its content; a point may have no fields, and a push without
points may have millions."""
TEXT_CHARS_MAX = 256
"""Length to which a name, and all attributes of a point, are cut."""
_VARINT_BYTES_MAX = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = Struct("<d")
_INT64 = Struct("<q")
_DELTA = 1


class BadMetrics(VdlError):
    """Bytes that are not MetricsData: `what` at byte `position` of the enclosing part."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(what, position)
        self.what = what
        self.position = position


class Point(NamedTuple):
    """One value. `adds`: it is added to earlier values; otherwise it replaces them."""

    name: str
    attributes: str
    """`key=value`, sorted and separated by commas."""
    value: float
    is_counter: bool
    adds: bool


def read_points(data: memoryview) -> list[Point]:
    """Return the first points of a push. Raises BadMetrics."""
    reader = _Reader()
    points: list[Point] = []
    try:
        for metric in reader.metrics(data):
            for point in reader.points(metric):
                points.append(point)
                if len(points) == POINTS_MAX:
                    return points
    except _Enough:
        return points
    except (StructError, IndexError) as error:
        raise BadMetrics("a truncated field", len(data)) from error
    return points


class _Enough(Exception):
    """The maximum number of fields was read."""


class _Reader:
    """Parser of one push. Raises BadMetrics, StructError, IndexError, _Enough."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def metrics(self, data: memoryview) -> Iterator[memoryview]:
        for resource in self._parts(data, 1):
            for scope in self._parts(resource, 2):
                yield from self._parts(scope, 2)

    def points(self, metric: memoryview) -> Iterator[Point]:
        name = ""
        kinds: list[tuple[bool, memoryview]] = []
        for number, value in self._fields(metric):
            if isinstance(value, memoryview):
                if number == 1:
                    name = _text(value)
                elif number in (5, 7):
                    kinds.append((number == 7, value))
        for is_sum, body in kinds:
            temporality = is_monotonic = 0
            for number, value in self._fields(body) if is_sum else ():
                if isinstance(value, int):
                    if number == 2:
                        temporality = value
                    elif number == 3:
                        is_monotonic = value
            for point in self._parts(body, 1):
                attributes, number_value = self._point(point)
                is_counter = bool(is_monotonic)
                adds = is_counter and temporality == _DELTA
                yield Point(name, attributes, number_value, is_counter, adds)

    def _point(self, data: memoryview) -> tuple[str, float]:
        value = 0.0
        attributes: list[str] = []
        for number, found in self._fields(data):
            if not isinstance(found, memoryview):
                continue
            if number == 4:
                value = _DOUBLE.unpack(found)[0]
            elif number == 6:
                value = float(_INT64.unpack(found)[0])
            elif number == 7:
                attributes.append(self._attribute(found))
        return ",".join(sorted(attributes))[:TEXT_CHARS_MAX], value

    def _attribute(self, data: memoryview) -> str:
        key = value = ""
        for number, found in self._fields(data):
            if number == 1 and isinstance(found, memoryview):
                key = _text(found)
            elif number == 2 and isinstance(found, memoryview):
                for kind, content in self._fields(found):
                    if kind == 4 and isinstance(content, memoryview):
                        value = str(_DOUBLE.unpack(content)[0])
                    else:
                        value = _text(content) if isinstance(content, memoryview) else str(content)
        return f"{key}={value}"

    def _parts(self, data: memoryview, wanted: int) -> Iterator[memoryview]:
        """Yield the submessages with this field number."""
        for number, value in self._fields(data):
            if number == wanted and isinstance(value, memoryview):
                yield value

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Yield (number, value) of each field; the value is a number or bytes."""
        position, end = 0, len(data)
        while position < end:
            self._left -= 1
            if self._left < 0:
                raise _Enough
            tag, position = _varint(data, position)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                value, position = _varint(data, position)
                yield number, value
                continue
            if kind == _BYTES:
                size, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise BadMetrics("an unknown wire type", position)
            if size > end - position:
                raise BadMetrics("a truncated field", position)
            yield number, data[position : position + size]
            position += size


def _text(data: memoryview) -> str:
    return data[: 4 * TEXT_CHARS_MAX].tobytes().decode("utf-8", "replace")[:TEXT_CHARS_MAX]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise BadMetrics("an unterminated number", position)
