"""Conversion of JSON objects to Arrow columns, a batch at a time.

Spark's `from_json` is the reference: a table must have its results, no matter which decoder ran.
Arrow's parser is faster and stricter. A value that it accepts, of the types and forms here, has
Spark's result. Any other value is in doubt and left to Spark: values that are not objects, have
other types than the schema, duplicate members, numbers that are invalid in JSON, or deep nesting.
`tests/pipeline/test_json_columns.py` compares both.

Objects are parsed end to end, separated by line feeds. Each begins and ends with a brace, so none
can continue in the next: a line feed within a string is an error, and elsewhere an object cannot
follow another one.

Does not depend on Spark or on records.
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
"""White space of JSON; ASCII has more."""
LONG_BYTES = 1_000
"""Values up to this length cannot have the nesting or long numbers that Spark's parser rejects."""
NO_NUMBERS = ("NaN", "Inf")
"""Parts of non-finite numbers, of which both parsers accept some spellings, but different ones."""
SEEN_BYTES = 100_000
"""Longer values are not looked at one by one."""
TRUNCATED = "Input data was truncated"
"""Message of msgspec for a text that is valid as far as it goes."""
DIGITS = "[0-9.eE+-]{900}"
PARTS_MAX = 1_000
"""Limit on parts of a batch that are tried if Arrow rejects a value for its form, not its types."""
_DAY = r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
DATE = f"^{_DAY}$"
LOCAL = f"^{_DAY}[T ]{_TIME}$"
ZONED = f"^{_DAY}T{_TIME}(?:Z|[+-](?:0\\d|1[0-4]):[0-5]\\d)$"
_INTS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_STRICT = frozenset({*_INTS, pa.float64(), pa.bool_()})
_TEXTS = frozenset({_TIMESTAMP, pa.date32()})
"""Types that are strings in JSON."""
KINDS = frozenset({*_INTS, pa.float64(), pa.bool_(), pa.string(), *_TEXTS})
"""Column types that can be read here."""
Mask = Any
"""Numpy array of bool, one for each value."""


class JsonColumns:
    """Reader of one schema, whose types are among KINDS.

    `is_utc`: times without a zone are in UTC.
    """

    def __init__(self, schema: pa.Schema, *, is_utc: bool) -> None:
        self._schema = schema
        self._is_utc = is_utc
        self._parsed = pa.schema(
            [pa.field(f.name, pa.string() if f.type in _TEXTS else f.type) for f in schema]
        )
        self._decoder = msgspec.json.Decoder(_struct_of(schema))

    def read(self, values: pa.Array) -> tuple[pa.Table, Mask]:
        """Return (columns of the values that are not in doubt, mask of these values)."""
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
        """Return the columns of the texts in `sure`, after removing those in doubt from it."""
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
        """Return the columns of the texts in `sure`, halving where Arrow rejects one.

        A rejected text is removed from `sure`; so are all that remain after PARTS_MAX tries.
        """
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
        """Return the columns, or None if Arrow rejects a text as an object of the schema."""
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
        # Two objects in one value make extra rows.
        return found if found.num_rows == len(texts) else None

    def _of_texts(self, texts: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Mask]:
        """Return (the column, NULL for texts in doubt; mask of the others)."""
        if kind == pa.date32():
            return _cast(texts, DATE, kind)
        if not self._is_utc:
            return _cast(texts, ZONED, kind)
        zoned = pc.match_substring_regex(texts, ZONED)
        is_local = pc.sum(zoned).as_py() in {0, None}
        # A column has times of one form; otherwise those of the other form are in doubt.
        return _cast(texts, LOCAL if is_local else ZONED, kind)


def _cast(texts: pa.Array, form: str, kind: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return (the column, NULL for texts that do not match a form; mask of those that do)."""
    good = pc.or_kleene(pc.match_substring_regex(texts, form), pc.is_null(texts))
    good = pc.fill_null(good, False)
    one = pa.timestamp("us") if form == LOCAL else kind
    try:
        column = pc.if_else(good, texts, None).cast(one)
    except pa.ArrowInvalid:
        # Months differ in length.
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
    """Return the mask of values other than -0.0.

    Spark converts -0, a whole number, to 0.0, but -0.0 to -0.0.
    """
    numbers = column.to_numpy(zero_copy_only=False)
    return ~((numbers == 0) & np.signbit(numbers))


def _is_day(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


class Unreadable:
    """Detector of values that Spark certainly cannot read as objects of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._kinds = {f.name: f.type for f in schema if f.type in _STRICT}
        self._decoder = msgspec.json.Decoder()

    def find(self, values: pa.Array) -> pa.Array:
        """Return the mask of such values; it has False for NULL."""
        return pa.array([self._is(one.as_py()) for one in values], pa.bool_())

    def _is(self, value: bytes | None) -> bool:
        if value is None or len(value) > SEEN_BYTES:
            return False
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return False
        text = text.strip(SPACES)
        if not text.startswith("{"):
            # Spark takes an object from an array, too; all else that is printable is no object.
            return "!" <= text[:1] <= "~" and text[0] != "["
        try:
            found = self._decoder.decode(text)
        except (msgspec.MsgspecError, RecursionError) as error:
            # It says so of half a surrogate pair, too, which Spark reads.
            return str(error) == TRUNCATED and "\\u" not in text
        return any(_is_wrong(found.get(name), kind) for name, kind in self._kinds.items())


def _is_wrong(value: Any, kind: pa.DataType) -> bool:
    """Return True if a member certainly cannot be in a column of a type in _STRICT."""
    if isinstance(value, list | dict):
        return True
    if isinstance(value, str):
        # NaN and the names of the infinities are numbers for Spark.
        return kind != pa.float64() or not {"N", "I"} & set(value)
    return isinstance(value, bool) and kind != pa.bool_()


def _plain(values: pa.Array) -> tuple[pa.Array, Mask]:
    """Return (values as trimmed texts, mask of those that may be unproblematic objects)."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = pa.array(map(_text, values.to_pylist()), pa.string(), size=len(values))
    texts = pc.ascii_trim(texts, SPACES)
    sure = pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))
    sure = np.asarray(pc.fill_null(sure, False))
    sure = np.array(sure)  # Arrow's memory is read-only.
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
    """Return a msgspec type that finds values of other types one by one."""
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
