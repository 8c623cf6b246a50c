"""Links over TLS: who is a server of the set gets one, and nobody else gets a frame in."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator

import pytest

from rpc.hello import Hello, RejectReason, encode_hello
from rpc.link_options import LinkOptions
from rpc.peer import FrameType
from rpc.tls_context import TlsContext, TlsFiles
from rpc.tls_stream import LinkSecurity, handshake_at_once
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
    """It dials, and it is dialled: neither makes a link, and the server goes on taking others."""

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
            for _ in range(30):
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
    """Bytes behind the client's last message reach nobody before its certificate is known: a client
    that is signed by the same authority sends HELLO and a frame at once."""

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
    """The certificate is only who it is; HELLO says where it belongs."""

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
