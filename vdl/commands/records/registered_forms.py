"""Values with schemas of a registry: Confluent's wire format for Avro, Protobuf and JSON Schema.

Values are read by the schema that they name, as the pipeline reads them. They are written with one
schema, from a file, which is registered under the subject `TOPIC-value`. A login of the registry
comes from VDL_SCHEMA_REGISTRY_USER and VDL_SCHEMA_REGISTRY_PASSWORD, and not from arguments, which
every user of the machine can see.

Does not depend on a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from vdl.commands.output import fail
from vdl.commands.records.record_decoding import DocumentForm, Form, Undecodable, json_document
from vdl.commands.records.record_json import BadRecord, NewRecord
from vdl.pipeline.registered.errors import RegistryFailed, ValueUnreadable

USER, PASSWORD = "VDL_SCHEMA_REGISTRY_USER", "VDL_SCHEMA_REGISTRY_PASSWORD"
KINDS = {".avsc": "avro", ".proto": "protobuf", ".json": "json-schema"}
"""Suffix of a schema's file -> its kind."""
REQUEST_SECONDS = 10
_EXTRA = "this needs the packages of schema registries: pip install 'vdl-log[cli]'"


def registered_form(name: str, url: str) -> Form:
    """Return the form of values with schemas. Raises click.ClickException."""
    from vdl.pipeline.registered.registry import Registry
    from vdl.pipeline.registered.values import Values

    settings = {"url": url}
    if user := os.environ.get(USER):
        settings |= {"user": user, "password": os.environ.get(PASSWORD, "")}
    try:
        values = Values(Registry(settings), name)
    except ImportError:
        fail(_EXTRA)

    def decode(data: bytes) -> object:
        try:
            return msgspec.json.decode(values.text(data))
        except ValueUnreadable as error:
            raise Undecodable(str(error)) from None
        except RegistryFailed as error:
            fail(str(error))

    return DocumentForm(decode)


def registered_writer(topic: str, path: Path, url: str) -> Callable[[NewRecord], bytes]:
    """Return a function that writes a record's value, which is JSON, by the schema in a file.

    It raises BadRecord for a value that does not fit, click.ClickException if the registry refuses.
    """
    kind = KINDS.get(path.suffix)
    if kind is None:
        raise click.UsageError(f"--value-schema {path}: expected {', '.join(KINDS)}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--value-schema {path}: {error}") from None
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.error import SchemaRegistryError
        from confluent_kafka.serialization import MessageField, SerializationContext

        settings: dict[str, Any] = {"url": url, "timeout": REQUEST_SECONDS}
        if user := os.environ.get(USER):
            settings["basic.auth.user.info"] = f"{user}:{os.environ.get(PASSWORD, '')}"
        serialize, convert = _WRITERS[kind](text, SchemaRegistryClient(settings))
    except ImportError:
        fail(_EXTRA)
    except Exception as error:  # noqa: BLE001 - parsers of schemas raise exceptions of many kinds
        raise click.UsageError(f"--value-schema {path}: {_line(error)}") from None
    context = SerializationContext(topic, MessageField.VALUE)

    def write(record: NewRecord) -> bytes:
        document = record.document
        if document is None:
            try:
                document = json_document(record.value or b"")
            except Undecodable as error:
                raise BadRecord(f"value: {error}") from None
        try:
            found: bytes = serialize(convert(document), context)
        except BadRecord:
            raise
        except SchemaRegistryError as error:
            fail(f"the registry at {url}: {error}")
        except OSError as error:
            fail(f"the registry at {url}: {_line(error)}")
        except Exception as error:  # noqa: BLE001 - so do serializers, and the client's HTTP library
            if type(error).__module__.startswith("httpx"):
                fail(f"the registry at {url}: {_line(error)}")
            raise BadRecord(f"value: {_line(error)}") from None
        return found

    return write


def _avro(text: str, client: Any) -> tuple[Any, Callable[[object], Any]]:
    from confluent_kafka.schema_registry.avro import AvroSerializer

    from vdl.commands.records.avro_documents import AvroDocuments

    return AvroSerializer(client, text), AvroDocuments(json_document(text.encode())).value


def _json_schema(text: str, client: Any) -> tuple[Any, Callable[[object], Any]]:
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    return JSONSerializer(text, client), lambda document: document


def _protobuf(text: str, client: Any) -> tuple[Any, Callable[[object], Any]]:
    from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
    from google.protobuf import json_format

    from vdl.pipeline.registered.protobuf_values import first_message

    message = first_message(text)

    def convert(document: object) -> Any:
        if not isinstance(document, dict):
            raise BadRecord("value: expected an object")
        try:
            return json_format.ParseDict(document, message())
        except json_format.ParseError as error:
            raise BadRecord(f"value: {_line(error)}") from None

    return ProtobufSerializer(message, client, {"use.deprecated.format": False}), convert


_WRITERS: dict[str, Callable[[str, Any], tuple[Any, Callable[[object], Any]]]] = {
    "avro": _avro,
    "json-schema": _json_schema,
    "protobuf": _protobuf,
}
"""Kind of schema -> (serializer, conversion of a JSON document for it)."""


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
