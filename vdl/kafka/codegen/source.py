"""Source text under construction, and facts about types shared by decoder and encoder.

`Run` is the generator's one optimisation: adjacent fields of fixed size on the wire are collected
until a field of variable size follows, and are then read or written by one precompiled
`struct.Struct`. The length in front of a string joins the run before it, and so does the zero that
means that a struct has no tagged fields.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vdl.kafka.codegen.schema import Field

# Kafka's type → the character of `struct`.
STRUCT_CHARACTERS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_BYTES = {"?": 1, "b": 1, "B": 1, "x": 1, "h": 2, "H": 2, "i": 4, "I": 4, "q": 8, "d": 8}
FIXED_BYTES["16s"] = 16
PYTHON_TYPES = {
    "bool": "bool",
    "float64": "float",
    "uuid": "bytes",
    "string": "str",
    "bytes": "bytes",
    "records": "Records",
}
LINE_MAX = 99


@dataclass(slots=True)
class Source:
    """Lines of one function or class, at a current depth of indentation."""

    lines: list[str] = field(default_factory=list)
    depth: int = 1

    def line(self, text: str) -> None:
        """Add one statement, folded if it is a long call."""
        self.lines += fold(text, self.depth * 4)

    def is_too_long(self, text: str) -> bool:
        """Return True if a statement added now would not fit on one line."""
        return self.depth * 4 + len(text) > LINE_MAX

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`, which ends in a colon; statements added inside are one level deeper."""
        self.line(head)
        self.depth += 1
        yield
        self.depth -= 1

    def text(self) -> str:
        return "\n".join(self.lines)


def fold(text: str, indent: int) -> list[str]:
    """Return `text` as lines of at most `LINE_MAX` columns, with its outermost brackets opened if
    necessary."""
    pad = " " * indent
    if indent + len(text) <= LINE_MAX:
        return [pad + text]
    start, end = _widest_brackets(text)
    if start < 0:
        target, _, value = text.partition(" = ")
        return [f"{pad}{target} = (", f"{pad}    {value}", f"{pad})"]
    head, inner, tail = text[: start + 1], text[start + 1 : end], text[end:]
    if indent + 4 + len(inner) <= LINE_MAX:
        return [pad + head, f"{pad}    {inner}", pad + tail]
    lines = [pad + head]
    for argument in _split_arguments(inner):
        lines += fold(argument + ",", indent + 4)
    return [*lines, pad + tail]


def _widest_brackets(text: str) -> tuple[int, int]:
    """Return the positions of the longest outermost pair of brackets, or (-1, -1)."""
    depth, start, best = 0, -1, (-1, -1)
    for position, character in enumerate(text):
        if character in "([":
            if depth == 0:
                start = position
            depth += 1
        elif character in ")]":
            depth -= 1
            if depth == 0 and position - start > best[1] - best[0]:
                best = (start, position)
    return best


def _split_arguments(text: str) -> list[str]:
    depth, start, arguments = 0, 0, []
    for position, character in enumerate(text):
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "," and depth == 0:
            arguments.append(text[start:position].strip())
            start = position + 1
    arguments.append(text[start:].strip())
    return [argument for argument in arguments if argument]


@dataclass(slots=True)
class Structs:
    """The precompiled structs that a module needs; the name contains the layout: `_read_hiq`."""

    readers: set[str] = field(default_factory=set)
    packers: set[str] = field(default_factory=set)
    iterators: set[str] = field(default_factory=set)

    def reader(self, layout: str) -> str:
        self.readers.add(layout)
        return f"_read_{_layout_name(layout)}"

    def packer(self, layout: str) -> str:
        self.packers.add(layout)
        return f"_pack_{_layout_name(layout)}"

    def iterator(self, layout: str) -> str:
        self.iterators.add(layout)
        return f"_iter_{_layout_name(layout)}"

    def definitions(self) -> list[str]:
        """Return the module-level assignments, sorted."""
        kinds = (
            (self.readers, self.reader, "unpack_from"),
            (self.packers, self.packer, "pack"),
            (self.iterators, self.iterator, "iter_unpack"),
        )
        return [
            f'{name(layout)} = Struct(">{layout}").{method}'
            for layouts, name, method in kinds
            for layout in sorted(layouts)
        ]


def _layout_name(layout: str) -> str:
    return layout.replace("?", "t").replace("16s", "u")


def python_type(fact: Field) -> str:
    """Return the annotation of a field: the union over its versions."""
    element = fact.element if fact.is_struct else PYTHON_TYPES.get(fact.element, "int")
    annotation = f"list[{element}]" if fact.is_array else element
    return f"{annotation} | None" if may_be_none(fact) else annotation


def may_be_none(fact: Field) -> bool:
    """Return True if the attribute may hold None in some version."""
    return fact.nullable.first <= fact.nullable.last or default_literal(fact) == "None"


def default_literal(fact: Field) -> str:
    """Return the default as an expression; for lists and structs one that makes a new object.

    A tagged struct is `None` if it was not sent: its default means "not sent" by definition, and
    most partitions of most responses carry none.
    """
    if fact.has_default:
        return repr(fact.default)
    if fact.is_array:
        return "[]"
    if fact.is_struct:
        return "None" if fact.tag >= 0 else f"{fact.element}()"
    by_type = {"bool": "False", "float64": "0.0", "string": '""', "bytes": 'b""'}
    by_type |= {"uuid": "ZERO_UUID", "records": "None"}
    return by_type.get(fact.type, "0")


def is_default(fact: Field, expression: str) -> tuple[str, str]:
    """Return conditions `(differs, equals)` of `expression` against the field's default."""
    default = default_literal(fact)
    if default == "None":
        return f"{expression} is not None", f"{expression} is None"
    if default in ("[]", '""', 'b""', "False", "0", "0.0"):
        return expression, f"not {expression}"
    if default == "True":
        return f"not {expression}", expression
    return f"{expression} != {default}", f"{expression} == {default}"


def min_bytes(fact: Field, version: int, *, is_flexible: bool) -> int:
    """Return the fewest bytes of one element of the field, which bounds a plausible count."""
    if fact.is_struct:
        return min_struct_bytes(fact.fields, version, is_flexible=is_flexible)
    character = STRUCT_CHARACTERS.get(fact.element)
    if character is not None:
        return FIXED_BYTES[character]
    if is_flexible:
        return 1
    return 2 if fact.element == "string" else 4


def min_struct_bytes(fields: tuple[Field, ...], version: int, *, is_flexible: bool) -> int:
    """Return the fewest bytes of a struct."""
    total = 1 if is_flexible else 0
    for fact in fields:
        if version not in fact.versions or version in fact.tagged:
            continue
        if fact.is_array:
            total += 1 if is_flexible else 4
        elif fact.is_struct and version in fact.nullable:
            total += 1
        else:
            total += min_bytes(fact, version, is_flexible=is_flexible)
    return total


def is_plain(fact: Field) -> bool:
    """Return True for a single value of fixed size."""
    return not fact.is_array and not fact.is_struct and fact.type in STRUCT_CHARACTERS
