"""Random messages made from the facts, for the codec's tests, and their form in Kafka's JSON.

The generator and this module read the same facts and share nothing else. A sample and its JSON are
each built by walking the fields, so that the bytes of Kafka's own codec for the JSON can be
compared with those of this one.
"""

import base64
import random
from importlib import import_module
from types import ModuleType
from typing import Any

from vdl.kafka.codegen.schema import Api, Field, Message, snake_case

INTEGER_BITS = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "uint32": 32, "int64": 63}
ELEMENTS_MAX = 3
TEXTS = ("", "a", "topic-1", "é🙂", "x" * 126, "y" * 127, "z" * 300, "nul\0")


def wire_module(api: Api) -> ModuleType:
    """Return the generated module of an API."""
    return import_module(f"vdl.kafka.wire.{snake_case(api.name)}")


def side_of(api: Api, message: Message) -> str:
    """Return the suffix of the module's functions for this message: `_request`, `_response` or
    none."""
    return "" if api.key < 0 else f"_{snake_case(message.name.removeprefix(api.name))}"


class Sampler:
    """Makes messages from a random source.

    `is_modest` keeps numbers small and positive, for codecs that give them a meaning (error codes
    that exist, times that a calendar has).
    """

    def __init__(self, rng: random.Random, *, is_modest: bool = False) -> None:
        self._rng = rng
        self._is_modest = is_modest

    def message(self, api: Api, message: Message, version: int) -> Any:
        """Return an instance of the message's dataclass whose fields the version can carry."""
        module = wire_module(api)
        return self._struct(module, getattr(module, message.name), message.fields, version)

    def _struct(
        self,
        module: ModuleType,
        cls: Any,
        fields: tuple[Field, ...],
        version: int,
    ) -> Any:
        values = {}
        for field in fields:
            if version in field.versions:
                name = field.attribute
                value = self._field(module, cls, field, version)
                # Kafka does not send a tagged struct that holds only defaults.
                is_lone_tagged = field.tag >= 0 and field.is_struct and not field.is_array
                if is_lone_tagged and value == type(value)():
                    value = None
                values[name] = value
        return cls(**values)

    def _field(
        self,
        module: ModuleType,
        cls: Any,
        field: Field,
        version: int,
    ) -> Any:
        rng = self._rng
        if version in field.nullable and rng.random() < 0.25:
            return None
        if version in field.tagged and rng.random() < 0.3:
            return getattr(cls(), field.attribute)
        if field.is_array:
            count = rng.randint(0, ELEMENTS_MAX)
            if not field.is_struct and rng.random() < 0.1:
                count = 130
            return [self._element(module, cls, field, version) for _ in range(count)]
        return self._element(module, cls, field, version)

    def _element(
        self,
        module: ModuleType,
        cls: Any,
        field: Field,
        version: int,
    ) -> Any:
        if field.is_struct:
            return self._struct(module, _struct_class(module, cls, field), field.fields, version)
        return self.scalar(field.element)

    def scalar(self, type_: str) -> Any:
        """Return a value of one of Kafka's types, often an extreme one."""
        rng = self._rng
        if type_ in INTEGER_BITS:
            if self._is_modest:
                return rng.randint(0, 100)
            bits = INTEGER_BITS[type_]
            low = 0 if type_.startswith("u") else -(1 << bits)
            high = (1 << bits) - 1
            return rng.choice((low, high, 0, 1, rng.randint(low, high)))
        match type_:
            case "bool":
                return rng.random() < 0.5
            case "float64":
                return rng.uniform(-1e9, 1e9)
            case "uuid":
                return rng.randbytes(16)
            case "string":
                return rng.choice(TEXTS)
            case "bytes" | "records":
                return rng.randbytes(rng.choice((0, 1, 5, 126, 127, 300)))
        raise AssertionError(f"no sample of {type_}")


def _struct_class(module: ModuleType, cls: Any, field: Field) -> Any:
    """Return the generated class of a struct field, from the annotation: it may have been
    renamed."""
    annotation = cls.__annotations__[field.attribute]
    while getattr(annotation, "__args__", None):
        annotation = annotation.__args__[0]
    assert annotation.__module__ == module.__name__, annotation
    return annotation


def to_json(fields: tuple[Field, ...], value: Any, version: int) -> dict[str, Any]:
    """Return a struct as Kafka's JSON converters write it: tagged fields only if they differ."""
    result: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        item = getattr(value, field.attribute)
        if version in field.tagged and item == getattr(type(value)(), field.attribute):
            continue
        name = field.name[0].lower() + field.name[1:]
        if item is None:
            result[name] = None
        elif field.is_array:
            result[name] = [_json_element(field, each, version) for each in item]
        else:
            result[name] = _json_element(field, item, version)
    return result


def _json_element(field: Field, value: Any, version: int) -> Any:
    if field.is_struct:
        return to_json(field.fields, value, version)
    match field.element:
        case "uuid":
            return base64.urlsafe_b64encode(value).decode().rstrip("=")
        case "bytes" | "records":
            return base64.b64encode(value).decode()
    return value
