"""Generator of `encode`: one straight-line function for one layout of one message.

Small fields are gathered in one `bytearray`; a records field ends it, goes into the list of buffers
as it is, and a new `bytearray` begins. Nothing large is ever copied.

As in Kafka's own encoder, a field that does not exist in the version is left out if the schema
calls it ignorable; otherwise it must hold its default (`UnsupportedField`).
"""

from dataclasses import dataclass, field

from vdl.kafka.codegen.schema import NEVER, Field, Message, snake_case
from vdl.kafka.codegen.source import (
    STRUCT_CHARACTERS,
    Source,
    Structs,
    is_default,
    is_plain,
    may_be_none,
)


@dataclass(slots=True)
class _WriteRun:
    """Adjacent writes of fixed size, not yet written out; `out` is the buffer they go to."""

    source: Source
    structs: Structs
    out: str = "out"
    characters: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)

    def add(self, character: str, value: str) -> None:
        self.characters.append(character)
        if character != "x":
            self.values.append(value)

    def flush(self) -> None:
        if not self.characters:
            return
        if self.characters == ["B"]:
            self.source.line(f"{self.out}.append({self.values[0]})")
        elif self.characters == ["x"]:
            self.source.line(f"{self.out}.append(0)")
        else:
            packer = self.structs.packer("".join(self.characters))
            self.source.line(f"{self.out} += {packer}({', '.join(self.values)})")
        self.characters.clear()
        self.values.clear()


class Encoder:
    """Writes the body of one encode function."""

    def __init__(
        self, message: Message, version: int, structs: Structs, *, is_inlined: bool
    ) -> None:
        """`is_inlined`: write strings and counts in line instead of by calls."""
        self._message = message
        self._version = version
        self._is_flexible = version in message.flexible
        self._source = Source()
        self._run = _WriteRun(self._source, structs)
        self._structs = structs
        self._structs_begun = 0
        self._is_inlined = is_inlined
        self._has_records = _has_records(message.fields, version)

    def body(self) -> str:
        """Return the function's statements."""
        if self._has_records:
            self._source.line("buffers: list[Buffer] = []")
        self._source.line("out = bytearray()")
        self._struct(self._message.fields, "message")
        if self._has_records:
            with self._source.block("if out:"):
                self._source.line("buffers.append(out)")
            self._source.line("return buffers")
        else:
            self._source.line("return [out]")
        return self._source.text()

    def _struct(self, fields: tuple[Field, ...], owner: str) -> None:
        number = self._structs_begun
        self._structs_begun += 1
        tagged = []
        for fact in fields:
            expression = f"{owner}.{fact.attribute}"
            if self._version not in fact.versions:
                if not fact.ignorable:
                    with self._source.block(f"if {is_default(fact, expression)[0]}:"):
                        self._source.line(f'raise UnsupportedField("{fact.name}")')
            elif self._version in fact.tagged:
                tagged.append(fact)
            else:
                self._field(fact, expression, f"{fact.attribute}{number}")
        if self._is_flexible:
            self._tagged_fields(sorted(tagged, key=lambda fact: fact.tag), owner, number)
        self._run.flush()

    def _field(self, fact: Field, expression: str, local: str) -> None:
        if is_plain(fact):
            self._run.add(STRUCT_CHARACTERS[fact.type], expression)
        elif fact.is_array:
            self._array(fact, expression, local)
        elif fact.is_struct:
            self._lone_struct(fact, expression, local)
        else:
            self._sized(fact, expression, local)

    def _lone_struct(self, fact: Field, expression: str, local: str) -> None:
        source = self._source
        if self._version not in fact.nullable:
            source.line(f"{local} = {expression}")
            self._struct(fact.fields, local)
            return
        self._run.flush()
        source.line(f"{local} = {expression}")
        with source.block(f"if {local} is None:"):
            source.line(f"{self._run.out}.append(255)")
        with source.block("else:"):
            source.line(f"{self._run.out}.append(1)")
            self._struct(fact.fields, local)

    def _length(self, character: str) -> None:
        """Write the length or count in `n`."""
        if not self._is_flexible:
            self._run.add(character, "n")
            self._run.flush()
            return
        self._run.flush()
        out = self._run.out
        with self._source.block("if n < 127:"):
            self._source.line(f"{out}.append(n + 1)")
        with self._source.block("else:"):
            write = "write_string_length" if character == "h" else "write_uvarint"
            self._source.line(f"{out} += {write}(n + 1)")

    def _sized(self, fact: Field, expression: str, local: str) -> None:
        """Write a string, bytes or records that is a field of its own."""
        source = self._source
        is_nullable = self._version in fact.nullable
        if fact.type == "records":
            self._records(expression, is_nullable=is_nullable)
            return
        if not may_be_none(fact):
            self._text_or_bytes(fact.type, expression)
            return
        if is_nullable and fact.type == "string" and not self._is_inlined:
            self._run.flush()
            put = self._helper("nullable_string")
            source.line(f"{self._run.out} += {put}({expression})")
            return
        source.line(f"{local} = {expression}")
        with source.block(f"if {local} is None:"):
            if is_nullable:
                source.line('raw = b""')
                source.line("n = -1")
            else:
                source.line(f'raise UnsupportedField("{fact.name}")')
        with source.block("else:"):
            source.line(f"raw = {local}" + (".encode()" if fact.type == "string" else ""))
            source.line("n = len(raw)")
        self._length("h" if fact.type == "string" else "i")
        source.line(f"{self._run.out} += raw")

    def _helper(self, what: str) -> str:
        """Name of the function of `runtime` that makes the bytes of a field of this form."""
        return f"put_{'compact_' if self._is_flexible else ''}{what}"

    def _text_or_bytes(self, type_: str, expression: str) -> None:
        if type_ == "string" and not self._is_inlined:
            self._run.flush()
            self._source.line(f"{self._run.out} += {self._helper('string')}({expression})")
            return
        self._source.line(f"raw = {expression}" + (".encode()" if type_ == "string" else ""))
        self._source.line("n = len(raw)")
        self._length("h" if type_ == "string" else "i")
        self._source.line(f"{self._run.out} += raw")

    def _records(self, expression: str, *, is_nullable: bool) -> None:
        """Add records to the list of buffers as they are, one buffer or many."""
        source = self._source
        assert self._run.out == "out", "records inside a tagged field"
        source.line(f"records = {expression}")
        with source.block("if records is None:"):
            if is_nullable:
                source.line("pieces: list[Buffer] = []")
                source.line("n = -1")
            else:
                source.line('raise UnsupportedField("Records")')
        with source.block("else:"):
            source.line("pieces = records if isinstance(records, list) else [records]")
            source.line("n = sum(map(len, pieces))")
        self._length("i")
        with source.block("if n > 0:"):
            source.line("buffers.append(out)")
            source.line("buffers += pieces")
            source.line("out = bytearray()")

    def _array(self, fact: Field, expression: str, local: str) -> None:
        source = self._source
        if local != expression:
            source.line(f"{local} = {expression}")
        if self._version in fact.nullable:
            source.line(f"n = -1 if {local} is None else len({local})")
            self._length("i")
            with source.block(f"if {local}:"):
                self._elements(fact, local)
        else:
            if may_be_none(fact):
                with source.block(f"if {local} is None:"):
                    source.line(f'raise UnsupportedField("{fact.name}")')
            if self._is_inlined:
                source.line(f"n = len({local})")
                self._length("i")
            else:
                self._run.flush()
                source.line(f"{self._run.out} += {self._helper('count')}(len({local}))")
            self._elements(fact, local)

    def _elements(self, fact: Field, local: str) -> None:
        source = self._source
        character = STRUCT_CHARACTERS.get(fact.element)
        if character is not None and not fact.is_struct:
            pack = self._structs.packer(character)
            source.line(f'{self._run.out} += b"".join(map({pack}, {local}))')
            return
        inner = f"{snake_case(fact.element)}{self._structs_begun}"
        with source.block(f"for {inner} in {local}:"):
            if fact.is_struct:
                self._struct(fact.fields, inner)
            else:
                self._text_or_bytes(fact.element, inner)

    def _tagged_fields(self, tagged: list[Field], owner: str, number: int) -> None:
        """Write a count, then `tag, length, value` of each field that differs from its default."""
        if not tagged:
            self._run.add("x", "")
            return
        source = self._source
        conditions = []
        for fact in tagged:
            assert not fact.is_struct or fact.nullable == NEVER, "a null tagged struct"
            local = f"{fact.attribute}{number}"
            source.line(f"{local} = {owner}.{fact.attribute}")
            conditions.append(is_default(fact, local)[0])
        counted = [c if " " in c else f"bool({c})" for c in conditions]
        source.line(f"n = int({counted[0]})")
        for condition in counted[1:]:
            source.line(f"n += {condition}")
        self._run.add("B", "n")
        self._run.flush()
        with source.block("if n:"):
            for fact, condition in zip(tagged, conditions, strict=True):
                with source.block(f"if {condition}:"):
                    self._tagged_field(fact, f"{fact.attribute}{number}", f"tagged{number}")

    def _tagged_field(self, fact: Field, local: str, buffer: str) -> None:
        """Write `tag, length, value` of one field, already in a local and not its default."""
        source = self._source
        outer = self._run.out
        self._run.out = buffer
        source.line(f"{buffer} = bytearray()")
        if fact.is_struct and not fact.is_array:
            self._struct(fact.fields, local)
        elif is_plain(fact) or fact.is_array:
            self._field(fact, local, local)
        else:
            self._text_or_bytes(fact.type, local)
        self._run.flush()
        source.line(f"{outer}.append({fact.tag})")
        source.line(f"{outer} += write_uvarint(len({buffer}))")
        source.line(f"{outer} += {buffer}")
        self._run.out = outer


def _has_records(fields: tuple[Field, ...], version: int) -> bool:
    return any(
        version in fact.versions and (fact.type == "records" or _has_records(fact.fields, version))
        for fact in fields
    )
