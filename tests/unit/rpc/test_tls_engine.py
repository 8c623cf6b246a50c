"""TLS without sockets: two engines back to back."""

from __future__ import annotations

import hmac
import os
import random
import ssl
from pathlib import Path
from struct import pack

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from rpc.errors import TlsFailed
from rpc.tls_context import (
    ADMIN,
    ClientAuth,
    KeyPair,
    TlsContext,
    TlsOptions,
    alternative_names,
    identity_in,
    identity_uri,
)
from rpc.tls_engine import (
    EMPTY_RECORDS_MAX,
    HANDSHAKE_BYTES_MAX,
    RECORD_BYTES,
    RECORDS_AT_ONCE,
    TlsEngine,
    after,
)
from tests.unit.security_files import authority
from vdl.commands.servers.certificates import write_server

DAMAGED_SHARE = 0.5
"""Share of the client's messages that are damaged."""


def engines(
    *,
    client_auth: ClientAuth = ClientAuth.NONE,
    own: KeyPair | None = None,
    version: str = "TLSv1.2",
) -> tuple[TlsEngine, TlsEngine]:
    """Return (server, client), neither of which has begun."""
    files = authority().server(1)
    server = TlsContext(
        TlsOptions(own=files.own, ca=files.ca, client_auth=client_auth, version_min=version),
        server_side=True,
    )
    client = TlsContext(TlsOptions(own=own, ca=files.ca), server_side=False)
    return (
        TlsEngine(server.current, server_side=True),
        TlsEngine(client.current, server_side=False),
    )


def shake_hands(server: TlsEngine, client: TlsEngine, step: int = 1 << 20) -> None:
    """Exchange their output, in pieces, until both are done."""
    for _ in range(10):
        if not client.is_open:
            client.handshake()
        deliver(client, server, step)
        if not server.is_open:
            server.handshake()
        deliver(server, client, step)
        if server.is_open and client.is_open:
            return
    raise AssertionError("the handshake does not end")


def deliver(source: TlsEngine, target: TlsEngine, step: int = 1 << 20) -> None:
    data = source.take_output()
    for at in range(0, len(data), step):
        target.received(data[at : at + step])


def read_all(engine: TlsEngine, buffer_bytes: int = 1 << 16) -> bytes:
    found = bytearray()
    view = memoryview(bytearray(buffer_bytes))
    while count := engine.read_into(view):
        found += view[:count]
    return bytes(found)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_engine_carries_both_ways_whole_or_byte_by_byte(step: int, version: str) -> None:
    """Buffers of every size come out as one stream."""
    server, client = engines(version=version)
    shake_hands(server, client, step)
    rng = random.Random(1)
    sizes = (0, 1, 5, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3, 100_000)
    buffers = [rng.randbytes(size) for size in sizes]
    assert server.write(buffers, 1 << 30) == sum(sizes)
    deliver(server, client, step if step > 1 else 7)
    assert read_all(client, 1_000) == b"".join(buffers)
    assert client.write([b"answer"], 1 << 30) == 6
    deliver(client, server, step)
    assert server.has_input
    assert read_all(server) == b"answer"
    assert not server.has_input


def test_engine_joins_small_buffers_into_one_record() -> None:
    """A call into OpenSSL and a record cost more than the copy."""
    server, client = engines()
    shake_hands(server, client)
    server.write([bytes(100)] * 100, 1 << 30)
    assert len(server.take_output()) < 100 * 100 + 100


def test_engine_writes_no_more_than_asked_and_says_how_much() -> None:
    """The caller keeps the rest, from the middle of a buffer if need be."""
    server, client = engines()
    shake_hands(server, client)
    buffers = [bytes([index]) * 30_000 for index in range(10)]
    taken = server.write(buffers, 70_000)
    assert 70_000 <= taken < 70_000 + RECORD_BYTES
    rest = after(buffers, taken)
    assert b"".join(rest) == b"".join(buffers)[taken:]
    assert after(buffers, 300_000) == ()
    assert list(after(buffers, 30_000)) == buffers[1:]


def test_engine_notices_the_end_that_is_said() -> None:
    server, client = engines()
    shake_hands(server, client)
    server.write([b"last"], 100)
    client.received(server.take_output() + server.close())
    assert read_all(client) == b"last"
    assert client.is_closed
    assert not client.has_input


def test_engine_refuses_what_was_changed_on_the_way() -> None:
    """A flipped bit of a record ends the connection; none of the record is returned."""
    server, client = engines()
    shake_hands(server, client)
    server.write([b"secret"], 100)
    record = bytearray(server.take_output())
    record[-1] ^= 1
    client.received(record)
    with pytest.raises(TlsFailed):
        read_all(client)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff",
        bytes(50),
    ],
    ids=["http", "kafka", "zeros"],
)
def test_engine_refuses_what_is_not_tls(data: bytes) -> None:
    server, _ = engines()
    server.received(data)
    with pytest.raises(TlsFailed) as raised:
        server.handshake()
    assert "_ssl.c" not in str(raised.value)


def test_engine_bounds_what_arrives_before_the_handshake_is_done() -> None:
    server, _ = engines()
    server.received(bytes(HANDSHAKE_BYTES_MAX))
    with pytest.raises(TlsFailed, match="exceeds its maximum size"):
        server.received(b"0")


def test_engine_damaged_handshakes_raise_nothing_else() -> None:
    """Any change to any message leads to TlsFailed or waiting, never to another exception.

    `TLS_FUZZ` is the number of attempts; by hand, a million.
    """
    rng = random.Random(7)
    refused = 0
    for _ in range(int(os.environ.get("TLS_FUZZ", "150"))):
        server, client = engines(client_auth=ClientAuth.REQUIRED, own=authority().client("fuzz"))
        try:
            for _ in range(3):
                client.handshake()
                data = bytearray(client.take_output())
                if data and rng.random() < DAMAGED_SHARE:
                    for _ in range(rng.choice((1, 3, 50))):
                        data[rng.randrange(len(data))] = rng.randrange(256)
                server.received(data)
                server.handshake()
                client.received(server.take_output())
        except TlsFailed:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("auth", "shown", "accepted"),
    [
        (ClientAuth.NONE, "ours", True),
        (ClientAuth.REQUESTED, "", True),
        (ClientAuth.REQUESTED, "ours", True),
        (ClientAuth.REQUESTED, "theirs", False),
        (ClientAuth.REQUIRED, "", False),
        (ClientAuth.REQUIRED, "ours", True),
        (ClientAuth.REQUIRED, "theirs", False),
    ],
)
def test_engine_asks_for_certificates_as_it_is_told(
    auth: ClientAuth, shown: str, accepted: bool
) -> None:
    """A certificate signed by a stranger is worse than none."""
    own = authority(shown).client("alice") if shown else None
    server, client = engines(client_auth=auth, own=own)
    if not accepted:
        with pytest.raises(TlsFailed):
            shake_hands(server, client)
        return
    shake_hands(server, client)
    certificate = server.peer_certificate()
    assert (certificate is not None) == (bool(shown) and auth is not ClientAuth.NONE)


def test_context_has_nothing_resumed_or_renegotiated() -> None:
    files = authority().server(1)
    context = TlsContext(TlsOptions(own=files.own), server_side=True).current
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET, ssl.OP_NO_COMPRESSION):
        assert context.options & option
    assert context.num_tickets == 0
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_context_shows_the_certificate_that_was_asked_for() -> None:
    """SNI: by name, ignoring case; the first certificate for unknown names."""
    ours = authority()
    folder = ours.directory / "sni"
    folder.mkdir(exist_ok=True)
    other = write_server(folder, ours.authority, "test", 9, ["Kafka.example.org"])
    options = TlsOptions(
        own=ours.server(1).own, others=(KeyPair(other, other.with_suffix(".key")),)
    )
    server = TlsContext(options, server_side=True).current
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(ours.directory / "ca.pem")
    client.check_hostname = False
    for asked, uri in (
        ("kafka.example.org", identity_uri("test", 9)),
        ("nobody.example.org", identity_uri("test", 1)),
        (None, identity_uri("test", 1)),
    ):
        one = TlsEngine(server, server_side=True)
        two = TlsEngine(client, server_side=False, server_hostname=asked)
        shake_hands(one, two)
        assert alternative_names(two.peer_certificate() or {}, "URI") == [uri]


def test_context_follows_its_files_and_survives_a_half_made_change(tmp_path) -> None:
    """A key without its certificate changes nothing; both take effect for later connections."""
    ours = authority()
    files = ours.server(1)
    assert files.own is not None
    certificate, key = tmp_path / "s.pem", tmp_path / "s.key"
    certificate.write_bytes(files.own.certificate.read_bytes())
    key.write_bytes(files.own.key.read_bytes())
    context = TlsContext(TlsOptions(own=KeyPair(certificate, key)), server_side=True)
    before = context.current
    assert not context.is_outdated()
    new = ours.server(2).own
    assert new is not None
    key.write_bytes(new.key.read_bytes())
    assert context.is_outdated()
    with pytest.raises(TlsFailed) as raised:
        context.load()
    assert "key values mismatch" in str(raised.value)
    assert context.current is before
    certificate.write_bytes(new.certificate.read_bytes())
    assert context.is_outdated()
    context.load()
    assert context.current is not before
    assert not context.is_outdated()


def test_context_says_which_file_cannot_be_used(tmp_path) -> None:
    missing = KeyPair(tmp_path / "no.pem", tmp_path / "no.key")
    with pytest.raises(TlsFailed, match="No such file"):
        TlsContext(TlsOptions(own=missing), server_side=True)
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(TlsFailed, match=r"junk\.pem"):
        TlsContext(TlsOptions(ca=junk), server_side=False)


@pytest.mark.parametrize(
    ("uris", "identity"),
    [
        (["vdl://test/server/7"], 7),
        (["vdl://test/admin"], ADMIN),
        (["https://example.org", "vdl://test/server/7"], 7),
        ([], None),
        (["vdl://other/server/7"], None),
        (["vdl://test/server/0"], None),
        (["vdl://test/server/07"], None),
        (["vdl://test/server/7/8"], None),
        (["vdl://test/server/7", "vdl://test/server/8"], None),
        (["vdl://test/server/7", "vdl://test/admin"], None),
        (["VDL://test/server/7"], None),
        (["vdl://test/server/7\n"], None),
    ],
)
def test_identity_is_what_one_name_says(uris: list[str], identity: int | None) -> None:
    assert identity_in(uris, "test") == identity


class KeyUpdater:
    """The records of a TLS 1.3 client, made here: OpenSSL's client cannot be made to update its
    keys."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sequence = 0

    def _expanded(self, name: bytes, count: int) -> bytes:
        """HKDF-Expand-Label of at most one block, with SHA-384 (RFC 8446 §7.1)."""
        name = b"tls13 " + name
        info = pack(">HB", count, len(name)) + name + b"\0\1"
        return hmac.digest(self._secret, info, "sha384")[:count]

    def record(self, content: bytes, kind: int) -> bytes:
        nonce = int.from_bytes(self._expanded(b"iv", 12)) ^ self._sequence
        self._sequence += 1
        head = b"\x17\3\3" + pack(">H", len(content) + 17)
        key = AESGCM(self._expanded(b"key", 32))
        return head + key.encrypt(nonce.to_bytes(12), content + bytes([kind]), head)

    def update(self, *, asks: bool) -> bytes:
        """Return one KeyUpdate. `asks`: the other end is asked for one, too."""
        record = self.record(b"\x18\0\0\1" + bytes([asks]), 22)
        self._secret, self._sequence = self._expanded(b"traffic upd", 48), 0
        return record


def key_updater(tmp_path: Path) -> tuple[TlsEngine, KeyUpdater]:
    """Return a server after the handshake, and the client."""
    files = authority().server(1)
    server = TlsContext(TlsOptions(own=files.own, ca=files.ca), server_side=True).current
    client = TlsContext(TlsOptions(ca=files.ca), server_side=False).current
    client.keylog_filename = str(tmp_path / "keys")
    ends = TlsEngine(server, server_side=True), TlsEngine(client, server_side=False)
    shake_hands(*ends)
    assert ends[0].cipher == "TLS_AES_256_GCM_SHA384"
    lines = (tmp_path / "keys").read_text().splitlines()
    (secret,) = [line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0")]
    return ends[0], KeyUpdater(bytes.fromhex(secret))


@pytest.mark.parametrize("asks", [False, True])
def test_client_that_updates_its_keys_again_and_again_is_refused(
    tmp_path: Path, *, asks: bool
) -> None:
    """Each of 27 bytes takes as long as a small request: 64 KiB took 20 to 45 ms of the loop."""
    server, client = key_updater(tmp_path)
    server.received(b"".join(client.update(asks=asks) for _ in range(2_000)))
    with pytest.raises(TlsFailed, match="without data"):
        read_all(server)
    assert len(server.take_output()) // 27 <= EMPTY_RECORDS_MAX + RECORDS_AT_ONCE


@pytest.mark.parametrize("step", [1, 1_000, 1 << 20])
def test_data_is_read_whole_around_updates_of_keys(tmp_path: Path, step: int) -> None:
    """Small records are passed on in several pieces. A client may update its keys sometimes."""
    server, client = key_updater(tmp_path)
    sent, records = b"", []
    for number in range(600):
        data = number.to_bytes(2)
        sent += data
        records.append(client.record(data, 23))
        if not number % 20:
            records.append(client.update(asks=True))
    wire = b"".join(records)
    found = b""
    for at in range(0, len(wire), step):
        server.received(wire[at : at + step])
        while server.has_input and (more := read_all(server)):
            found += more
    assert found == sent
