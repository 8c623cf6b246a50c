"""JSON objects to Arrow columns, all of a batch at once, where nothing about them is in doubt.

Spark's `from_json` is what decides: what it makes of a value is in the table whoever decodes it.
Arrow's parser takes less time, and is stricter. So a value that it takes, of the types and forms
here, is what Spark makes of it, and any other is in doubt and left to Spark: one that is no object,
of other types than the schema's, with a member twice, with numbers that are none in JSON, nested
deeply. `tests/pipeline/test_json_columns.py` compares both.

Objects are parsed end to end, with line feeds between them. Each begins with a brace and ends with
one, so none can go on in the next: within a string a line feed is an error, and elsewhere an
object cannot follow another one.

Must not know: Spark, records.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

SPACES = " \t\r\n"
"""JSON's; there are more in ASCII."""
LONG_BYTES = 1_000
"""Values that are no longer can have neither as many levels nor as long numbers as Spark's parser
minds."""
NO_NUMBERS = ("NaN", "Inf")
"""What both parsers take for numbers in some spellings, but not in the same ones."""
DIGITS = "[0-9.eE+-]{900}"
PARTS_MAX = 1_000
"""Of a batch that are tried, where Arrow refuses a value for another reason than its types."""
_DAY = r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
DATE = f"^{_DAY}$"
LOCAL = f"^{_DAY}[T ]{_TIME}$"
ZONED = f"^{_DAY}T{_TIME}(?:Z|[+-](?:0\\d|1[0-4]):[0-5]\\d)$"
_INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TEXTS = frozenset({_TIMESTAMP, pa.date32()})
"""Types that are texts in JSON."""
KINDS = frozenset({*_INTS, pa.float64(), pa.bool_(), pa.string(), *_TEXTS})
"""Types of columns that can be read here."""
Mask = Any
"""A numpy array of bool, a value each."""


class JsonColumns:
    """Of one schema, whose types are among KINDS. `is_utc`: times without a zone are in UTC."""

    def __init__(self, schema: pa.Schema, *, is_utc: bool) -> None:
        self._schema = schema
        self._is_utc = is_utc
        self._parsed = pa.schema(
            [pa.field(f.name, pa.string() if f.type in _TEXTS else f.type) for f in schema]
        )
        self._decoder = msgspec.json.Decoder(_struct_of(schema))

    def read(self, values: pa.Array) -> tuple[pa.Table, Mask]:
        """(the columns of the values that are not in doubt, which these are)."""
        texts, sure = _plain(values)
        found = self._parse(texts, sure)
        for place, field in enumerate(self._schema):
            column = found.column(place).combine_chunks()
            if field.type in _TEXTS:
                column, good = self._of_texts(column, field.type)
            elif field.type == pa.float64():
                good = _no_negative_zero(column)
            else:
                continue
            if not good.all():
                found = found.filter(pa.array(good))
                column = column.filter(pa.array(good))
                sure[np.flatnonzero(sure)[~good]] = False
            found = found.set_column(place, self._schema.field(place), column)
        return found.cast(self._schema), sure

    def _parse(self, texts: pa.Array, sure: Mask) -> pa.Table:
        """The columns of the texts that are sure; those that turn out not to be are taken out."""
        found = self._parsed_all(texts, sure)
        if found is not None:
            return found
        which = np.flatnonzero(sure)
        for n, text in zip(which, texts.filter(pa.array(sure)).to_pylist(), strict=True):
            try:
                self._decoder.decode(text)
            except (msgspec.MsgspecError, RecursionError, ValueError):
                sure[n] = False
        return pa.concat_tables([self._parsed.empty_table(), *self._in_parts(texts, sure)])

    def _in_parts(self, texts: pa.Array, sure: Mask) -> list[pa.Table]:
        """The columns of the texts that are sure, in halves where Arrow refuses one of them. That
        one is taken out, and so are all that are left after PARTS_MAX tries."""
        found, waiting = [], [np.flatnonzero(sure)]
        for _ in range(PARTS_MAX):
            if not waiting:
                break
            which = waiting.pop()
            part: Mask = np.zeros(len(sure), bool)
            part[which] = True
            columns = self._parsed_all(texts, part)
            half = len(which) // 2
            if columns is not None:
                found.append(columns)
            elif half:
                waiting += [which[half:], which[:half]]
            else:
                sure[which] = False
        for which in waiting:
            sure[which] = False
        return found

    def _parsed_all(self, texts: pa.Array, sure: Mask) -> pa.Table | None:
        """None where there is one that Arrow does not take for an object of the schema."""
        if not sure.all():
            texts = texts.filter(pa.array(sure))
        if not len(texts):
            return self._parsed.empty_table()
        lines = pc.binary_join_element_wise(texts, "\n", "")
        data = lines.buffers()[2]
        assert data is not None, len(lines)
        try:
            found = pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._parsed, unexpected_field_behavior="ignore"
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None
        # Two objects in one value are more rows.
        return found if found.num_rows == len(texts) else None

    def _of_texts(self, texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
        """(the column, NULL where the text is in doubt; which texts are not)."""
        if kind == pa.date32():
            return _cast(texts, DATE, kind)
        if not self._is_utc:
            return _cast(texts, ZONED, kind)
        zoned = pc.match_substring_regex(texts, ZONED)
        is_local = pc.sum(zoned).as_py() in {0, None}
        # A column has times of one form, or half of it is in doubt.
        return _cast(texts, LOCAL if is_local else ZONED, kind)


def _cast(texts: pa.Array, form: str, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """(the column, NULL where the text is not of a form; which texts are)."""
    good = pc.or_kleene(pc.match_substring_regex(texts, form), pc.is_null(texts))
    good = pc.fill_null(good, False)
    one = pa.timestamp("us") if form == LOCAL else kind
    try:
        column = pc.if_else(good, texts, None).cast(one)
    except pa.ArrowInvalid:
        # Not every month has as many days as another one.
        days = [
            text.as_py() if is_good.as_py() else None
            for text, is_good in zip(texts, good, strict=True)
        ]
        good = pc.and_(
            good, pa.array([day is None or _is_day(day[:10]) for day in days], pa.bool_())
        )
        column = pc.if_else(good, texts, None).cast(one)
    return column.cast(kind), np.asarray(good)


def _no_negative_zero(column: pa.Array) -> Mask:
    """Spark makes 0.0 of -0, which is a whole number, and -0.0 of -0.0."""
    numbers = column.to_numpy(zero_copy_only=False)
    return ~((numbers == 0) & np.signbit(numbers))


def _is_day(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _plain(values: pa.Array) -> tuple[pa.Array, Mask]:
    """(values as texts, without what is around them; which may be an object that nobody minds)."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array(map(_text, values.to_pylist()), pa.string(), size=len(values))
    texts = pc.ascii_trim(texts, SPACES)
    sure = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    sure = np.asarray(pc.fill_null(sure, False))
    sure = np.array(sure)  # Arrow's memory is not to be written to.
    for text in NO_NUMBERS:
        sure &= ~np.asarray(pc.fill_null(pc.match_substring(texts, text), False))
    long = np.flatnonzero(np.asarray(pc.fill_null(pc.binary_length(texts), 0)) > LONG_BYTES)
    if len(long):
        chosen = texts.take(pa.array(long))
        levels = pc.add(pc.count_substring(chosen, "["), pc.count_substring(chosen, "{"))
        is_deep = pc.greater(levels, LONG_BYTES // 2)
        sure[long[np.asarray(pc.or_(is_deep, pc.match_substring_regex(chosen, DIGITS)))]] = False
    return texts, sure


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _struct_of(schema: pa.Schema) -> Any:
    """What finds values of other types one by one."""
    names = {f"f{n}": field.name for n, field in enumerate(schema)}
    fields = [(f"f{n}", _kind(field.type) | None, None) for n, field in enumerate(schema)]
    return msgspec.defstruct("Row", fields, rename=names)


def _kind(kind: pa.DataType) -> Any:
    if kind in _INTS:
        edge = 1 << (_INTS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-edge, le=edge - 1)]
    if kind == pa.float64():
        return float
    return bool if kind == pa.bool_() else str
