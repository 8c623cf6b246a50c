"""Values with schemas of a registry, decoded for pages of records: right ones, and hostile ones."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.console.asking import browser
from tests.console.browser.console_set import client_settings, console_set, make_topics
from tests.console.conftest import port_of
from tests.hangs import HANG_SECONDS
from vdl.console.decoder_process import SCHEMAS_PER_PAGE
from vdl.console.registered_values import PAGE_BYTES_MAX, Decoded, RegisteredValues
from vdl.console.shown_values import SHOWN_CHARS_MAX

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
TREE = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
NULLS = {"type": "array", "items": "null"}
MOVED, HUNG = 21, 22
SECONDS = 60.0
"""Time for a page, apart from the decoder's own bound: a loaded machine starts it slowly."""


class Registry:
    """A registry with some schemas, which notes what it is asked."""

    def __init__(self) -> None:
        self.schemas: dict[int, tuple[str, object]] = {
            1: ("AVRO", ORDER),
            2: ("AVRO", TREE),
            3: ("AVRO", NULLS),
            4: ("JSON", {"type": "object", "required": ["id"]}),
            5: ("PROTOBUF", 'syntax = "proto3"; message Order { int64 id = 1; }'),
            6: ("AVRO", {"type": "string"}),
        }
        self.asked: list[str] = []
        self.released = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Write no log."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{handler.path.partition('?')[0]} {handler.headers['Authorization']}")
        schema_id = int(handler.path.partition("?")[0].rpartition("/")[2])
        if schema_id == HUNG:
            self.released.wait(HANG_SECONDS)
        if schema_id == MOVED:
            handler.send_response(302)
            handler.send_header("Location", f"{self.url}/elsewhere/1")
            handler.end_headers()
            return
        found = self.schemas.get(schema_id)
        body: dict[str, object] = {"error_code": 40403, "message": "Schema not found"}
        if found is not None:
            kind, schema = found
            text = schema if isinstance(schema, str) else json.dumps(schema)
            body = {"schema": text, "schemaType": kind}
        data = json.dumps(body).encode()
        handler.send_response(200 if found else 404)
        handler.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    yield found
    found.released.set()
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def values(registry: Registry) -> Iterator[RegisteredValues]:
    found = RegisteredValues(registry.url, "")
    found.decoded([framed(1, b"\x02")], SECONDS)  # starts the decoder
    yield found
    found.close()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + data


def long(number: int) -> bytes:
    """Return a number that is not negative, as Avro has it: zigzag, seven bits a byte."""
    number *= 2
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def one(values: RegisteredValues, value: bytes) -> Decoded:
    return values.decoded([value], SECONDS)[value]


def test_values_of_each_kind_are_decoded_by_their_schema(values: RegisteredValues) -> None:
    wanted = {
        framed(1, long(1 << 60)): {"id": 1 << 60},
        framed(4, b'{"id": 7}'): {"id": 7},
        framed(5, b"\x00\x08\x2a"): {"id": 42},
    }
    found = values.decoded([*wanted, b"plain", b"", b"\0\0"], SECONDS)
    assert {value: json.loads(decoded.text) for value, decoded in found.items()} == wanted


def test_values_that_do_not_match_say_why(values: RegisteredValues, registry: Registry) -> None:
    unknown, short, wrong = framed(99, b"x"), framed(1, b""), framed(4, b"{}")
    found = values.decoded([unknown, short, wrong], SECONDS)
    assert "not known to the registry" in found[unknown].problem
    assert "not valid for schema 1" in found[short].problem
    assert "not valid for schema 4" in found[wrong].problem
    assert not any(decoded.text for decoded in found.values())


@pytest.mark.parametrize(
    "hostile",
    [
        framed(3, b"\xfe\xff\xff\xff\xff\xff\x0f\x00"),  # two to the 41 nulls
        framed(2, b"\x02" * 60_000 + b"\x00"),  # a list of 60,000 nested records
    ],
    ids=["array of nulls", "deep value"],
)
def test_value_that_takes_all_memory_or_stack_ends_only_the_decoder(
    values: RegisteredValues, hostile: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page shows its bytes; after a pause others are decoded again."""
    assert one(values, hostile).problem
    monkeypatch.setattr("vdl.console.registered_values.PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(values, "_paused_until_s", 0.0)
    assert json.loads(one(values, framed(1, b"\x02")).text) == {"id": 1}


def test_schemas_leave_no_files_behind(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protobuf's compiler reads files. It ends the decoder for want of memory, and another one
    comes for the next page: files that stayed would fill the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fields = "".join(f"int32 f{number}=1;" for number in range(700_000))
    registry.schemas[7] = ("PROTOBUF", f'syntax="proto3"; message M {{{fields}}}')
    registry.schemas[8] = ("PROTOBUF", f'syntax="proto3"; message M {{}} //{"x" * (17 << 20)}')
    values = RegisteredValues(registry.url, "")
    try:
        assert one(values, framed(5, b"\x00\x08\x2a")).text
        assert "File too large" in one(values, framed(8, b"\0")).problem
        assert "too much memory" in one(values, framed(7, b"\0")).problem
        assert not list(tmp_path.iterdir())
        monkeypatch.setattr(values, "_paused_until_s", 0.0)
        assert one(values, framed(5, b"\x00\x08\x2a")).text
        child = values._child
        assert child is not None
        assert child.stdin is not None
        child.stdin.close()  # as when this process is killed
        assert child.wait(SECONDS) == 0
        assert not list(tmp_path.iterdir())
    finally:
        values.close()


def test_registry_is_the_only_address_that_is_asked(
    values: RegisteredValues, registry: Registry
) -> None:
    """A redirect is not followed."""
    assert one(values, framed(MOVED, b"x")).problem
    assert not [path for path in registry.asked if "elsewhere" in path]


def test_registry_that_hangs_is_asked_once_a_page(
    values: RegisteredValues, registry: Registry
) -> None:
    registry.schemas |= {HUNG + step: ("AVRO", ORDER) for step in range(1, 9)}
    found = values.decoded([framed(HUNG + step, b"\x02") for step in range(9)], SECONDS)
    assert all(decoded.problem for decoded in found.values())
    assert len(registry.asked) == 2, "one schema at the start, and the one that hung"


def test_page_asks_for_some_schemas_and_the_next_for_more(
    values: RegisteredValues, registry: Registry
) -> None:
    ids = range(1_000, 1_000 + SCHEMAS_PER_PAGE + 1)
    registry.schemas |= dict.fromkeys(ids, ("AVRO", ORDER))
    page = [framed(schema_id, b"\x02") for schema_id in ids]
    for left in (1, 0):
        found = values.decoded(page, SECONDS)
        assert sum(bool(decoded.problem) for decoded in found.values()) == left
    assert len(registry.asked) == 1 + len(page)


def test_bytes_and_texts_of_a_page_are_bounded(values: RegisteredValues) -> None:
    size = PAGE_BYTES_MAX // 2
    first, other = (framed(6, long(size) + letter * size) for letter in (b"x", b"y"))
    found = values.decoded([first, other], SECONDS)
    assert [*found] == [first], "there is no room for the other"
    assert len(found[first].text) == SHOWN_CHARS_MAX + 1


def test_login_comes_from_the_file(registry: Registry, tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("reader:secret\n", encoding="utf-8")
    values = RegisteredValues(registry.url, str(login))
    assert one(values, framed(1, b"\x02")).text
    values.close()
    assert registry.asked == ["/schemas/ids/1 Basic cmVhZGVyOnNlY3JldA=="]
    missing = RegisteredValues(registry.url, str(tmp_path / "none"))
    assert "http.console_registry_login" in one(missing, framed(1, b"\x02")).problem
    missing.close()


def test_console_shows_a_value_by_its_schema(registry: Registry) -> None:
    """On a real server, also after a value that ends the decoder."""
    with console_set("console-registry", 1, more={"console_registry": registry.url}) as servers:
        settings = client_settings(servers)
        make_topics(settings, {"typed": 1})
        producer = Producer(settings)
        right = framed(1, long(1 << 60))
        producer.produce("typed", right, right)
        producer.produce("typed", framed(99, b"x"))
        producer.produce("typed", b'{"plain": 1}')
        assert producer.flush(HANG_SECONDS) == 0
        page = browser(port_of(servers))
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            records = page.page("records", topic="typed", partition=0)["records"]
            typed, unknown, plain = (record["value"] for record in records)
            if typed["form"] == "json":
                break
            assert time.monotonic() < deadline, records
            time.sleep(0.5)
        assert (json.loads(typed["text"]), typed["schema"]) == ({"id": 1 << 60}, 1)
        assert records[0]["key"] == typed
        assert (unknown["form"], unknown["schema"]) == ("hex", 99)
        assert "not known to the registry" in unknown["problem"]
        assert (plain["form"], "schema" in plain) == ("json", False)
        as_bytes = page.page("records", topic="typed", partition=0, form="hex")["records"]
        assert as_bytes[0]["value"]["text"] == right.hex(" ")
