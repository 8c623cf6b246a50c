"""Conversion of Protobuf's binary form to JSON, by the writer's .proto file.

The schema's id is followed by the value's message type in the file: a count and that number of
indexes, zigzag varints, from the outermost message type to the innermost; a lone zero is the first
message type. Members have the names of the file. Bytes become base64, enums their names, a
Timestamp RFC 3339. Unset members are NULL if the file tracks their presence.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from vdl.pipeline.registered.errors import ValueUnreadable
from vdl.pipeline.registered.registry import Schema

MAIN = "value.proto"
DEPTH_MAX = 32
"""Limit on nested message types."""
KNOWN_TYPES = "google.protobuf."
"""Package whose messages have special forms in JSON."""
VARINT_BYTES_MAX = 5
PROBLEM = re.compile(r"^(?!WARNING|[IW]\d).*/(?=[^/]+\.proto:)")
"""Text before a file's name in a line of protoc's output that is not a warning."""


def reader(schema: Schema) -> Callable[[bytes], str]:
    """Return a reader of values. Raises ValueError for an invalid .proto file."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    main = None
    described = _described(MAIN, schema.text)
    files = _compiled(schema) if described is None else _all_described(described, schema)
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
        main = file if file.name == MAIN else main
    if main is None or not main.message_type:
        raise ValueError("it has no message")
    classes: dict[tuple[int, ...], Any] = {}

    def class_of(indexes: tuple[int, ...]) -> Any:
        if indexes not in classes:
            name = _name_of(main, indexes)
            classes[indexes] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        return classes[indexes]

    def read(data: bytes) -> str:
        indexes, begin = message_indexes(data)
        message = class_of(indexes)()
        message.ParseFromString(data[begin:])
        return json.dumps(_members(message), ensure_ascii=False)

    return read


def first_message(text: str) -> Any:
    """Return the class of the first message of a .proto file. Raises ValueError."""
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    main = None
    for file in _compiled(Schema("PROTOBUF", text, {})):
        pool.AddSerializedFile(file.SerializeToString())
        main = file
    if main is None or not main.message_type:
        raise ValueError("it has no message")
    name = _name_of(main, (0,))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def message_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """Return (indexes of the message type, start of the message). Raises ValueUnreadable."""
    count, position = _varint(data, 0)
    if not count:
        return (0,), position
    if not 0 < count <= DEPTH_MAX:
        raise ValueUnreadable(f"{count} is not a valid depth of a message")
    indexes = []
    for _ in range(count):
        index, position = _varint(data, position)
        indexes.append(index)
    return tuple(indexes), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    found = 0
    for n, byte in enumerate(data[position : position + VARINT_BYTES_MAX]):
        found |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), position + n + 1
    raise ValueUnreadable("it has no message index")


def _name_of(file: Any, indexes: tuple[int, ...]) -> str:
    types, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(types):
            raise ValueUnreadable(f"the schema has no message {list(indexes)}")
        names.append(types[index].name)
        types = types[index].nested_type
    return ".".join(names)


def _described(name: str, text: str) -> Any | None:
    """Return the descriptor if the text is one in base64, as Python's serializer registers it."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    found.name = name
    return found


def _all_described(main: Any, schema: Schema) -> Iterator[Any]:
    """Yield all files as `_compiled` does, from descriptors. Raises ValueError."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = [main]
    for name, text in schema.references.items():
        if (file := _described(name, text)) is None:
            raise ValueError(f"{name} is text, but the schema is not")
        files.insert(-1, file)
    for name in dict.fromkeys(name for file in files for name in file.dependency):
        if name not in schema.references:
            module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
            if not module.startswith(KNOWN_TYPES):
                raise ValueError(f"{name} is unknown")
            importlib.import_module(module)
            known = descriptor_pb2.FileDescriptorProto()
            descriptor_pool.Default().FindFileByName(name).CopyToProto(known)
            yield known
    yield from files


def _compiled(schema: Schema) -> Iterator[Any]:
    """Yield all files as descriptors, imported ones first. Raises ValueError."""
    import grpc_tools
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory(prefix="vdl-proto-") as folder:
        for name, text in {**schema.references, MAIN: schema.text}.items():
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"{name!r} is not a valid file name")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        output = Path(folder, ".descriptors")
        with _stderr() as told:
            failed = protoc.main(
                [
                    "protoc", f"--proto_path={folder}",
                    f"--proto_path={Path(grpc_tools.__file__).with_name('_proto')}",
                    "--include_imports", f"--descriptor_set_out={output}", MAIN,
                ]
            )  # fmt: skip
        if failed:
            lines = [line for line in told.getvalue().splitlines() if PROBLEM.search(line)]
            raise ValueError(PROBLEM.sub("", lines[0]) if lines else "protoc rejects it")
        files = descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())
        yield from files.file


@contextlib.contextmanager
def _stderr() -> Iterator[io.StringIO]:
    """Capture output to file descriptor 2, the only place where protoc reports errors."""
    told = io.StringIO()
    before = os.dup(2)
    try:
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield told
            finally:
                os.dup2(before, 2)
                file.seek(0)
                told.write(file.read().decode(errors="replace"))
    finally:
        os.close(before)


def _members(message: Any) -> Any:
    """Return a message in its JSON form."""
    from google.protobuf import json_format

    if message.DESCRIPTOR.full_name.startswith(KNOWN_TYPES):
        return json_format.MessageToDict(message, preserving_proto_field_name=True)
    return {field.name: _member(message, field) for field in message.DESCRIPTOR.fields}


def _member(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        entry = field.message_type
        if entry is not None and entry.GetOptions().map_entry:
            kind = entry.fields_by_name["value"]
            return {_key(key): _value(value[key], kind) for key in value}
        return [_value(one, field) for one in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return _members(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value
