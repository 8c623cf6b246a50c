"""Request and response headers, written by hand because every request has one.

```
request   int16 api key | int16 version | int32 correlation id | nullable string client id | tags?
response  int32 correlation id | tags?
```
`tags` (a count of tagged fields, then the fields) exist in flexible versions only; the client id
keeps its two-byte length even then. A response to ApiVersions never has tags in its header,
in any version: its client may not know yet which version was answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct

from vdl.kafka.wire.runtime import VERSION_NEVER, ShortBuffer, skip_tagged_fields

API_VERSIONS_KEY = 18

_FIXED = Struct(">hhih")
_CORRELATION_ID = Struct(">i")


@dataclass(slots=True)
class RequestHeader:
    """Header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(
    frame: memoryview, flexible_from: Mapping[int, int]
) -> tuple[int, int, int, str | None, int]:
    """Return (API key, version, correlation id, client id, position of the body) of a frame, which
    is without its length. Raises WireError.

    `flexible_from` gives the first flexible version of each API (`registry.FLEXIBLE_FROM`). For a
    key it lacks, the header is read as inflexible: the caller refuses such a request anyway.
    """
    size = len(frame)
    if size < _FIXED.size:
        raise ShortBuffer("RequestHeader", size)
    api_key, api_version, correlation_id, length = _FIXED.unpack_from(frame, 0)
    pos = _FIXED.size
    client_id = None
    if length >= 0:
        end = pos + length
        if end > size:
            raise ShortBuffer("RequestHeader", size)
        client_id = frame[pos:end].tobytes().decode("utf-8", "replace")
        pos = end
    if api_version >= flexible_from.get(api_key, VERSION_NEVER):
        if pos >= size:
            raise ShortBuffer("RequestHeader", size)
        tags = frame[pos]
        pos += 1
        if tags:
            try:
                pos = skip_tagged_fields(frame, pos, tags, size)
            except IndexError:
                raise ShortBuffer("RequestHeader", size) from None
    return api_key, api_version, correlation_id, client_id, pos


def encode_request_header(header: RequestHeader, *, is_flexible: bool) -> bytes:
    """Return the header as bytes."""
    client_id = b"" if header.client_id is None else header.client_id.encode()
    length = -1 if header.client_id is None else len(client_id)
    fixed = _FIXED.pack(header.api_key, header.api_version, header.correlation_id, length)
    return fixed + client_id + (b"\0" if is_flexible else b"")


def response_header_is_flexible(
    api_key: int, api_version: int, flexible_from: Mapping[int, int]
) -> bool:
    """Return True if the header of the response has tags."""
    if api_key == API_VERSIONS_KEY:
        return False
    return api_version >= flexible_from.get(api_key, VERSION_NEVER)


def encode_response_header(correlation_id: int, *, is_flexible: bool) -> bytes:
    """Return the header as bytes."""
    return _CORRELATION_ID.pack(correlation_id) + (b"\0" if is_flexible else b"")


def decode_response_header(frame: memoryview, *, is_flexible: bool) -> tuple[int, int]:
    """Return `(correlation id, position of the body)`. Raises WireError."""
    size = len(frame)
    if size < _CORRELATION_ID.size + is_flexible:
        raise ShortBuffer("ResponseHeader", size)
    correlation_id: int = _CORRELATION_ID.unpack_from(frame, 0)[0]
    pos = _CORRELATION_ID.size
    if is_flexible:
        tags = frame[pos]
        pos += 1
        if tags:
            try:
                pos = skip_tagged_fields(frame, pos, tags, size)
            except IndexError:
                raise ShortBuffer("ResponseHeader", size) from None
    return correlation_id, pos
