"""Connection that sends whole Kafka requests and collects whole answers, for a selector loop."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from struct import Struct
from typing import Any

from tests.wire import AnyApiClient, codec
from vdl.config.values import parse_address
from vdl.kafka.wire import header
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic

METADATA_KEY = 3
RECEIVE_BYTES = 1 << 20

_LENGTH = Struct(">i")


class Connection:
    """One connection to a server."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def answers(self) -> list[bytes]:
        """Return the answers that have arrived, correlation id first."""
        piece = self.socket.recv(RECEIVE_BYTES)
        assert piece, "a server closed the connection"
        received = self._received
        received += piece
        found = []
        while len(received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                break
            found.append(bytes(received[_LENGTH.size : end]))
            del received[:end]
        return found

    def close(self) -> None:
        self.socket.close()


def frame(api_key: int, version: int, request: Any) -> bytes:
    """Return a request in wire format. The correlation id is 0: answers come in order."""
    module = codec(api_key)
    head = header.encode_request_header(
        header.RequestHeader(api_key, version, 0, "bench"),
        is_flexible=version >= module.FLEXIBLE_FROM,
    )
    body = b"".join([head, *module.encode_request(request, version)])
    return _LENGTH.pack(len(body)) + body


def leaders(bootstrap: str, topic: str) -> Sequence[tuple[str, int]]:
    """Return the address of each partition's leader, by partition."""
    first = parse_address(bootstrap.partition(",")[0])
    with AnyApiClient(first.host, first.port) as client:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        metadata = client.request(METADATA_KEY, asked)
    addresses = {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers}
    rows = sorted(metadata.topics[0].partitions, key=lambda row: int(row.partition_index))
    return [addresses[row.leader_id] for row in rows]
