"""Client of the command line: its requests, and errors for servers that do not answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from struct import pack, unpack

import pytest

from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.security.protocol import SecurityProtocol
from vdl.kafka.wire import api_versions, describe_cluster
from vdl.kafka.wire.api_versions import ApiVersion, ApiVersionsResponse
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest, DescribeClusterResponse

DESCRIBE_CLUSTER = 60


class Server:
    """Server that answers the greeting, and other requests once a given number has arrived."""

    def __init__(self, answers_after: int) -> None:
        self._answers_after = answers_after
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listening.accept()
        with connection, connection.makefile("rb") as requests:
            waiting = []
            while head := requests.read(4):
                key, version, number = unpack(">hhi", requests.read(*unpack(">i", head))[:8])
                if key == api_versions.API_KEY:
                    known = [ApiVersion(18, 0, 3), ApiVersion(DESCRIBE_CLUSTER, 0, 2)]
                    answer = ApiVersionsResponse(api_keys=known)
                    body = b"".join(api_versions.encode_response(answer, version))
                    connection.sendall(pack(">ii", 4 + len(body), number) + body)
                    continue
                waiting.append(number)
                if len(waiting) == self._answers_after:
                    for number in waiting:
                        told = DescribeClusterResponse(cluster_id=str(number))
                        body = b"".join(describe_cluster.encode_response(told, version))
                        connection.sendall(pack(">iix", 5 + len(body), number) + body)

    def close(self) -> None:
        self._listening.close()
        self._thread.join()


@pytest.fixture
def silent() -> Iterator[Server]:
    server = Server(answers_after=1_000)
    yield server
    server.close()


def test_requests_that_are_sent_together_are_answered_in_their_order() -> None:
    """The client waits for one turn if the server handles both in one."""
    server = Server(answers_after=2)
    with KafkaClient("127.0.0.1", server.port) as client:
        asked = [(DESCRIBE_CLUSTER, DescribeClusterRequest())] * 2
        told = [answer.cluster_id for answer in client.requests(asked)]
    server.close()
    assert told == ["2", "3"]


def test_client_says_how_long_it_waited_and_takes_no_late_answer_for_another(
    silent: Server,
) -> None:
    """A response after the timeout may belong to the request before: the connection is unusable."""
    with KafkaClient("127.0.0.1", silent.port, timeout_seconds=0.1) as client:
        for _ in range(2):
            with pytest.raises(Unreachable, match=r"^127.*: no answer within 0.1 s$"):
                client.request(DESCRIBE_CLUSTER, DescribeClusterRequest())
        client._timeout_seconds = 60  # the second one was not sent
        with pytest.raises(Unreachable, match=r"no answer within 0.1 s$"):
            client.request(DESCRIBE_CLUSTER, DescribeClusterRequest())


@pytest.mark.parametrize(
    ("sends", "protocol", "words"),
    [
        (b"", "PLAINTEXT", "closed the connection; check that its listener speaks PLAINTEXT, and"),
        (b"\x15\x03\x03\x00\x02\x02\x32", "PLAINTEXT", "speaks TLS; set security.protocol to SSL"),
        (b"HTTP/1.1 400 Bad Request\r\n", "PLAINTEXT", "speaks HTTP; use a port for Kafka"),
        (b"", "SSL", "check that its listener speaks SSL, and"),
        (b"\x00\x00\x00\x0a", "SSL", "check that its listener speaks SSL, and"),
    ],
)
def test_client_at_the_port_of_something_else_says_so(
    sends: bytes, protocol: str, words: str
) -> None:
    """Covers no TLS at a TLS listener, TLS at a plain one, and the metrics port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1 << 16)
                accepted.sendall(sends)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listening.getsockname()[1]
        client = KafkaClient("127.0.0.1", port, settings=ClientSettings(SecurityProtocol(protocol)))
        with pytest.raises(Unreachable) as caught, client:
            pass
        thread.join()
    assert words in caught.value.reason
