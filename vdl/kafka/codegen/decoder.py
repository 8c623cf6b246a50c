"""Generator of `decode`: one straight-line function for one layout of one message.

Nested structs are decoded in place, in loops, without a call for each. Locals carry the number of
the struct they belong to (`topics0`, `index2`), so that they collide neither with each other nor
with the helpers `view`, `pos`, `size`, `end`, `n`.

Protection of the server against hostile senders, all of it in the generated text:
- reads of fixed size cannot pass the end (`unpack_from` and indexing check; the wrapper turns their
  error into `ShortBuffer`);
- a length is compared with the remaining bytes before it is used, and a count times the smallest
  element likewise before a list is filled;
- elements of arrays are counted over the whole message, and with them other costly items: tagged
  fields in them, and long texts. As objects they take up to a hundred times their bytes
  (`held.py`), and a frame may have 100 MiB. The caller gives the limit (`budget`);
- text that is not UTF-8 is replaced, as Kafka does; unknown tagged fields are skipped, never kept.
"""

from dataclasses import dataclass, field

from vdl.kafka.codegen.schema import Field, Message
from vdl.kafka.codegen.source import (
    FIXED_BYTES,
    STRUCT_CHARACTERS,
    Source,
    Structs,
    default_literal,
    is_plain,
    min_bytes,
    python_type,
)


@dataclass(slots=True)
class _ReadRun:
    """Adjacent reads of fixed size, not yet written out."""

    source: Source
    structs: Structs
    characters: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def add(self, character: str, target: str) -> None:
        self.characters.append(character)
        self.targets.append(target)

    def flush(self) -> None:
        if not self.characters:
            return
        width = sum(FIXED_BYTES[character] for character in self.characters)
        if self.characters == ["B"]:
            self.source.line(f"{self.targets[0]} = view[pos]")
        elif self.characters == ["?"]:
            self.source.line(f"{self.targets[0]} = view[pos] != 0")
        else:
            reader = self.structs.reader("".join(self.characters))
            if len(self.targets) == 1:
                self.source.line(f"{self.targets[0]} = {reader}(view, pos)[0]")
            else:
                targets = ", ".join(self.targets)
                text = f"{targets} = {reader}(view, pos)"
                if self.source.is_too_long(text):
                    text = f"({targets}) = {reader}(view, pos)"  # brackets can be folded
                self.source.line(text)
        self.source.line(f"pos += {width}")
        self.characters.clear()
        self.targets.clear()


class Decoder:
    """Writes the body of one decode function."""

    def __init__(
        self, message: Message, version: int, structs: Structs, *, is_inlined: bool
    ) -> None:
        """`is_inlined`: read strings and counts in line instead of by calls."""
        self._message = message
        self._version = version
        self._is_flexible = version in message.flexible
        self._structs = structs
        self._source = Source()
        self._run = _ReadRun(self._source, structs)
        self._structs_begun = 0
        self._arrays_open = 0
        self._is_inlined = is_inlined

    def body(self) -> str:
        """Return the function's statements."""
        fields = self._message.fields
        if self._is_flexible or any(self._version in fact.versions for fact in fields):
            self._source.line("pos = 0")
            self._source.line("size = len(view)")
        made = self._struct(self._message.name, fields)
        self._source.line(f"return {made}")
        return self._source.text()

    def _struct(self, name: str, fields: tuple[Field, ...]) -> str:
        """Decode a struct's fields into locals; return the expression that builds it."""
        number = self._structs_begun
        self._structs_begun += 1
        arguments = []
        tagged = []
        for fact in fields:
            local = f"{fact.attribute}{number}"
            if self._version not in fact.versions:
                arguments.append(default_literal(fact))
                continue
            arguments.append(local)
            if self._version in fact.tagged:
                tagged.append(fact)
            else:
                self._field(fact, local)
        if self._is_flexible:
            self._tagged_fields(sorted(tagged, key=lambda fact: fact.tag), number)
        self._run.flush()
        return f"{name}({', '.join(arguments)})"

    def _field(self, fact: Field, local: str) -> None:
        if is_plain(fact):
            self._run.add(STRUCT_CHARACTERS[fact.type], local)
        elif fact.is_array:
            self._array(fact, local)
        elif fact.is_struct:
            self._lone_struct(fact, local)
        else:
            self._sized(fact, fact.type, local, is_nullable=self._version in fact.nullable)

    def _lone_struct(self, fact: Field, local: str) -> None:
        if self._version not in fact.nullable:
            self._source.line(f"{local} = {self._struct(fact.element, fact.fields)}")
            return
        self._run.add("b", "n")
        self._run.flush()
        self._source.line(f"{local} = None")
        with self._source.block("if n >= 0:"):
            self._source.line(f"{local} = {self._struct(fact.element, fact.fields)}")

    def _length(self, character: str, *, is_string: bool = False) -> None:
        """Read a length or count into `n`; null is negative."""
        self._run.add("B" if self._is_flexible else character, "n")
        self._run.flush()
        if self._is_flexible:
            with self._source.block("if n > 127:"):
                read = "read_string_length" if is_string else "read_uvarint"
                self._source.line(f"n, pos = {read}(view, pos, n)")
            self._source.line("n -= 1")

    def _sized(self, fact: Field, type_: str, local: str, *, is_nullable: bool) -> None:
        """Read a string, bytes or records: a length, then that many bytes."""
        source = self._source
        if type_ == "string" and not self._is_inlined:
            self._run.flush()
            take = self._helper("string", is_nullable=is_nullable)
            target = f"{local}, pos, budget"
            source.line(f'{target} = {take}(view, pos, size, budget, "{fact.name}")')
            return
        self._length("h" if type_ == "string" else "i", is_string=type_ == "string")
        take = {
            "string": 'view[pos:end].tobytes().decode("utf-8", "replace")',
            "bytes": "view[pos:end].tobytes()",
            "records": "view[pos:end]",
        }[type_]
        bad = f'raise bad_length("{fact.name}", n, size - pos)'
        if is_nullable:
            with source.block("if n < 0:"):
                source.line(f"{local} = None")
            with source.block("else:"):
                source.line("end = pos + n")
                with source.block("if end > size:"):
                    source.line(bad)
                self._count_text(fact, type_)
                source.line(f"{local} = {take}")
                source.line("pos = end")
            return
        source.line("end = pos + n")
        with source.block("if not pos <= end <= size:"):
            source.line(bad)
        self._count_text(fact, type_)
        source.line(f"{local} = {take}")
        source.line("pos = end")

    def _count_text(self, fact: Field, type_: str) -> None:
        """Count long text in arrays: it takes the time of many elements. There is little outside of
        arrays."""
        if type_ == "string" and self._arrays_open:
            head = "if n > TEXT_BYTES and (budget := budget - n // TEXT_BYTES) < 0:"
            with self._source.block(head):
                self._source.line(f'raise TooManyElements("{fact.name}", n)')

    def _array(self, fact: Field, local: str) -> None:
        source = self._source
        least = min_bytes(fact, self._version, is_flexible=self._is_flexible)
        assert least >= 1, f"elements of {fact.name} may be empty"
        if not self._is_inlined and self._version not in fact.nullable:
            self._run.flush()
            take = self._helper("count")
            arguments = f'view, pos, size, budget, {least}, "{fact.name}"'
            source.line(f"n, pos, budget = {take}({arguments})")
            self._elements(fact, local)
            return
        self._length("i")
        scaled = "n" if least == 1 else f"n * {least}"
        bad = f'raise bad_length("{fact.name}", n, size - pos)'
        if self._version in fact.nullable:
            with source.block("if n < 0:"):
                source.line(f"{local} = None")
            with source.block("else:"):
                with source.block(f"if {scaled} > size - pos:"):
                    source.line(bad)
                self._count_elements(fact)
                self._elements(fact, local)
            return
        with source.block(f"if not 0 <= {scaled} <= size - pos:"):
            source.line(bad)
        self._count_elements(fact)
        self._elements(fact, local)

    def _helper(self, what: str, *, is_nullable: bool = False) -> str:
        """Name of the function of `runtime` that takes a field of this form."""
        compact = "compact_" if self._is_flexible else ""
        return f"take_{compact}{'nullable_' if is_nullable else ''}{what}"

    def _count_elements(self, fact: Field) -> None:
        self._source.line("budget -= n")
        with self._source.block("if budget < 0:"):
            self._source.line(f'raise TooManyElements("{fact.name}", n)')

    def _elements(self, fact: Field, local: str) -> None:
        source = self._source
        character = STRUCT_CHARACTERS.get(fact.element)
        if character is not None and not fact.is_struct:
            source.line(f"end = pos + n * {FIXED_BYTES[character]}")
            source.line(
                f"{local} = [x for x, in {self._structs.iterator(character)}(view[pos:end])]"
            )
            source.line("pos = end")
            return
        source.line(f"{local} = []")
        self._arrays_open += 1
        with source.block("for _ in range(n):"):
            if fact.is_struct:
                made = self._struct(fact.element, fact.fields)
            else:
                made = f"{local}_each"
                self._sized(fact, fact.element, made, is_nullable=False)
            source.line(f"{local}.append({made})")
        self._arrays_open -= 1

    def _count_tagged_fields(self) -> None:
        if self._arrays_open:
            with self._source.block("if (budget := budget - n) < 0:"):
                self._source.line('raise TooManyElements("tagged fields", n)')

    def _tagged_fields(self, tagged: list[Field], number: int) -> None:
        source = self._source
        self._run.add("B", "n")
        self._run.flush()
        if not tagged:
            with source.block("if n:"):
                self._count_tagged_fields()
                source.line("pos = skip_tagged_fields(view, pos, n, size)")
            return
        for fact in tagged:
            annotation = f": {python_type(fact)}" if fact.is_array or fact.is_struct else ""
            source.line(f"{fact.attribute}{number}{annotation} = {default_literal(fact)}")
        with source.block("if n:"):
            source.line("n, pos = read_tag_count(view, pos, n, size)")
            self._count_tagged_fields()
            with source.block("for _ in range(n):"):
                source.line(f"tag, pos, tag_end{number} = read_tag(view, pos, size)")
                for position, fact in enumerate(tagged):
                    with source.block(f"{'elif' if position else 'if'} tag == {fact.tag}:"):
                        self._field(fact, f"{fact.attribute}{number}")
                        self._run.flush()
                with source.block("else:"):
                    source.line(f"pos = tag_end{number}")
                with source.block(f"if pos != tag_end{number}:"):
                    source.line(f"raise BadTaggedField(tag, pos - tag_end{number})")
