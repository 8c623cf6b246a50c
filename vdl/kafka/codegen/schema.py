"""In-memory form of the facts about a message: read from and written to `facts/*.json`.

A field has the versions in which it exists, those in which it may be null, and those in which it is
a tagged field. Versions are inclusive ranges; an open end is `VERSION_MAX`. Nothing here depends on
the generated code.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

VERSION_MAX = 32767
Default = str | int | float | bool | None
FACTS = Path(__file__).parent / "facts"


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; `first > last` means none."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Versions":
        """Read Kafka's notation: `3`, `0-4`, `2+` or `none`."""
        if text == "none":
            return NEVER
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __str__(self) -> str:
        if self.first > self.last:
            return "none"
        if self.last == VERSION_MAX:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


NEVER = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message. `type` is Kafka's: `int32`, `[]string`, `[]FetchTopic`, `records`."""

    name: str
    type: str
    versions: Versions
    nullable: Versions = NEVER
    tagged: Versions = NEVER
    tag: int = -1
    default: Default = None
    has_default: bool = False
    ignorable: bool = False
    fields: tuple["Field", ...] = ()

    @property
    def attribute(self) -> str:
        """The field's name in Python."""
        return snake_case(self.name)

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element(self) -> str:
        """The type without the array marker."""
        return self.type.removeprefix("[]")

    @property
    def is_struct(self) -> bool:
        """True when the field, or each of its elements, is a struct."""
        return bool(self.fields)


@dataclass(frozen=True, slots=True)
class Message:
    """A request, a response, or a blob that travels inside one (`ConsumerProtocolAssignment`)."""

    name: str
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Api:
    """One facts file: an API with its two messages, or (`key == -1`) a lone blob."""

    name: str
    key: int
    messages: tuple[Message, ...]


def snake_case(name: str) -> str:
    """`ISRNodes` → `isr_nodes`, `TopicId` → `topic_id`."""
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def load_all(folder: Path = FACTS) -> list[Api]:
    """Return every API of the facts, by key; blobs come first."""
    apis = [load(path) for path in sorted(folder.glob("*.json"))]
    return sorted(apis, key=lambda api: (api.key, api.name))


def load(path: Path) -> Api:
    """Read one facts file."""
    facts = json.loads(path.read_text())
    messages = tuple(
        Message(
            name=message["name"],
            versions=Versions.parse(message["versions"]),
            flexible=Versions.parse(message["flexible"]),
            fields=tuple(map(_field_from_json, message["fields"])),
        )
        for message in facts["messages"]
    )
    return Api(facts["name"], facts["key"], messages)


def _field_from_json(facts: dict) -> Field:  # type: ignore[type-arg]  # json's own shape
    return Field(
        name=facts["name"],
        type=facts["type"],
        versions=Versions.parse(facts["versions"]),
        nullable=Versions.parse(facts.get("nullable", "none")),
        tagged=Versions.parse(facts.get("tagged", "none")),
        tag=facts.get("tag", -1),
        default=facts.get("default"),
        has_default="default" in facts,
        ignorable=facts.get("ignorable", False),
        fields=tuple(map(_field_from_json, facts.get("fields", ()))),
    )


def dump(api: Api) -> str:
    """Return the facts file of `api`: JSON with one field a line, so that a diff reads well."""
    lines = ["{", f'  "name": {json.dumps(api.name)},', f'  "key": {api.key},', '  "messages": [']
    for message in api.messages:
        lines.append(
            f'    {{"name": {json.dumps(message.name)}, "versions": "{message.versions}", '
            f'"flexible": "{message.flexible}", "fields": ['
        )
        lines += _fields_to_json(message.fields, "      ")
        lines.append("    ]}" + ("," if message is not api.messages[-1] else ""))
    return "\n".join([*lines, "  ]", "}", ""])


def _fields_to_json(fields: tuple[Field, ...], indent: str) -> list[str]:
    lines: list[str] = []
    for position, field in enumerate(fields):
        facts: dict[str, object] = {
            "name": field.name,
            "type": field.type,
            "versions": str(field.versions),
        }
        if field.nullable != NEVER:
            facts["nullable"] = str(field.nullable)
        if field.tag >= 0:
            facts["tag"] = field.tag
            facts["tagged"] = str(field.tagged)
        if field.has_default:
            facts["default"] = field.default
        if field.ignorable:
            facts["ignorable"] = True
        text = json.dumps(facts)
        comma = "," if position < len(fields) - 1 else ""
        if not field.fields:
            lines.append(f"{indent}{text}{comma}")
            continue
        lines.append(f'{indent}{text[:-1]}, "fields": [')
        lines += _fields_to_json(field.fields, indent + "  ")
        lines.append(f"{indent}]}}{comma}")
    return lines
