"""A Kafka client without I/O: connections, negotiation, metadata, requests with deadlines.

`ClientConnection` is the protocol alone: requests become bytes in `outgoing`, bytes passed to
`receive` become answers. `KafkaClient` keeps one such connection for each server it uses, over the
streams and clock that the servers' own links use, so it runs on virtual time and, with a transport
for sockets, anywhere else. `producer`, `consumer` and `member` are built on it.

Every request ends once: with its response, or with `Failure`, which states if the server may have
seen it. A history needs that difference, so it is never guessed.

Versions are negotiated with ApiVersions; `ClientOptions.version_caps` makes it behave as an older
client. Does not depend on how producers and consumers use the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import ModuleType
from typing import Any

from rpc.streams import Address, Dial, Dialer, DialFailed, Stream, Timer
from segments.api import Buffer
from vdl.clock import MS, Clock
from vdl.kafka.connections.connection import FrameReader
from vdl.kafka.wire import api_versions, metadata, offset_commit, offset_fetch
from vdl.kafka.wire.header import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    response_header_is_flexible,
)
from vdl.kafka.wire.registry import FLEXIBLE_FROM
from vdl.kafka.wire.runtime import WireError
from vdl.sim.metadata import MetadataCache
from vdl.sim.unsent import write_unsent

Message = Any
"""A request or a response of `vdl.kafka.wire`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Result without a response.

    `sent` is False only if the server provably never saw the request.
    """

    reason: str
    sent: bool


NAMED_UP_TO = {offset_commit.API_KEY: 9, offset_fetch.API_KEY: 9}
"""API key → last version in which topics have names: users of this client name topics."""

Answer = Callable[[Message | Failure], None]


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """A client's settings, named as in Kafka; times in milliseconds."""

    request_timeout_ms: int = 5_000
    retry_backoff_ms: int = 50
    retry_backoff_max_ms: int = 500
    reconnect_backoff_ms: int = 50
    metadata_max_age_ms: int = 5_000
    connect_timeout_ms: int = 1_000
    allow_auto_create: bool = True
    version_caps: dict[int, int] = field(default_factory=dict)
    """API key → highest version of this client, besides `NAMED_UP_TO`."""


@dataclass(slots=True)
class _Pending:
    """One request in flight."""

    api: ModuleType
    version: int
    correlation_id: int
    answer: Answer
    timer: Timer | None = None


class ClientConnection:
    """Protocol of one connection: framing, headers, correlation, pipelining."""

    def __init__(self, client_id: str) -> None:
        self.outgoing: list[Buffer] = []
        """Bytes to be sent. The owner of the stream removes them."""
        self._client_id = client_id
        self._frames = FrameReader()
        self._pending: deque[_Pending] = deque()
        self._next_id = 1

    def request(
        self, api: ModuleType, message: Message, version: int, answer: Answer | None
    ) -> _Pending | None:
        """Queue a request. `answer` is None for requests that have no response."""
        correlation_id = self._next_id
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        header = RequestHeader(api.API_KEY, version, correlation_id, self._client_id)
        head = encode_request_header(header, is_flexible=version >= api.FLEXIBLE_FROM)
        body = api.encode_request(message, version)
        size = len(head) + sum(map(len, body))
        self.outgoing.append(size.to_bytes(4, "big") + head)
        self.outgoing += body
        if answer is None:
            return None
        pending = _Pending(api, version, correlation_id, answer)
        self._pending.append(pending)
        return pending

    def get_buffer(self) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, received: int) -> None:
        """Answer the requests whose responses are complete. Raises WireError."""
        self._frames.buffer_updated(received)
        while (frame := self._frames.next_frame()) is not None:
            self._answer(frame)

    def receive(self, data: Buffer) -> None:
        """Feed bytes that the caller holds, like `buffer_updated`. Raises WireError."""
        view = memoryview(data)
        while view:
            into = self.get_buffer()
            count = min(len(into), len(view))
            into[:count] = view[:count]
            self.buffer_updated(count)
            view = view[count:]

    def close(self, reason: str) -> None:
        """End the connection: every request in flight has an unknown outcome."""
        pending, self._pending = list(self._pending), deque()
        self.outgoing.clear()
        for request in pending:
            _stop(request)
            request.answer(Failure(reason, sent=True))

    def _answer(self, frame: memoryview) -> None:
        if not self._pending:
            raise WireError("a response without a request")
        pending = self._pending[0]
        flexible = response_header_is_flexible(pending.api.API_KEY, pending.version, FLEXIBLE_FROM)
        correlation_id, start = decode_response_header(frame, is_flexible=flexible)
        if correlation_id != pending.correlation_id:
            raise WireError(f"response {correlation_id} instead of {pending.correlation_id}")
        response = pending.api.decode_response(frame[start:], pending.version)
        self._pending.popleft()
        _stop(pending)
        pending.answer(response)


def _stop(pending: _Pending) -> None:
    if pending.timer is not None:
        pending.timer.cancel()


class _Link:
    """Client's view of one server: its connection or dial, and the waiting requests."""

    def __init__(self, client: KafkaClient, name: str, address: Address) -> None:
        self.client = client
        self.name = name
        self.address = address
        self.connection: ClientConnection | None = None
        self.ready = False
        self._newest: dict[int, int] = {}
        self._stream: Stream | None = None
        self._dial: Dial | None = None
        self._dial_timer: Timer | None = None
        self._waiting: list[tuple[ModuleType, Callable[[int], Message], Answer | None, int]] = []
        self._unsent: deque[Buffer] = deque()
        self._blocked = False
        self._flush_due = False
        self._not_before_ns = 0

    def call(
        self,
        api: ModuleType,
        build: Callable[[int], Message],
        answer: Answer | None,
        timeout_ms: int,
    ) -> None:
        """Send when the connection is ready. `build` receives the negotiated version."""
        if self.ready:
            self._send(api, build, answer, timeout_ms)
            return
        self._waiting.append((api, build, answer, timeout_ms))
        if self._dial is None and self._stream is None:
            self._connect()

    def drop(self, reason: str) -> None:
        """Drop the connection. Requests that wait or are in flight fail."""
        stream, self._stream = self._stream, None
        connection, self.connection = self.connection, None
        dial, self._dial = self._dial, None
        self.ready = False
        failures = self.client.failures
        failures[self.address] = failures.get(self.address, 0) + 1
        self._unsent.clear()
        self._blocked = False
        if self._dial_timer is not None:
            self._dial_timer.cancel()
        if dial is not None:
            dial.cancel()
        if stream is not None:
            stream.close()
        backoff_ns = self.client.options.reconnect_backoff_ms * MS
        self._not_before_ns = self.client.clock.now_ns() + backoff_ns
        waiting, self._waiting = self._waiting, []
        if connection is not None:
            connection.close(reason)
        for _, _, answer, _ in waiting:
            if answer is not None:
                answer(Failure(reason, sent=False))

    # --- connecting -----------------------------------------------------------------------------
    def _connect(self) -> None:
        clock, options = self.client.clock, self.client.options
        wait_ns = max(0, self._not_before_ns - clock.now_ns())
        timeout_ns = wait_ns + options.connect_timeout_ms * MS
        self._dial_timer = clock.call_later(timeout_ns, partial(self.drop, "connect timed out"))
        if wait_ns:
            self._dial = _DelayedDial(self, wait_ns)
        else:
            self.dial()

    def dial(self) -> None:
        self._dial = self.client.dialer.dial(self.address, self._dialed)

    def _dialed(self, result: Stream | DialFailed) -> None:
        self._dial = None
        if isinstance(result, DialFailed):
            self.drop(result.cause)
            return
        self._stream = result
        self.connection = ClientConnection(self.client.client_id)
        result.start(self)
        version = min(3, self.client.options.version_caps.get(api_versions.API_KEY, 3))
        hello = api_versions.ApiVersionsRequest("vdl-sim", "1")
        self._track(
            self.connection.request(api_versions, hello, version, self._negotiated),
            self.client.options.request_timeout_ms,
        )
        self._flush()

    def _negotiated(self, response: Message | Failure) -> None:
        if isinstance(response, Failure):
            return
        if response.error_code:
            self.drop(f"ApiVersions: error {response.error_code}")
            return
        if self._dial_timer is not None:
            self._dial_timer.cancel()
        caps = {**NAMED_UP_TO, **self.client.options.version_caps}
        self._newest = {
            row.api_key: min(row.max_version, caps.get(row.api_key, row.max_version))
            for row in response.api_keys
        }
        self.ready = True
        self.client.failures.pop(self.address, None)
        waiting, self._waiting = self._waiting, []
        for api, build, answer, timeout_ms in waiting:
            self._send(api, build, answer, timeout_ms)

    # --- sending --------------------------------------------------------------------------------
    def _send(
        self,
        api: ModuleType,
        build: Callable[[int], Message],
        answer: Answer | None,
        timeout_ms: int,
    ) -> None:
        connection = self.connection
        if connection is None:
            if answer is not None:
                answer(Failure("connection lost", sent=False))
            return
        newest = self._newest.get(api.API_KEY, api.MIN_VERSION)
        version = max(known for known in api.CLIENT_VERSIONS if known <= newest)
        self._track(connection.request(api, build(version), version, answer), timeout_ms)
        if not self._flush_due:
            self._flush_due = True
            self.client.clock.call_soon(self._flush)

    def _track(self, pending: _Pending | None, timeout_ms: int) -> None:
        if pending is not None:
            # A server answers in order, so one late answer delays everything behind it.
            pending.timer = self.client.clock.call_later(
                timeout_ms * MS, partial(self.drop, "request timed out")
            )

    def _flush(self) -> None:
        self._flush_due = False
        if self.connection is None or self._stream is None:
            return
        self._unsent.extend(self.connection.outgoing)
        self.connection.outgoing.clear()
        if not self._blocked:
            self._blocked = not write_unsent(self._stream, self._unsent)

    # --- StreamOwner ----------------------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        assert self.connection is not None, "a stream without its connection"
        return self.connection.get_buffer()

    def buffer_updated(self, received: int) -> None:
        if self.connection is None:
            return
        try:
            self.connection.buffer_updated(received)
        except WireError as error:
            self.client.protocol_errors.append(f"{self.name}: {error!r}")
            self.drop(f"malformed response: {error!r}")

    def writable(self) -> None:
        self._blocked = False
        self._flush()

    def ended(self, cause: str) -> None:
        self._stream = None
        self.drop(cause)


class _DelayedDial:
    """Dial that first waits for the back-off."""

    def __init__(self, link: _Link, wait_ns: int) -> None:
        self._timer = link.client.clock.call_later(wait_ns, link.dial)

    def cancel(self) -> None:
        self._timer.cancel()


class KafkaClient:
    """Connections to the servers of one cluster, and its metadata.

    Use: `call` for a server by id, `call_any` for any server. `metadata` is refreshed when it is
    old and when `refresh` is called; `on_metadata` is called after each update. `protocol_errors`
    must stay empty.
    """

    def __init__(
        self,
        client_id: str,
        bootstrap: Sequence[Address],
        dialer: Dialer,
        clock: Clock,
        rng: Random,
        options: ClientOptions | None = None,
    ) -> None:
        self.client_id = client_id
        self.clock = clock
        self.dialer = dialer
        self.rng = rng
        self.options = options or ClientOptions()
        self.metadata = MetadataCache()
        self.on_metadata: list[Callable[[], None]] = []
        self.protocol_errors: list[str] = []
        self.failures: dict[Address, int] = {}
        """Number of times a server's connection was dropped since its last answer."""
        self.closed = False
        self._links: dict[int, _Link] = {}
        for i, address in enumerate(bootstrap, 1):
            self._links[-i] = _Link(self, f"bootstrap {i}", address)
        self._topics: set[str] = set()
        self._all_topics = False
        self._refreshing = False
        self._again = False
        self._failures = 0
        self._age_timer: Timer | None = None

    def close(self) -> None:
        self.closed = True
        if self._age_timer is not None:
            self._age_timer.cancel()
        for node in sorted(self._links):
            self._links[node].drop("client closed")

    # --- requests -------------------------------------------------------------------------------
    def call(
        self,
        node: int,
        api: ModuleType,
        build: Callable[[int], Message],
        answer: Answer | None,
        timeout_ms: int = 0,
    ) -> None:
        """Call server `node`. `build(version)` creates it once the version is known."""
        link = self._links.get(node)
        if link is None or self.closed:
            if answer is not None:
                self.clock.call_soon(partial(answer, Failure("unknown server", sent=False)))
            return
        link.call(api, build, answer, timeout_ms or self.options.request_timeout_ms)

    def call_any(
        self, api: ModuleType, build: Callable[[int], Message], answer: Answer, timeout_ms: int = 0
    ) -> None:
        """Send a request to a server with the fewest failures, preferably a connected one."""
        links = self._links
        failed = {node: self.failures.get(links[node].address, 0) for node in sorted(links)}
        fewest = min(failed.values())
        nodes = [node for node, times in failed.items() if times == fewest]
        nodes = [node for node in nodes if links[node].ready] or nodes
        self.call(self.rng.choice(nodes), api, build, answer, timeout_ms)

    def backoff(self, attempts: int, again: Callable[[], None]) -> Timer:
        """Run `again` after the pause that follows `attempts` failures."""
        options = self.options
        delay_ms = min(options.retry_backoff_ms << min(attempts, 10), options.retry_backoff_max_ms)
        jitter = 0.8 + 0.4 * self.rng.random()
        return self.clock.call_later(int(delay_ms * MS * jitter), again)

    # --- metadata -------------------------------------------------------------------------------
    def want(self, topics: Sequence[str]) -> None:
        """Keep metadata of these topics too."""
        new = set(topics) - self._topics
        if new:
            self._topics |= new
            self.refresh()

    def want_all(self) -> None:
        """Keep metadata of every topic, as a pattern subscription needs."""
        self._all_topics = True
        self.refresh()

    def forget(self, topic: str) -> None:
        self._topics.discard(topic)

    def refresh(self) -> None:
        """Fetch metadata now, or again if the request in flight may be too old."""
        if self.closed:
            return
        if self._refreshing:
            self._again = True
            return
        self._refreshing = True
        self._fetch_metadata()

    def _fetch_metadata(self) -> None:
        if self.closed:
            return
        self._again = False
        if self._age_timer is not None:
            self._age_timer.cancel()
        self.call_any(metadata, self._build_metadata, self._got_metadata)

    def _build_metadata(self, version: int) -> metadata.MetadataRequest:
        topics: list[metadata.MetadataRequestTopic] | None = [
            metadata.MetadataRequestTopic(name=name) for name in sorted(self._topics)
        ]
        if self._all_topics:
            # Version 0 has no null: there an empty list means every topic.
            topics = None if version else []
        create = self.options.allow_auto_create
        return metadata.MetadataRequest(topics=topics, allow_auto_topic_creation=create)

    def _got_metadata(self, response: Message | Failure) -> None:
        if self.closed:
            return
        if isinstance(response, Failure):
            self._failures += 1
            self.backoff(self._failures, self._fetch_metadata)
            return
        incomplete = self.metadata.update(response, whole=self._all_topics)
        for broker in response.brokers:
            address = (broker.host, broker.port)
            link = self._links.get(broker.node_id)
            if link is None:
                self._links[broker.node_id] = _Link(self, f"server {broker.node_id}", address)
            elif link.address != address:
                link.address = address
                link.drop("address changed")
        for listener in list(self.on_metadata):
            listener()
        if incomplete or self._again:
            self._failures += 1
            self.backoff(self._failures, self._fetch_metadata)
            return
        self._failures = 0
        self._refreshing = False
        age_ns = self.options.metadata_max_age_ms * MS
        self._age_timer = self.clock.call_later(age_ns, self.refresh)
