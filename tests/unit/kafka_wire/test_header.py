"""Request and response headers."""

import pytest

from vdl.kafka.wire.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    response_header_is_flexible,
)
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError

PRODUCE, API_VERSIONS, SASL_HANDSHAKE = 0, 18, 17


@pytest.mark.parametrize("client_id", [None, "", "client", "é" * 100])
@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_request_header_of_any_version_comes_back(client_id: str | None, version: int) -> None:
    """decode(encode(h)) == h, and the body begins after it."""
    header = RequestHeader(PRODUCE, version, -3, client_id)
    data = encode_request_header(header, is_flexible=version >= 9)
    assert decode_request_header(memoryview(data + b"body"), FLEXIBLE_FROM) == (
        PRODUCE, version, -3, client_id, len(data),
    )  # fmt: skip


def test_request_header_with_unknown_tagged_fields_is_read() -> None:
    """Tagged fields of a newer client are skipped."""
    data = encode_request_header(RequestHeader(PRODUCE, 9, 1, "c"), is_flexible=False)
    data += bytes([2, 0, 3]) + b"abc" + bytes([200, 1, 0])
    *_, body_start = decode_request_header(memoryview(data + b"body"), FLEXIBLE_FROM)
    assert body_start == len(data)


@pytest.mark.parametrize("version", [3, 9])
def test_request_header_cut_anywhere_is_a_wire_error(version: int) -> None:
    """Every proper prefix is refused."""
    header = RequestHeader(PRODUCE, version, 1, "client")
    data = encode_request_header(header, is_flexible=version >= 9)
    for cut in range(len(data)):
        with pytest.raises(WireError):
            decode_request_header(memoryview(data)[:cut], FLEXIBLE_FROM)


def test_request_header_with_too_many_tagged_fields_is_a_wire_error() -> None:
    """More than 64, or more than there are bytes for."""
    data = encode_request_header(RequestHeader(PRODUCE, 9, 1, "c"), is_flexible=False)
    for tail in (bytes([65]) + bytes(400), bytes([3, 0, 0]), bytes([0x80]), bytes([1, 0x80])):
        with pytest.raises(WireError):
            decode_request_header(memoryview(data + tail), FLEXIBLE_FROM)


def test_client_id_that_is_not_utf8_is_replaced() -> None:
    """Kafka replaces it too."""
    data = bytearray(encode_request_header(RequestHeader(PRODUCE, 3, 1, "abc"), is_flexible=False))
    data[-1] = 0xFF
    *_, client_id, _ = decode_request_header(memoryview(data), FLEXIBLE_FROM)
    assert client_id == "ab\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("is_flexible", [False, True])
def test_response_header_comes_back(is_flexible: bool) -> None:
    """Covers the correlation id and the body's position; a truncated header is refused."""
    data = encode_response_header(77, is_flexible=is_flexible)
    assert decode_response_header(memoryview(data), is_flexible=is_flexible) == (77, len(data))
    for cut in range(len(data)):
        with pytest.raises(WireError):
            decode_response_header(memoryview(data)[:cut], is_flexible=is_flexible)


def test_api_versions_response_never_has_a_flexible_header() -> None:
    """The client does not know yet in which version the response is. KIP-511."""
    assert not response_header_is_flexible(API_VERSIONS, 4, FLEXIBLE_FROM)
    assert response_header_is_flexible(PRODUCE, 9, FLEXIBLE_FROM)
    assert not response_header_is_flexible(PRODUCE, 8, FLEXIBLE_FROM)
    assert not response_header_is_flexible(SASL_HANDSHAKE, 1, FLEXIBLE_FROM)
