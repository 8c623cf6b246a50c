"""Wrong usage of `vdl produce` and `vdl consume`; Avro documents."""

from __future__ import annotations

import datetime
import decimal
from io import BytesIO

import pytest
from click.testing import CliRunner

from vdl.commands.app import app
from vdl.commands.records.avro_documents import AvroDocuments
from vdl.commands.records.record_json import BadRecord


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["consume"], "TOPIC"),
        (["consume", "t", "--from", "-x"], "--from"),
        (["consume", "t", "--until", "soon"], "--until"),
        (["consume", "t", "--count", "0"], "--count"),
        (["consume", "t", "--format", "%q"], "unknown field %q"),
        (["consume", "t", "--json", "--raw"], "--json excludes"),
        (["consume", "t", "--filter", "a b"], "--filter"),
        (["consume", "t", "--grep", "("], "missing )"),
        (["consume", "t", "--value", "avro"], "--schema-registry"),
        (["consume", "t", "--group", "g", "--from", "5"], "--group"),
        (["consume", "t", "--group", "g", "--partition", "0"], "--group"),
        (["produce", "t", "no-such-file"], "no-such-file"),
        (["produce", "t", "--json-lines", "-K", ":"], "excludes"),
        (["produce", "t", "--key", "k", "-K", ":"], "excludes"),
        (["produce", "t", "-D", ""], "at least one"),
        (["produce", "t", "-D", r"\q"], "unknown escape"),
        (["produce", "t", "-H", "=x"], "name=value"),
        (["produce", "t", "--partition", "-1"], "--partition"),
        (["produce", "t", "--any-partition", "-p", "0"], "excludes"),
        (["produce", "t", "--transactional-id", "x", "--acks", "1"], "--acks all"),
        (["produce", "t", "--value-schema", "pyproject.toml"], "--schema-registry"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_connected(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert words in done.output


# --- Avro -----------------------------------------------------------------------------------------

SCHEMA = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "data", "type": "bytes", "default": ""},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": ["null", "Kind", "Order"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        },
    ],
}
DOCUMENT = {
    "id": 7,
    "data": "//4=",
    "kind": "A",
    "other": "B",
    "tags": {"x": [1, 2]},
    "at": "2026-11-30T04:00:00+00:00",
    "price": "12.50",
}


def test_avro_document_becomes_what_the_encoder_takes() -> None:
    found = AvroDocuments(SCHEMA).value(DOCUMENT)
    assert found["data"] == b"\xff\xfe"
    assert found["price"] == decimal.Decimal("12.50")
    assert found["at"] == datetime.datetime(2026, 11, 30, 4, tzinfo=datetime.UTC)
    nested = {**DOCUMENT, "other": {**DOCUMENT, "at": 1_700_000_000_000}}
    assert AvroDocuments(SCHEMA).value(nested)["other"]["at"] == 1_700_000_000_000


def test_avro_document_survives_the_encoder() -> None:
    fastavro = pytest.importorskip("fastavro")
    parsed = fastavro.parse_schema(SCHEMA)
    file = BytesIO()
    value = AvroDocuments(SCHEMA).value(DOCUMENT)
    fastavro.schemaless_writer(file, parsed, value)
    file.seek(0)
    assert fastavro.schemaless_reader(file, parsed, None) == {**value, "note": None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "7"}, "value.id: expected long"),
        ({"id": 1 << 63}, "value.id: expected long"),
        ({"id": True}, "value.id"),
        ({"idd": 1}, "no member 'idd'"),
        ({"data": "!"}, "value.data"),
        ({"kind": "C"}, "value.kind: expected enum"),
        ({"tags": {"x": ["1"]}}, r"value.tags.x\[\]: expected int"),
        ({"at": "yesterday"}, "value.at"),
        ({"price": "a lot"}, "value.price"),
        ({"price": None}, "value.price"),
    ],
)
def test_avro_document_that_does_not_fit_says_where(change: dict[str, object], words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        AvroDocuments(SCHEMA).value({**DOCUMENT, **change})


def test_avro_document_without_a_member_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"value\.kind: missing"):
        AvroDocuments(SCHEMA).value({"id": 1})
    with pytest.raises(BadRecord, match="expected an object"):
        AvroDocuments(SCHEMA).value([])
