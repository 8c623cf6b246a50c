"""A connection to a broker that sends any bytes, well formed or not."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Any

from tests.wire import codec
from vdl.kafka.wire import (
    api_versions,
    create_topics,
    delete_topics,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    produce,
)
from vdl.kafka.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_header_is_flexible,
)
from vdl.kafka.wire.registry import FLEXIBLE_FROM

LENGTH = Struct(">i")
TIMEOUT_SECONDS = 10.0
PRODUCE_VERSION, METADATA_VERSION, API_VERSIONS_VERSION = 8, 1, 3
MODULES: dict[int, Any] = {
    module.API_KEY: module
    for module in (
        api_versions,
        create_topics,
        delete_topics,
        find_coordinator,
        list_offsets,
        metadata,
        offset_commit,
        offset_fetch,
        produce,
    )
}


class RawConnection:
    """One TCP connection. Reading returns whole frames, or None when the broker closed it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=TIMEOUT_SECONDS)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self) -> bytes | None:
        """Return the next frame without its length; None when the broker closed the connection.

        Raises TimeoutError when neither happens.
        """
        head = self._receive_exactly(LENGTH.size)
        return None if head is None else self._receive_exactly(LENGTH.unpack(head)[0])

    def _receive_exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            try:
                piece = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not piece:
                assert not data, f"closed inside a frame: {bytes(data)!r}"
                return None
            data += piece
        return bytes(data)

    def ask(self, message: Any, *, key: int, version: int, correlation_id: int = 1) -> Any:
        """Send a request; return the decoded response."""
        self.send(request_frame(message, key=key, version=version, correlation_id=correlation_id))
        return self.receive_response(key=key, version=version, correlation_id=correlation_id)

    def receive_response(self, *, key: int, version: int, correlation_id: int) -> Any:
        frame = self.receive()
        assert frame is not None, "closed instead of answered"
        view = memoryview(frame)
        is_flexible = response_header_is_flexible(key, version, FLEXIBLE_FROM)
        answered_id, start = decode_response_header(view, is_flexible=is_flexible)
        assert answered_id == correlation_id
        return codec(key).decode_response(view[start:], version)

    def is_alive(self) -> bool:
        """Return True if requests on this connection are still answered."""
        request = metadata.MetadataRequest(topics=[])
        answer = self.ask(request, key=metadata.API_KEY, version=METADATA_VERSION)
        return len(answer.brokers) > 0

    def close(self) -> None:
        self._socket.close()


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


def header(key: int, version: int, *, correlation_id: int = 1) -> bytes:
    """Return a request header, in the form for this key and version."""
    fields = RequestHeader(key, version, correlation_id, "raw")
    return encode_request_header(fields, is_flexible=version >= FLEXIBLE_FROM.get(key, 32767))


def request_frame(message: Any, *, key: int, version: int, correlation_id: int = 1) -> bytes:
    body = b"".join(codec(key).encode_request(message, version))
    return framed(header(key, version, correlation_id=correlation_id) + body)


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1
) -> Any:
    """Return a request with one batch, or with other bytes in its place."""
    data = produce.PartitionProduceData(index=partition, records=records)
    return produce.ProduceRequest(
        acks=acks,
        timeout_ms=5_000,
        topic_data=[produce.TopicProduceData(name=topic, partition_data=[data])],
    )
