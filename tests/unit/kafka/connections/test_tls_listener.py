"""TLS on a listener, over real loopback sockets: regular clients and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rpc.errors import TlsFailed
from rpc.tls_context import ClientAuth, KeyPair, TlsContext, TlsOptions
from rpc.tls_stream import handshake_at_once
from tests.hangs import HANG_SECONDS
from tests.unit.kafka.connections.test_listener import API_VERSIONS_V0, run, until
from tests.unit.kafka.fake_host import LISTENER, FakeHost, FakeLog
from tests.unit.security_files import authority
from vdl.kafka.configs.options import KafkaOptions, ListenerOptions
from vdl.kafka.connections import tls_listener
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.listener import Listener
from vdl.kafka.connections.session import Session
from vdl.kafka.context import Context
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.security.protocol import SecurityProtocol
from vdl.server.loop import Doorbell, LoopClock, TurnLoop
from vdl.server.metrics import HELP, tls_samples
from vdl.server.side_thread import SideThread
from vdl.sim.clock import NodeClock, VirtualTime


class Edge:
    """A front end behind a listener with TLS."""

    def __init__(
        self, *, auth: ClientAuth = ClientAuth.NONE, rules: str = "DEFAULT", threads: bool = True,
        host: str = "127.0.0.1", **options: Any,
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TurnLoop), loop
        self.log = FakeLog()
        context = Context(
            FakeHost(NodeClock(VirtualTime())),
            KafkaOptions(**options),
            LoopClock(loop),
            self.log,
            os.urandom,
        )
        self.frontend = Frontend(context)
        files = authority().server(1)
        tls = TlsOptions(own=files.own, ca=files.ca, client_auth=auth)
        self.context = TlsContext(tls, server_side=True)
        listening = ListenerOptions(
            LISTENER, host, 0, protocol=SecurityProtocol.SSL, tls=tls, principal_rules=rules
        )
        offload = SideThread("tls", Doorbell(loop).ring).run if threads else handshake_at_once
        self.listener = Listener(
            loop,
            self.frontend,
            listening,
            logging.getLogger("test"),
            context=self.context,
            offload=offload,
        )
        self.port = self.listener.open()
        self.listener.start()

    @property
    def tls(self) -> tls_listener.TlsPort:
        assert self.listener.tls is not None
        return self.listener.tls

    async def connect(
        self, own: KeyPair | None = None, version: ssl.TLSVersion | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=client_context(own, version), server_hostname="localhost"
        )

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def sessions(self) -> list[Session]:
        return list(self.frontend._sessions.values())

    async def close(self) -> None:
        self.listener.close()
        self.frontend.close()
        await until(lambda: len(self.frontend) == 0)


def client_context(
    own: KeyPair | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority().directory / "ca.pem")
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send one ApiVersions request. Return its answer."""
    writer.write(API_VERSIONS_V0)
    async with asyncio.timeout(HANG_SECONDS):
        (size,) = unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return True once the server closes the connection."""
    async with asyncio.timeout(HANG_SECONDS):
        try:
            while await reader.read(1 << 16):
                pass
        except OSError:  # includes errors of TLS
            pass
    return True


def scenario(steps: Callable[[], Awaitable[None]]) -> None:
    run(steps)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_listener_serves_clients_over_tls(version: ssl.TLSVersion) -> None:
    """Several clients at a time, whose first requests come with the end of the handshake."""

    async def steps() -> None:
        edge = Edge()
        connections = [await edge.connect(version=version) for _ in range(5)]
        for reader, writer in connections:
            assert unpack(">ih", (await ask(reader, writer))[:6]) == (7, 0)
        assert len(edge.frontend) == edge.tls.done == 5
        assert len(edge.tls) == 0
        assert {session.info.principal for session in edge.sessions()} == {ANONYMOUS}
        for _, writer in connections:
            writer.close()
        await until(lambda: len(edge.frontend) == 0)
        await edge.close()

    scenario(steps)


def test_listener_carries_large_answers_whole_to_a_slow_reader() -> None:
    """Unsent bytes wait; none is lost, and sending does not stall."""

    async def steps() -> None:
        edge = Edge(write_buffer_bytes_max=64 << 10)
        reader, writer = await edge.connect()
        await until(lambda: len(edge.frontend) == 1)
        (session,) = edge.sessions()
        answer = os.urandom(20 << 20)
        buffers = [answer[at : at + 70_001] for at in range(0, len(answer), 70_001)]
        session.connection.queue(b"", buffers, len(answer))
        session.connection.flush()
        assert session.connection.unsent_bytes
        received = bytearray()
        async with asyncio.timeout(HANG_SECONDS):
            while len(received) < len(answer):
                received += await reader.read(100_000)
        assert received == answer
        await until(lambda: not session.connection.unsent_bytes)
        assert (await ask(reader, writer))[:4] == pack(">i", 7)
        writer.close()
        await edge.close()

    scenario(steps)


def test_listener_reads_no_more_while_its_session_does_not() -> None:
    """Received bytes stay encrypted, and are decrypted when the session resumes."""

    async def steps() -> None:
        edge = Edge()
        reader, writer = await edge.connect()
        await ask(reader, writer)
        (session,) = edge.sessions()
        transport: Any = session.connection.transport
        transport.pause_reading()
        writer.write(API_VERSIONS_V0 * 50)
        await writer.drain()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not session.busy
        transport.resume_reading()
        async with asyncio.timeout(HANG_SECONDS):
            for _ in range(50):
                (size,) = unpack(">i", await reader.readexactly(4))
                await reader.readexactly(size)
        writer.close()
        await edge.close()

    scenario(steps)


def test_listener_holds_no_memory_of_its_session_while_nothing_arrives() -> None:
    async def steps() -> None:
        edge = Edge()
        reader, writer = await edge.connect()
        for _ in range(3):
            await ask(reader, writer)
        (session,) = edge.sessions()
        assert session.connection.frames.held == 0
        writer.close()
        await edge.close()

    scenario(steps)


@pytest.mark.parametrize(
    ("rules", "name"),
    [("DEFAULT", "CN=alice"), ("RULE:^CN=(.*)$/$1/U,DEFAULT", "ALICE"), ("RULE:^CN=bob$/x/", None)],
)
def test_principal_is_that_of_the_certificate(rules: str, name: str | None) -> None:
    """The mapping rules give the principal. A client that no rule matches is disconnected."""

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUIRED, rules=rules)
        reader, writer = await edge.connect(authority().client("alice"))
        if name is None:
            assert await ended(reader)
            assert len(edge.frontend) == 0
        else:
            await ask(reader, writer)
            assert [session.info.principal for session in edge.sessions()] == [Principal(name)]
        writer.close()
        await edge.close()

    scenario(steps)


@pytest.mark.parametrize("shown", ["", "theirs"])
def test_client_without_the_right_certificate_gets_no_session(shown: str) -> None:
    """TLS reports the refusal to the client."""

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUIRED)
        own = authority(shown).client("mallory") if shown else None
        try:
            reader, writer = await edge.connect(own)
        except OSError:
            pass
        else:
            writer.write(API_VERSIONS_V0)
            assert await ended(reader)
            writer.close()
        await until(lambda: edge.tls.failed == 1)
        assert edge.frontend.connections_accepted == 0
        await edge.close()

    scenario(steps)


HOSTILE = {
    "plaintext": API_VERSIONS_V0,
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "ssl 2": bytes.fromhex("802e0100020015000000100100800200800300800400800500800600400700c0")
    + bytes(16),
    "ssl 3": bytes.fromhex("16030000")[:3] + pack(">H", 4) + b"\x01\x00\x00\x00",
    "length": b"\x16\x03\x01\xff\xff" + bytes(20_000),
    "alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "zeros": bytes(100_000),
    "heartbeat": b"\x18\x03\x02\x00\x03\x01\x40\x00",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_client_that_speaks_no_tls_costs_one_connection(kind: str, caplog: Any) -> None:
    """Its bytes are not logged."""

    async def steps() -> None:
        edge = Edge()
        good = await edge.connect()
        reader, writer = await edge.raw()
        writer.write(HOSTILE[kind])
        assert await ended(reader)
        writer.close()
        await until(lambda: edge.tls.failed == 1)
        assert unpack(">ih", (await ask(*good))[:6]) == (7, 0)
        assert len(edge.tls) == 0
        assert len(edge.frontend) == 1
        good[1].close()
        await edge.close()

    scenario(steps)
    assert caplog.messages.count("handshake_failed") == 1
    assert "GET" not in repr([vars(record) for record in caplog.records])


def test_handshakes_that_do_not_get_on_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: clients that are silent, stop half-way, or send byte by byte."""

    async def steps() -> None:
        monkeypatch.setattr(tls_listener, "HANDSHAKE_SECONDS_MAX", 0.3)
        edge = Edge()
        hello = client_hello()
        slow = [await edge.raw() for _ in range(3)]
        await until(lambda: len(edge.tls) + edge.tls.timed_out == 3)
        # The regular client may be as slow as this machine.
        monkeypatch.setattr(tls_listener, "HANDSHAKE_SECONDS_MAX", HANG_SECONDS)
        slow[1][1].write(hello[:100])

        async def drip() -> None:
            for byte in hello:
                slow[2][1].write(bytes([byte]))
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        good = await edge.connect()
        await ask(*good)
        for reader, _ in slow:
            assert await ended(reader)
        assert edge.tls.timed_out == 3
        dripping.cancel()
        for _, writer in (*slow, good):
            writer.close()
        await edge.close()

    scenario(steps)


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        engine.do_handshake()
    return outgoing.read()


def test_flood_of_handshakes_costs_the_address_it_comes_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the maximum of handshakes under way, one more displaces the oldest of the address with the
    most, and a client of another address is served."""

    async def steps() -> None:
        monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", 8)
        edge = Edge()
        flood = [await edge.raw() for _ in range(30)]
        await until(lambda: edge.tls.displaced >= 22)
        assert len(edge.tls) == 8
        context = client_context()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1",
            edge.port,
            ssl=context,
            server_hostname="localhost",
            local_addr=("127.0.0.2", 0),
        )
        await ask(reader, writer)
        assert edge.sessions()[0].info.peer_host == "127.0.0.2"
        for _, other in (*flood, (reader, writer)):
            other.close()
        await edge.close()

    scenario(steps)


def test_half_open_client_that_is_gone_is_forgotten() -> None:
    """It resets the connection in the middle of a handshake, while the thread runs it."""

    async def steps() -> None:
        edge = Edge()
        hello = client_hello()
        for _ in range(20):
            one = socket.create_connection(("127.0.0.1", edge.port))
            one.sendall(hello)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            one.close()
        reader, writer = await edge.connect()
        await ask(reader, writer)
        await until(lambda: len(edge.tls) == 0)
        assert len(edge.frontend) == 1
        writer.close()
        await edge.close()

    scenario(steps)


def test_client_that_is_cut_off_or_changed_on_the_way_loses_its_session() -> None:
    """It sends an invalid record after the handshake."""

    async def steps() -> None:
        edge = Edge()
        reader, writer = await edge.connect()
        await ask(reader, writer)
        writer.transport.get_extra_info("socket")
        raw: Any = writer.transport.get_extra_info("ssl_object")
        assert raw is not None
        descriptor = writer.transport.get_extra_info("socket").fileno()
        os.write(descriptor, b"\x17\x03\x03\x00\x20" + bytes(32))
        assert await ended(reader)
        await until(lambda: len(edge.frontend) == 0)
        writer.close()
        await edge.close()

    scenario(steps)


def test_handshake_that_fails_in_a_library_costs_one_connection() -> None:
    """The exception of a thread returns to the loop and does not end the server."""

    async def steps() -> None:
        edge = Edge()
        good = await edge.connect()
        await ask(*good)
        edge.tls.offload = lambda job, done: done(RuntimeError("in a library"))
        reader, writer = await edge.raw()
        writer.write(client_hello())
        assert await ended(reader)
        writer.close()
        await until(lambda: edge.tls.failed == 1)
        await ask(*good)
        good[1].close()
        await edge.close()

    scenario(steps)


def test_certificate_that_cannot_be_described_costs_one_connection() -> None:
    """The authority has signed a name that is no text: OpenSSL accepts it, `ssl` cannot read it."""

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUESTED)
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, why: failures.append(why))
        with contextlib.suppress(OSError):
            reader, writer = await edge.connect(authority().unreadable())
            assert await ended(reader)
            writer.transport.abort()
        await until(lambda: edge.tls.failed == 1)
        assert failures == []
        assert len(edge.frontend) == 0
        await edge.close()

    scenario(steps)


def test_connections_are_bounded_as_on_any_listener() -> None:
    """Without room, no handshake is begun. The room may also be taken during the handshake."""

    async def steps() -> None:
        edge = Edge(connections_max=2)
        some = [await edge.connect() for _ in range(2)]
        await until(lambda: len(edge.frontend) == 2)
        reader, writer = await edge.raw()
        assert await ended(reader)
        assert edge.frontend.connections_refused == 1
        some[0][1].close()
        await until(lambda: len(edge.frontend) == 1)
        jobs: list[Callable[[], None]] = []
        offload, edge.tls.offload = (
            edge.tls.offload,
            lambda *one: jobs.append(lambda: offload(*one)),
        )
        late = asyncio.create_task(edge.connect())
        await until(lambda: len(jobs) == 1)
        edge.tls.offload = offload
        some.append(await edge.connect())
        await until(lambda: len(edge.frontend) == 2)
        jobs.pop()()
        late_reader, late_writer = await late
        assert await ended(late_reader)
        assert edge.frontend.connections_refused == 2
        for _, other in (*some, (reader, writer), (late_reader, late_writer)):
            other.close()
        await edge.close()

    scenario(steps)


def test_session_that_ends_sends_what_is_left_and_says_so() -> None:
    async def steps() -> None:
        edge = Edge()
        reader, writer = await edge.connect()
        await until(lambda: len(edge.frontend) == 1)
        (session,) = edge.sessions()
        session.connection.queue(b"", [bytes(300_000)], 300_000)
        session.end("malformed request")
        async with asyncio.timeout(HANG_SECONDS):
            assert await reader.read(-1) == bytes(300_000)  # close_notify: no error
        writer.close()
        await edge.close()

    scenario(steps)


@pytest.fixture(name="replaceable")
def _replaceable(tmp_path: Path) -> KeyPair:
    own = authority().server(1).own
    assert own is not None
    pair = KeyPair(tmp_path / "s.pem", tmp_path / "s.key")
    pair.certificate.write_bytes(own.certificate.read_bytes())
    pair.key.write_bytes(own.key.read_bytes())
    return pair


def test_certificate_that_is_replaced_is_shown_from_then_on(replaceable: KeyPair) -> None:
    """Open connections stay open."""

    async def steps() -> None:
        edge = Edge()
        edge.tls.context = context = TlsContext(TlsOptions(own=replaceable), server_side=True)
        old = await edge.connect()
        new = authority().server(2).own
        assert new is not None
        replaceable.key.write_bytes(new.key.read_bytes())
        with pytest.raises(TlsFailed):
            context.load()
        meanwhile = await edge.connect()
        await ask(*meanwhile)
        replaceable.certificate.write_bytes(new.certificate.read_bytes())
        context.load()
        fresh = await edge.connect()
        serials = [
            one[1].transport.get_extra_info("ssl_object").getpeercert()["serialNumber"]
            for one in (old, fresh)
        ]
        assert serials[0] != serials[1]
        await ask(*old)
        await ask(*fresh)
        for _, writer in (old, meanwhile, fresh):
            writer.close()
        await edge.close()

    scenario(steps)


def test_metrics_of_a_listener_say_what_became_of_handshakes() -> None:
    """Each sample has the listener as its label, and a help text."""

    async def steps() -> None:
        edge = Edge()
        good = await edge.connect()
        reader, writer = await edge.raw()
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await ended(reader)
        await until(lambda: edge.tls.failed == 1)
        samples = {sample.key: sample for sample in tls_samples([edge.tls])}
        assert samples["handshakes_total"].value == 1
        assert samples["handshakes_failed_total"].value == 1
        assert samples["handshakes_under_way"].value == 0
        assert all(f"vdl_tls_{name}" in HELP for name in samples)
        assert {sample.labels for sample in samples.values()} == {(("listener", LISTENER),)}
        for _, other in (good, (reader, writer)):
            other.close()
        await edge.close()

    scenario(steps)


def test_address_that_may_not_connect_costs_no_handshake() -> None:
    """The limits and the connection rate of an address are checked before a private key is
    used."""

    async def steps() -> None:
        edge = Edge(connections_per_ip_max=1)
        good = await edge.connect()
        await ask(*good)
        reader, writer = await edge.raw()
        assert await ended(reader)
        assert edge.tls.done == 1
        assert edge.tls.failed == 0
        assert edge.frontend.connections_refused == 1
        for _, one in (good, (reader, writer)):
            one.close()
        await edge.close()

    scenario(steps)


def test_handshake_of_a_client_that_is_gone_is_not_computed() -> None:
    """Jobs that wait for the thread are bounded by the handshakes under way, not by those ever
    begun: each would use the private key."""

    async def steps() -> None:
        edge = Edge()
        jobs: list[Callable[[], bool]] = []
        edge.tls.offload = lambda job, done: jobs.append(lambda: (done(job()), True)[1])
        reader, writer = await edge.raw()
        writer.write(client_hello())
        await until(lambda: len(jobs) == 1)
        (protocol,) = edge.tls._under_way
        engine = protocol._engine
        protocol.abort()
        assert await ended(reader)
        writer.close()
        jobs.pop()()
        assert engine.take_output() == b""
        await edge.close()

    scenario(steps)


def test_client_that_came_by_ipv4_to_a_socket_for_both_has_its_own_address() -> None:
    """ACLs, quotas and limits compare this address."""

    async def steps() -> None:
        edge = Edge(host="::")
        reader, writer = await edge.connect()
        await ask(reader, writer)
        assert [session.info.peer_host for session in edge.sessions()] == ["127.0.0.1"]
        writer.close()
        await edge.close()

    scenario(steps)


class Renegotiator:
    """A TLS 1.2 client that requests renegotiation repeatedly and reads nothing.

    OpenSSL's client stops at the first refusal, so the records after the handshake are made here.
    """

    CIPHER = "ECDHE-ECDSA-AES128-GCM-SHA256"

    def __init__(self, port: int, key_log: Path) -> None:
        context = client_context(version=ssl.TLSVersion.TLSv1_2)
        context.set_ciphers(self.CIPHER)
        context.keylog_filename = str(key_log)
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.connect(("127.0.0.1", port))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        engine = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        received = b""
        while True:
            try:
                engine.do_handshake()
            except ssl.SSLWantReadError:
                self.socket.sendall(outgoing.read())
                data = self.socket.recv(1 << 16)
                received += data
                incoming.write(data)
            else:
                break
        self.socket.sendall(outgoing.read())
        server_random = received[11:43]
        _, client_random, master = map(
            bytes.fromhex, ("00", *key_log.read_text().splitlines()[-1].split()[1:])
        )
        block = expanded(master, b"key expansion" + server_random + client_random, 40)
        self.key, self.salt = AESGCM(block[:16]), block[32:36]
        self.sequence = 1  # after Finished

    def hello(self) -> bytes:
        """Return one record with a ClientHello."""
        body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\xc0\x2b" + b"\1\0"
        message = b"\1" + len(body).to_bytes(3, "big") + body
        number = pack(">Q", self.sequence)
        self.sequence += 1
        about = number + b"\x16\3\3" + pack(">H", len(message))
        sealed = number + self.key.encrypt(self.salt + number, message, about)
        return b"\x16\3\3" + pack(">H", len(sealed)) + sealed


def expanded(secret: bytes, seed: bytes, count: int) -> bytes:
    """TLS 1.2's P_hash with SHA-256 (RFC 5246 §5)."""
    out, a = b"", seed
    while len(out) < count:
        a = hmac.digest(secret, a, "sha256")
        out += hmac.digest(secret, a + seed, "sha256")
    return out[:count]


def test_client_that_asks_for_renegotiation_again_and_again_is_bounded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each request is refused with a few bytes. If the client reads none of them, their number must
    be bounded in the transport, because the session, which has bounds, never sees them."""

    async def steps() -> None:
        monkeypatch.setattr(tls_listener, "_REPLIES_BYTES_MAX", 64 << 10)
        edge = Edge()
        client = await asyncio.to_thread(Renegotiator, edge.port, tmp_path / "keys")
        await until(lambda: len(edge.frontend) == 1)
        (session,) = edge.sessions()
        transport: Any = session.connection.transport
        # Otherwise the system would buffer megabytes before the transport holds any.
        made = transport._transport.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        held = 0

        def flood() -> bool:
            with contextlib.suppress(OSError):
                for _ in range(2_000):
                    client.socket.sendall(b"".join(client.hello() for _ in range(100)))
                return False
            return True

        flooding = asyncio.create_task(asyncio.to_thread(flood))
        while not flooding.done():
            await asyncio.sleep(0.001)
            held = max(held, transport._transport.get_write_buffer_size())
        assert await flooding, "it could go on"
        assert held <= 128 << 10
        await until(lambda: len(edge.frontend) == 0)
        client.socket.close()
        await edge.close()

    scenario(steps)
