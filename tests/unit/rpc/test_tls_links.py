"""Links over TLS: only servers of the set are linked and may deliver frames."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import cast

import pytest

from rpc.either_stream import FIRST_BYTES, EitherStream, is_handshake
from rpc.hello import Hello, RejectReason, encode_hello
from rpc.link_options import LinkOptions
from rpc.peer import FrameType
from rpc.reader import Buffer
from rpc.streams import Stream, StreamOwner
from rpc.tls_context import LinkEncryption, TlsContext, TlsFiles
from rpc.tls_stream import EngineMaker, LinkSecurity, TlsStream, handshake_at_once
from rpc.transport import SocketTransport
from tests.unit.rpc.test_transport import LOOPBACK, until
from tests.unit.rpc.world import Recorder, hello_of
from tests.unit.security_files import CLUSTER, authority

OPTIONS = LinkOptions(stable_ms=0)


def security(files: TlsFiles) -> LinkSecurity:
    options = files.between_servers()
    return LinkSecurity(
        CLUSTER,
        TlsContext(options, server_side=True),
        TlsContext(options, server_side=False),
        handshake_at_once,
        takes_plain=files.links is not LinkEncryption.REQUIRED,
        dials_plain=files.links is LinkEncryption.ACCEPTED,
    )


def transport(
    server_id: int, handler: Recorder, files: TlsFiles | None, hello: Hello | None = None
) -> SocketTransport:
    return SocketTransport(
        hello or hello_of(server_id),
        LOOPBACK,
        handler,
        loop=asyncio.get_running_loop(),
        rng=random.Random(server_id),
        options=OPTIONS,
        security=security(files) if files is not None else None,
    )


@contextlib.asynccontextmanager
async def server_one() -> AsyncIterator[tuple[SocketTransport, Recorder]]:
    handler = Recorder()
    one = transport(1, handler, authority().server(1))
    try:
        yield one, handler
    finally:
        one.close()


@pytest.mark.parametrize("size", [0, 1, 20_000, 3_000_000])
def test_links_over_tls_carry_frames_both_ways(size: int) -> None:
    async def scenario() -> None:
        async with server_one() as (one, handler_one):
            handler_two = Recorder()
            two = transport(2, handler_two, authority().server(2))
            two.set_peer(1, ("127.0.0.1", one.port))
            one.set_peer(2, ("127.0.0.1", two.port))
            await until(lambda: bool(handler_one.up and handler_two.up))
            payload = random.Random(size).randbytes(size)
            for sender, to in ((one, 2), (two, 1)):
                for _ in range(3):
                    assert sender.send(
                        to, FrameType.RAFT, [payload[: size // 2], payload[size // 2 :]]
                    )
            await until(lambda: len(handler_one.frames) == len(handler_two.frames) == 3)
            for handler in (handler_one, handler_two):
                assert [frame[2] for frame in handler.frames] == [payload] * 3
            two.close()
            await until(lambda: not handler_one.up)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "intruder", ["stranger", "client", "admin", "other set", "other id", "plain"]
)
def test_intruder_gets_no_frame_in_whatever_it_shows(intruder: str) -> None:
    """An intruder that dials or is dialled makes no link, and the server accepts others."""

    async def scenario() -> None:
        ours = authority()
        client = ours.client("mallory")
        files = {
            "stranger": authority("theirs").server(2),
            "client": TlsFiles(client.certificate, client.key, ours.directory / "ca.pem", CLUSTER),
            "admin": ours.admin(),
            "other set": ours.server(2, "other"),
            "other id": ours.server(3),
            "plain": None,
        }[intruder]
        async with server_one() as (one, handler_one):
            handler = Recorder()
            two = transport(2, handler, files)
            two.set_peer(1, ("127.0.0.1", one.port))
            one.set_peer(2, ("127.0.0.1", two.port))
            while not one.refused and not handler_one.frames:  # an accepted one is never refused
                two.send(1, FrameType.RAFT, [b"forged"])
                await asyncio.sleep(0.01)
            assert handler_one.frames == []
            assert handler_one.events == []
            assert 2 not in handler_one.up
            assert one.refused > 0
            two.close()
            handler_three = Recorder()
            three = transport(3, handler_three, ours.server(3))
            three.set_peer(1, ("127.0.0.1", one.port))
            await until(lambda: 3 in handler_one.up)
            three.close()

    asyncio.run(scenario())


def test_intruder_with_frames_in_its_handshake_is_not_read() -> None:
    """Bytes behind the client's last message are not delivered before its certificate is known.

    A client signed by the same authority sends HELLO and a frame at once.
    """

    async def scenario() -> None:
        async with server_one() as (one, handler_one):
            ours = authority()
            client = ours.client("mallory")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.load_verify_locations(ours.directory / "ca.pem")
            context.load_cert_chain(client.certificate, client.key)
            reader, writer = await asyncio.open_connection("127.0.0.1", one.port, ssl=context)
            writer.write(encode_hello(hello_of(2)) * 3)
            assert await reader.read() == b""
            writer.close()
            assert (handler_one.events, handler_one.frames) == ([], [])

    asyncio.run(scenario())


def test_peer_of_another_cluster_id_is_refused_with_the_right_certificate() -> None:
    """The certificate only identifies the server; HELLO names its cluster."""

    async def scenario() -> None:
        async with server_one() as (one, handler_one):
            hello = hello_of(2)
            other = Hello(2, hello.directory_id, hello.incarnation, "another-cluster")
            handler = Recorder()
            two = transport(2, handler, authority().server(2), other)
            two.set_peer(1, ("127.0.0.1", one.port))
            await until(lambda: bool(handler.rejects))
            assert handler.rejects[0][1] is RejectReason.WRONG_CLUSTER
            assert handler_one.frames == []
            assert one.refused > 0
            two.close()

    asyncio.run(scenario())


ACCEPTED, PREFERRED, REQUIRED = (
    LinkEncryption.ACCEPTED,
    LinkEncryption.PREFERRED,
    LinkEncryption.REQUIRED,
)


def files_of(server_id: int, links: LinkEncryption | None) -> TlsFiles | None:
    return None if links is None else replace(authority().server(server_id), links=links)


@pytest.mark.parametrize(
    ("dialer", "acceptor", "is_proved"),
    [
        (None, ACCEPTED, False),
        (ACCEPTED, None, False),
        (ACCEPTED, ACCEPTED, False),
        (ACCEPTED, PREFERRED, False),
        (PREFERRED, ACCEPTED, True),
        (PREFERRED, PREFERRED, True),
        (PREFERRED, REQUIRED, True),
        (REQUIRED, PREFERRED, True),
        (REQUIRED, ACCEPTED, True),
    ],
)
def test_every_two_that_meet_while_a_set_goes_over_are_linked(
    dialer: LinkEncryption | None, acceptor: LinkEncryption | None, is_proved: bool
) -> None:
    """Plain and "accepted", "accepted" and "preferred", "preferred" and "required", either way."""

    async def scenario() -> None:
        handler_one, handler_two = Recorder(), Recorder()
        one = transport(1, handler_one, files_of(1, acceptor))
        two = transport(2, handler_two, files_of(2, dialer))
        two.set_peer(1, ("127.0.0.1", one.port))
        await until(lambda: bool(handler_one.up and handler_two.up))
        payload = random.Random(1).randbytes(200_000)
        for sender, to in ((one, 2), (two, 1)):
            assert sender.send(to, FrameType.RAFT, [payload])
        await until(lambda: len(handler_one.frames) == len(handler_two.frames) == 1)
        for handler in (handler_one, handler_two):
            assert [frame[2] for frame in handler.frames] == [payload]
        (connection,) = one._open.values()
        assert connection.stream.identity == (2 if is_proved else None)
        one.close()
        two.close()

    asyncio.run(scenario())


def test_who_shows_a_wrong_certificate_is_refused_though_none_is_needed() -> None:
    """Accepting unencrypted links is no reason to accept another server's certificate."""

    async def scenario() -> None:
        handler_one, handler_two = Recorder(), Recorder()
        one = transport(1, handler_one, files_of(1, ACCEPTED))
        two = transport(2, handler_two, authority().server(3))
        two.set_peer(1, ("127.0.0.1", one.port))
        await until(lambda: one.refused > 0)
        assert not handler_one.up
        assert not handler_two.up
        one.close()
        two.close()

    asyncio.run(scenario())


class Scripted:
    """The stream below, and the reader of the one above."""

    identity: int | None = None

    def __init__(self, start: Callable[[StreamOwner], None] = lambda owner: None) -> None:
        self.start = start
        self.read = bytearray()
        self._buffer = bytearray(8)

    def write(self, buffers: Sequence[Buffer]) -> int:
        return sum(map(len, buffers))

    def unsent_bytes(self) -> int:
        return 0

    def limit_unsent(self, bytes_max: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def unread_bytes(self) -> int:
        return 0

    def close(self) -> None: ...

    def get_buffer(self) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, received: int) -> None:
        self.read += self._buffer[:received]

    def writable(self) -> None: ...

    def ended(self, cause: str) -> None: ...


@pytest.mark.parametrize("piece", range(1, FIRST_BYTES + 3))
@pytest.mark.parametrize("data", [b"\x16\x03\x00\x00plain", b"\x16\x03\x01\x02handshake"])
def test_first_bytes_tell_in_pieces_of_any_size_and_none_is_lost(data: bytes, piece: int) -> None:
    """A HELLO of 790 bytes begins as a handshake does, except for the third byte."""
    above, secured = Scripted(), []

    def secure(stream: Stream) -> Stream:
        secured.append(stream)
        return Scripted(stream.start)

    stream = EitherStream(Scripted(), secure)
    stream.start(above)
    at = 0
    while at < len(data):
        buffer = stream.get_buffer()
        part = data[at : at + min(piece, len(buffer))]
        buffer[: len(part)] = part
        stream.buffer_updated(len(part))
        at += len(part)
    assert above.read == data
    assert bool(secured) is is_handshake(data) is (b"handshake" in data)


class Narrow(Scripted):
    """A stream that accepts as much as it may hold, and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._bytes_max = self._held = 0

    def write(self, buffers: Sequence[Buffer]) -> int:
        taken = min(sum(map(len, buffers)), self._bytes_max - self._held)
        self._held += taken
        return taken

    def unsent_bytes(self) -> int:
        return self._held

    def limit_unsent(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max


class Clear:
    """Engine of a completed handshake; it encrypts nothing."""

    is_open, is_closed = True, False

    def __init__(self) -> None:
        self._output = b""

    def write(self, buffers: Sequence[Buffer], bytes_max: int) -> int:
        self._output += b"".join(buffers)[:bytes_max]
        return len(self._output)

    def take_output(self) -> bytes:
        output, self._output = self._output, b""
        return output


class Clearing:
    """Factory of such engines, without revocations."""

    new_engine = Clear

    def revokes(self, certificate: bytes) -> bool:
        return not certificate


class Reading(Clear):
    """The same, for incoming data."""

    def __init__(self) -> None:
        super().__init__()
        self._input = bytearray()

    def received(self, data: Buffer) -> None:
        self._input += data

    def read_into(self, buffer: memoryview) -> int:
        count = min(len(buffer), len(self._input))
        buffer[:count] = self._input[:count]
        del self._input[:count]
        return count


class Gate(Scripted):
    """A stream that knows if it is being read."""

    is_read = True

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def test_what_is_decrypted_waits_while_nobody_reads_and_comes_before_the_rest() -> None:
    """Eight bytes at a time here, and the reader pauses after each."""
    inner, maker = Gate(), Clearing()
    maker.new_engine = Reading  # type: ignore[assignment]
    stream = TlsStream(inner, security(authority().server(1)), cast(EngineMaker, maker))
    above = Scripted()
    take = above.buffer_updated

    def sip(received: int) -> None:
        take(received)
        stream.pause_reading()

    above.buffer_updated = sip  # type: ignore[method-assign]
    stream.start(above)
    stream.get_buffer()[:20] = bytes(range(20))
    stream.buffer_updated(20)
    for count in (8, 16, 20):
        assert above.read == bytes(range(count))
        assert not inner.is_read
        stream.resume_reading()
    assert inner.is_read


@pytest.mark.parametrize("bytes_max", [64 << 10, 75_000, 1 << 20, 16 << 20])
def test_what_waits_over_tls_is_no_more_than_without(bytes_max: int) -> None:
    """Ciphertext that the socket has not accepted waits too, and heartbeats wait behind both.

    A server whose links were full lost its leadership.
    """
    inner, maker = Narrow(), Clearing()
    stream = TlsStream(inner, security(authority().server(1)), cast(EngineMaker, maker))
    stream.limit_unsent(bytes_max)
    taken = stream.write([bytes(1 << 20) for _ in range(40)])
    assert bytes_max // 2 < stream.unsent_bytes() <= bytes_max
    assert taken == stream.unsent_bytes()
