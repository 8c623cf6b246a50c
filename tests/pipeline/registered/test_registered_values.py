"""Values decoded by the schemas that they name, without Spark, and faulty registries."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="needs the `spark` extra")
pytest.importorskip("pyarrow", reason="needs the `spark` extra")

import fastavro
import pyarrow as pa

from vdl.pipeline.registered.errors import RegistryFailed, ValueUnreadable
from vdl.pipeline.registered.protobuf_values import message_indexes
from vdl.pipeline.registered.registry import Registry
from vdl.pipeline.registered.values import Values, read_column

INNER = {"type": "record", "name": "x.Inner", "fields": [{"name": "n", "type": "long"}]}
OUTER: dict[str, Any] = {
    "type": "record", "name": "Outer",
    "fields": [
        {"name": "inner", "type": "x.Inner"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "data", "type": ["null", "bytes"]},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
import "other/o.proto";
message First { string s = 1; }
message A {
  message B { int64 n = 1; map<string, int64> by_name = 2; bytes data = 3; Kind kind = 4; }
  optional B b = 1;
  o.O other = 2;
  google.protobuf.Timestamp at = 3;
}
enum Kind { NONE = 0; SOME = 1; }
"""
OTHER_PROTO = 'syntax = "proto3"; package o; message O { bool is = 1; }'


class Answers:
    """Responses of a registry, by path: (status, body)."""

    def __init__(self) -> None:
        self.by_path: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        answers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                answers.asked.append(path)
                unknown = (404, {"error_code": 40403, "message": "not found"})
                status, body = answers.by_path.get(path, unknown)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def put(
        self, schema_id: int, kind: str, text: str, references: Mapping[str, str] | None = None
    ) -> None:
        """Add a schema, and those it refers to, as version 1 of subjects of the same names."""
        told = [{"name": n, "subject": n, "version": 1} for n in references or ()]
        schema = {"schema": text, "schemaType": kind, "references": told}
        self.by_path[f"/schemas/ids/{schema_id}"] = (200, schema)
        for name, other in (references or {}).items():
            known = {"subject": name, "version": 1, "id": 1000, "schema": other, "schemaType": kind}
            quoted = name.replace("/", "%2F")
            self.by_path[f"/subjects/{quoted}/versions/1"] = (200, known)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def answers() -> Iterator[Answers]:
    found = Answers()
    try:
        yield found
    finally:
        found.close()


def values_of(answers: Answers, form: str) -> Values:
    return Values(Registry({"url": answers.url}, is_patient=False), form)


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def avro_of(value: dict[str, Any]) -> bytes:
    named: dict[str, Any] = {}
    fastavro.parse_schema(INNER, named_schemas=named)
    file = BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(OUTER, named_schemas=named), value)
    return file.getvalue()


ROW = {"inner": {"n": 1 << 60}, "price": Decimal("12345.60"), "data": b"\xff\x00"}


def test_avro_becomes_json_with_all_its_digits(answers: Answers) -> None:
    answers.put(7, "AVRO", json.dumps(OUTER), {"x.Inner": json.dumps(INNER)})
    values = values_of(answers, "avro")
    for _ in range(3):
        found = json.loads(values.text(framed(7, avro_of(ROW))))
        assert found == {"inner": {"n": 1 << 60}, "price": "12345.60", "data": "/wA="}
    assert len(answers.asked) == 2, "a schema and what it refers to are asked for once"


def test_protobuf_becomes_json_by_the_message_it_names(answers: Answers) -> None:
    answers.put(7, "PROTOBUF", PROTO, {"other/o.proto": OTHER_PROTO})
    values = values_of(answers, "protobuf")
    empty = json.loads(values.text(framed(7, b"\x02\x02")))
    assert empty == {"b": None, "other": None, "at": None}
    inner = b"\x08\x05" + b"\x12\x05\x0a\x01k\x10\x09" + b"\x1a\x01\xff" + b"\x20\x01"
    found = json.loads(values.text(framed(7, b"\x04\x02\x00" + inner)))
    assert found == {"n": 5, "by_name": {"k": 9}, "data": "/w==", "kind": "SOME"}
    outer = b"\x12\x02\x08\x01" + b"\x1a\x02\x08\x01"
    found = json.loads(values.text(framed(7, b"\x02\x02" + outer)))
    assert found == {"b": None, "other": {"is": True}, "at": "1970-01-01T00:00:01Z"}
    assert json.loads(values.text(framed(7, b"\x00\x0a\x01x"))) == {"s": "x"}


def test_protobuf_is_known_by_its_descriptor_too(answers: Answers) -> None:
    """The Python serializer registers this form."""
    from google.protobuf import timestamp_pb2

    text = base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode()
    answers.put(7, "PROTOBUF", text)
    assert values_of(answers, "protobuf").text(framed(7, b"\x00\x08\x01")) == (
        '"1970-01-01T00:00:01Z"'
    )


def test_json_is_left_as_it_is_where_its_schema_allows_it(answers: Answers) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "number.json"}},
        "required": ["n"],
    }
    answers.put(7, "JSON", json.dumps(schema), {"number.json": '{"type": "integer"}'})
    values = values_of(answers, "json-schema")
    assert values.text(framed(7, b'{ "n": 1.0 }')) == '{ "n": 1.0 }'
    for bad in (b'{"n": "x"}', b"{}", b"{", b"\xff"):
        with pytest.raises(ValueUnreadable, match="not valid for schema 7"):
            values.text(framed(7, bad))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"", "does not begin with a schema id"),
        (b"\0\0\0\0", "does not begin with a schema id"),
        (b"\1\0\0\0\7", "does not begin with a schema id"),
        (framed(8, b""), "schema 8 is not known"),
        (framed(9, b""), "schema 9 is of kind JSON, not AVRO"),
        (framed(10, b""), "schema 10 cannot be used"),
        (framed(7, avro_of(ROW)[:-1]), "not valid for schema 7"),
        (framed(7, avro_of(ROW) + b"\0"), "not valid for schema 7: 1 bytes follow the value"),
        (framed(7, b""), "not valid for schema 7"),
    ],
)
def test_value_that_cannot_be_read_says_why(answers: Answers, value: bytes, told: str) -> None:
    answers.put(7, "AVRO", json.dumps(OUTER), {"x.Inner": json.dumps(INNER)})
    answers.put(9, "JSON", "{}")
    answers.put(10, "AVRO", '{"type": "nothing"}')
    with pytest.raises(ValueUnreadable, match=told):
        values_of(answers, "avro").text(value)


@pytest.mark.parametrize("text", ["messag A {}", "", 'syntax = "proto3";'])
def test_file_that_protoc_does_not_take_is_said_to_be_none(answers: Answers, text: str) -> None:
    answers.put(7, "PROTOBUF", text)
    with pytest.raises(ValueUnreadable, match="schema 7 cannot be used") as told:
        values_of(answers, "protobuf").text(framed(7, b"\0"))
    assert "WARNING" not in str(told.value)


def test_file_is_not_written_outside_of_its_folder(answers: Answers) -> None:
    answers.put(7, "PROTOBUF", PROTO, {"../../o.proto": OTHER_PROTO})
    with pytest.raises(ValueUnreadable, match="is not a valid file name"):
        values_of(answers, "protobuf").text(framed(7, b"\0"))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x03", b"\xff" * 9, b"\x04\x00"])
def test_what_does_not_say_which_message_it_is_is_refused(data: bytes) -> None:
    with pytest.raises(ValueUnreadable):
        message_indexes(data)


def test_references_in_a_circle_end(answers: Answers) -> None:
    """A registry refuses them; one that does not must not keep a job busy forever."""
    answers.put(7, "AVRO", '"string"', {"a": '"string"'})
    path = "/subjects/a/versions/1"
    again = [{"name": "a", "subject": "a", "version": 1}]
    answers.by_path[path] = (200, {**answers.by_path[path][1], "references": again})
    assert values_of(answers, "avro").text(framed(7, b"\x02x")) == '"x"'


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, {"message": "no"}), (401, {"message": "who"}), (200, b"<html>"),
        (404, b"<html>"), (404, {"detail": "no such path"}),
    ],
)  # fmt: skip
def test_registry_that_does_not_answer_stops_what_asks(
    answers: Answers, status: int, body: object
) -> None:
    """It creates no dead letters, since the registry may be available again in a minute."""
    answers.by_path["/schemas/ids/7"] = (status, body)
    values = values_of(answers, "avro")
    with pytest.raises(RegistryFailed, match="schema 7"):
        values.text(framed(7, b""))
    answers.put(7, "AVRO", '"string"')
    assert values.text(framed(7, b"\x02x")) == '"x"', "and is asked again"


def test_schema_that_comes_late_is_asked_for_again(answers: Answers) -> None:
    """A copy of the registry may be behind; until then one request stands for many values."""
    now = 0.0
    values = Values(Registry({"url": answers.url}, clock=lambda: now), "avro")
    for seconds, count in ((0.0, 1), (9.9, 1), (10.1, 2)):
        now = seconds
        with pytest.raises(ValueUnreadable, match="not known"):
            values.text(framed(7, b"\x02x"))
        assert answers.asked.count("/schemas/ids/7") == count
    answers.put(7, "AVRO", '"string"')
    now = 30.0
    assert values.text(framed(7, b"\x02x")) == '"x"'


def test_registry_that_is_not_there_is_told_by_its_address() -> None:
    registry = Registry({"url": "http://127.0.0.1:1"}, is_patient=False)
    with pytest.raises(RegistryFailed, match=r"127\.0\.0\.1:1"):
        registry.check()


def test_column_has_texts_and_reasons(answers: Answers) -> None:
    answers.put(7, "AVRO", '"string"')
    column = pa.array([framed(7, b"\x02x"), None, b"x"], pa.binary())
    rows = read_column(values_of(answers, "avro"), column).to_pylist()
    assert rows[0] == {"text": '"x"', "error": None}
    assert rows[1] == {"text": None, "error": None}
    assert rows[2]["text"] is None
    assert "does not begin" in rows[2]["error"]
