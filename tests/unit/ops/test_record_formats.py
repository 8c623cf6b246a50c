"""Records as text and JSON: templates, round trips, characters that control a terminal."""

from __future__ import annotations

import io
import os
import re
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vdl.commands.records.record_decoding import Form, Undecodable, plain_form
from vdl.commands.records.record_input import parse_header, parts, unescaped
from vdl.commands.records.record_json import BadRecord, NewRecord, Received, parse_record
from vdl.commands.records.record_output import Problems, RecordFile, json_writer, text_writer
from vdl.commands.records.record_template import BadTemplate
from vdl.commands.terminal_text import visible

HOSTILE = b"\x1b]0;title\x07\x1b[31m\xc2\x9b31m\x7f\r\xff\xe2\x80\xaetxt.exe\tok\n"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

bytes_or_null = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
header_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)
header_lists = st.lists(st.tuples(header_names, bytes_or_null), max_size=4)


def record(
    value: bytes | None = b"v",
    *,
    key: bytes | None = b"k",
    headers: list[tuple[str, bytes | None]] | None = None,
) -> Received:
    return Received("t", 3, 7, 1, 1_700_000_000_000, headers or [], key, value)


def as_text(
    template: str, of: Received, *, for_terminal: bool = False, value: Form | None = None
) -> bytes:
    return text_writer(
        template,
        key=plain_form("string"),
        value=value or plain_form("string"),
        null=b"NULL",
        for_terminal=for_terminal,
        problems=Problems(),
    )(of)


def as_json(of: Received, *, form: str = "string", for_terminal: bool = False) -> bytes:
    return json_writer(
        key=plain_form("string"),
        value=plain_form(form),
        for_terminal=for_terminal,
        problems=Problems(),
    )(of)


# --- templates ------------------------------------------------------------------------------------


def test_template_fields_show_each_part_of_a_record() -> None:
    """The fields are those of kcat's -f, with %v beside %s."""
    found = as_text(
        r"%t[%p]@%o %T %k=%v %s %S %K %h %% \x41\t\\|\n",
        record(b"text", key=None, headers=[("a", b"1"), ("a", None)]),
    )
    assert found == b"t[3]@7 1700000000000 NULL=text text 4 -1 a=1,a=NULL % A\t\\|\n"


def test_template_backslash_before_a_field_is_a_backslash() -> None:
    assert as_text(r"\\%v", record(b"x")) == b"\\x"


@pytest.mark.parametrize("template", ["%q", "%", r"\q", r"\x4", r"\xzz", "abc\\"])
def test_template_that_is_none_is_refused(template: str) -> None:
    with pytest.raises(BadTemplate):
        as_text(template, record())


def test_template_to_a_pipe_keeps_every_byte() -> None:
    assert as_text("%v", record(HOSTILE)) == HOSTILE


@given(st.binary(max_size=200))
def test_terminal_text_has_no_control_characters(data: bytes) -> None:
    """Only line feed and tab are left of the control characters."""
    shown = visible(data).decode()
    assert not CONTROLS.search(shown)


def test_terminal_gets_no_controls_from_any_part() -> None:
    of = record(HOSTILE, key=HOSTILE, headers=[("\x1b[2J", HOSTILE)])
    for shown in (as_text("%k %v %h", of, for_terminal=True), as_json(of, for_terminal=True)):
        assert not CONTROLS.search(shown.decode())


def test_terminal_text_of_ordinary_words_is_unchanged() -> None:
    data = "größe 日本 🙂\n".encode()
    assert visible(data) == data


# --- JSON -----------------------------------------------------------------------------------------


@given(bytes_or_null, bytes_or_null, header_lists, st.booleans())
def test_json_of_a_record_is_read_back_exactly(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    for_terminal: bool,
) -> None:
    """Bytes, nulls, repeated headers, partition and time survive; on a terminal, too."""
    line = as_json(record(value, key=key, headers=headers), for_terminal=for_terminal)
    found = parse_record(line)
    assert (found.key, found.value, found.headers) == (key, value, headers)
    assert (found.partition, found.timestamp_ms) == (3, 1_700_000_000_000)
    assert line.count(b"\n") == 1


@pytest.mark.parametrize("form", ["hex", "base64"])
def test_json_of_digits_is_read_back_exactly(form: str) -> None:
    assert parse_record(as_json(record(HOSTILE), form=form)).value == HOSTILE


def test_json_value_stands_as_json_when_it_is_decoded() -> None:
    line = as_json(record(b'{"a": [1, 2.5]}'), form="json")
    assert msgspec.json.decode(line)["value"] == {"a": [1, 2.5]}
    assert parse_record(line).value == b'{"a":[1,2.5]}'


def test_json_value_that_is_no_json_is_shown_with_the_problem() -> None:
    problems = Problems()
    write = json_writer(
        key=plain_form("string"), value=plain_form("json"), for_terminal=False, problems=problems
    )
    found = msgspec.json.decode(write(record(b"{")))
    assert found["value"] == "{"
    assert found["problem"].startswith("value: no JSON")
    assert problems.count == 1


def test_json_of_headers_that_cannot_be_read_says_so() -> None:
    """The record is shown all the same."""
    of = record(b"v")._replace(headers=None)
    found = msgspec.json.decode(as_json(of))
    assert (found["value"], found["headers"]) == ("v", [])
    assert found["problem"] == "headers: a name is no UTF-8"
    assert as_text("%v%h", of) == as_text("%v%h", of, for_terminal=True) == b"v"


@pytest.mark.parametrize("data", [b"NaN", b"1e999", b"[" * 10_000 + b"]" * 10_000, b"\xff", b""])
def test_json_form_of_hostile_bytes_is_undecodable(data: bytes) -> None:
    with pytest.raises(Undecodable):
        plain_form("json").field(data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"valu": 1}', "valu"),
        (b'{"value": 1, "value_hex": "00"}', "both"),
        (b'{"value_hex": "0"}', "value_hex"),
        (b'{"value_base64": "!"}', "value_base64"),
        (b'{"value_base64": 3}', "string"),
        (b'{"partition": -1}', "partition"),
        (b'{"partition": true}', "partition"),
        (b'{"timestamp": 1.5}', "timestamp"),
        (b'{"headers": 3}', "headers"),
        (b'{"headers": [{"value": "x"}]}', "headers"),
        (b"[" * 10_000, "no JSON"),
    ],
)
def test_json_line_that_is_no_record_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        parse_record(line)


def test_json_headers_may_be_an_object() -> None:
    found = parse_record(b'{"headers": {"a": "1", "b": null}, "value": {"n": 1}}')
    assert found.headers == [("a", b"1"), ("b", None)]
    assert found.value == b'{"n":1}'


def test_json_without_key_and_value_is_an_empty_record() -> None:
    assert parse_record(b"{}") == NewRecord(None)


# --- input ----------------------------------------------------------------------------------------


def pieces(data: bytes, size: int, delimiter: bytes = b"\n", **bounds: int) -> list[bytes]:
    file = io.BytesIO(data)
    return list(parts(lambda _: file.read(size), delimiter, **bounds))


@given(
    st.binary(max_size=60).map(lambda data: data.replace(b"\x00", b"ab")),
    st.sampled_from([b"\n", b"ab", b"aba", b"aa"]),
    st.integers(1, 7),
)
def test_input_is_split_the_same_in_any_pieces(data: bytes, delimiter: bytes, size: int) -> None:
    """As bytes.split does; what follows the last delimiter counts if it is not empty."""
    wanted = data.split(delimiter)
    if not wanted[-1]:
        wanted.pop()
    assert pieces(data, size, delimiter) == wanted


def test_input_without_a_delimiter_is_refused_at_the_limit() -> None:
    assert pieces(b"x" * 100, 10, bytes_max=100) == [b"x" * 100]
    with pytest.raises(BadRecord, match="longer than 100"):
        pieces(b"x" * 101, 10, bytes_max=100)


def test_unescaped_text_is_bytes() -> None:
    assert unescaped(r"a\n\t\0\x1f\\é") == "a\n\t\0\x1f\\é".encode()
    with pytest.raises(ValueError, match="unknown escape"):
        unescaped(r"\q")


def test_header_text_is_split_at_the_first_sign() -> None:
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a=") == ("a", b"")
    assert parse_header("a") == ("a", None)
    with pytest.raises(ValueError, match="name=value"):
        parse_header("=b")


# --- the file -------------------------------------------------------------------------------------


def test_record_file_sees_that_the_reader_of_a_pipe_has_gone() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as end:
        file = RecordFile(end, buffer_bytes=4)
        file.write(b"abc")
        assert not file.is_closed
        file.write(b"d")  # the limit: it is written
        assert os.read(reading, 10) == b"abcd"
        os.close(reading)
        assert file.is_closed
        file.write(b"e")
        with pytest.raises(BrokenPipeError):
            file.flush()
        file.flush()  # nothing is left to be written twice


def test_record_file_waits_for_a_pipe_that_does_not_block() -> None:
    """More than a pipe holds is written completely, while another thread reads."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    found = bytearray()

    def read() -> None:
        while data := os.read(reading, 1 << 16):
            found.extend(data)

    reader = threading.Thread(target=read)
    with os.fdopen(writing, "wb", buffering=0) as end:
        file = RecordFile(end)
        reader.start()
        file.write(b"x" * (1 << 22))
        file.flush()
    reader.join()
    os.close(reading)
    assert len(found) == 1 << 22
