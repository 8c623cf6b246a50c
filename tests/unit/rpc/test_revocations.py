"""Certificate revocation: accepted lists, and refused peers, clients and administrators."""

from __future__ import annotations

import asyncio
import datetime
import random
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rpc import revocations
from rpc.admin_client import AdminClient
from rpc.admin_security import AdminSecurity
from rpc.admin_service import AdminService
from rpc.errors import AdminError, TlsFailed
from rpc.peer import FrameType
from rpc.tls_context import ClientAuth, TlsContext, TlsFiles, TlsOptions
from rpc.transport import SocketTransport
from tests.unit.kafka.connections.test_listener import until
from tests.unit.kafka.connections.test_tls_listener import (
    Edge,
    ask,
    ended,
    scenario,
)
from tests.unit.rpc.test_admin import STATUS, Backend
from tests.unit.rpc.test_tls_links import OPTIONS, security
from tests.unit.rpc.test_transport import LOOPBACK
from tests.unit.rpc.world import Recorder, hello_of
from tests.unit.security_files import authority
from vdl.commands.app import run_app
from vdl.commands.servers.certificates import open_authority, revoke, serial_of
from vdl.config.settings import Config
from vdl.server.server_tls import ACCEPTING, ServerTls

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


class Lists:
    """The lists of one file, initially empty."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "lists.pem"
        self.add()

    def add(self, *names: str) -> None:
        """Revoke more certificates."""
        ours = authority()
        numbers = [serial_of(ours.directory, ours.authority, name) for name in names]
        made, _ = revoke(ours.directory, ours.authority, numbers)
        text = made.read_bytes()
        made.unlink()
        self.file.write_bytes(text)

    def raw(self, *, ends: datetime.datetime, issuer: str = "ours", key: Any = None) -> bytes:
        """Return a list that no authority would issue."""
        theirs = authority(issuer).authority
        builder = x509.CertificateRevocationListBuilder().issuer_name(theirs.certificate.subject)
        builder = builder.last_update(NOW - 30 * DAY).next_update(ends)
        made = builder.sign(key or theirs.key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(name="lists")
def _lists(tmp_path: Path) -> Lists:
    authority().client("alice")
    authority().server(2)
    return Lists(tmp_path)


def options(lists: Lists, auth: ClientAuth = ClientAuth.REQUIRED) -> TlsOptions:
    files = authority().server(1)
    return TlsOptions(own=files.own, ca=files.ca, crl=lists.file, client_auth=auth)


def test_list_that_cannot_be_used_is_refused_with_its_reason(
    lists: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unusable list is an error at the start; later the current list stays."""
    context = TlsContext(options(lists), server_side=True)
    good, current = lists.file.read_bytes(), context.current
    certificate = (authority("theirs").directory / "ca.pem").read_bytes()
    for data, problem in (
        (b"", "no revocation list"),
        (certificate, "no revocation list"),
        (good + certificate, "has a certificate"),
        (good.replace(b"M", b"N"), "invalid revocation list"),
        (lists.raw(ends=NOW - DAY), "expired at"),
        (lists.raw(ends=NOW + DAY, key=ec.generate_private_key(ec.SECP256R1())), "not signed"),
        (None, "No such file"),
        (b"x" * 2_000, "larger than"),
    ):
        if data is None:
            lists.file.unlink()
        else:
            lists.file.write_bytes(data)
        if problem == "larger than":
            monkeypatch.setattr(revocations, "FILE_BYTES_MAX", 1_000)
        with pytest.raises(TlsFailed, match=problem):
            TlsContext(options(lists), server_side=True)
        assert context.is_outdated()
        with pytest.raises(TlsFailed, match=problem):
            context.load()
        assert context.current is current


def test_of_two_lists_of_an_authority_the_later_one_counts(lists: Lists) -> None:
    """While one replaces the other both may be present."""
    newer = lists.file.read_bytes()
    lists.file.write_bytes(newer + lists.raw(ends=NOW - DAY))
    found = TlsContext(options(lists), server_side=True).revocations
    assert found is not None
    assert found.ends > NOW + DAY


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("by_name", [False, True])
def test_client_that_is_revoked_is_out(
    lists: Lists, version: ssl.TLSVersion, by_name: bool
) -> None:
    """A revoked client's open connection and each new one are refused.

    This includes a resumed session and another certificate of the server. Clients that are not in
    the list continue.
    """

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUIRED)
        wanted = options(lists)
        if by_name:
            assert wanted.own is not None
            wanted = replace(wanted, others=(wanted.own,))
        edge.tls.context = context = TlsContext(wanted, server_side=True)
        alice, bob = authority().client("alice"), authority().client("bob")
        both = [await edge.connect(one, version) for one in (alice, bob)]
        for one in both:
            await ask(*one)
        assert len(edge.tls._certified) == 2
        lists.add("client-alice")
        edge.tls.drop_revoked()
        await ask(*both[0])
        context.load()
        edge.tls.drop_revoked()
        assert await ended(both[0][0])
        told = [one["reason"] for _, _, one in edge.log.events]
        assert told == ["certificate: it was revoked"]
        await ask(*both[1])
        failed = edge.tls.failed
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(*await edge.connect(alice, version))
        assert edge.tls.failed == failed + 1
        fresh = await edge.connect(bob, version)
        await ask(*fresh)
        for _, writer in (*both, fresh):
            writer.close()
        await until(lambda: not edge.tls._certified)
        await edge.close()

    scenario(steps)


def test_client_that_is_revoked_during_its_handshake_is_refused(lists: Lists) -> None:
    """A handshake that began before the list was known is refused after it."""

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUIRED)
        edge.tls.context = context = TlsContext(options(lists), server_side=True)
        jobs: list[Any] = []
        offload, edge.tls.offload = edge.tls.offload, lambda *one: jobs.append(one)
        late = asyncio.create_task(edge.connect(authority().client("alice")))
        await until(lambda: len(jobs) == 1)
        lists.add("client-alice")
        context.load()
        edge.tls.drop_revoked()
        edge.tls.offload = offload
        offload(*jobs.pop())
        try:
            reader, writer = await late
            assert await ended(reader)
            writer.close()
        except OSError:
            pass
        await until(lambda: edge.tls.failed == 1)
        assert len(edge.frontend) == 0
        await edge.close()

    scenario(steps)


@pytest.mark.parametrize("what", ["expired at", "other authority"])
def test_everybody_is_refused_whose_authority_has_no_list(
    lists: Lists, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All clients of an authority without a valid list are refused, as with OpenSSL.

    The list has expired, or there is none. It is logged.
    """
    if what == "expired at":
        lists.file.write_bytes(lists.raw(ends=NOW - DAY))
        monkeypatch.setattr(revocations.Revocations, "ends", NOW + DAY)
    else:
        # A name of its own: otherwise both would have the same one.
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "else")])
        builder = x509.CertificateRevocationListBuilder().issuer_name(name)
        made = builder.last_update(NOW - DAY).next_update(NOW + DAY).sign(key, hashes.SHA256())
        lists.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    async def steps() -> None:
        edge = Edge(auth=ClientAuth.REQUIRED)
        edge.tls.context = TlsContext(options(lists), server_side=True)
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await ask(*await edge.connect(authority().client("bob")))
        await until(lambda: edge.tls.failed == 1)
        await edge.close()

    scenario(steps)
    (told,) = [vars(record)["fields"]["reason"] for record in caplog.records]
    assert ("CRL has expired" if what == "expired at" else "unable to get certificate CRL") in told


def test_peer_that_is_revoked_is_out_and_others_are_linked(lists: Lists) -> None:
    """The open link ends, whichever server dialled, and no other one is made."""

    async def steps() -> None:
        loop = asyncio.get_running_loop()
        files = replace(authority().server(1), crl=lists.file)
        secured = security(files)
        handlers = [Recorder() for _ in range(3)]
        one = SocketTransport(
            hello_of(1), LOOPBACK, handlers[0], loop=loop, rng=random.Random(1), options=OPTIONS,
            security=secured,
        )  # fmt: skip
        others = [
            SocketTransport(
                hello_of(number), LOOPBACK, handlers[number - 1], loop=loop,
                rng=random.Random(number), options=OPTIONS,
                security=security(authority().server(number)),
            )
            for number in (2, 3)
        ]  # fmt: skip
        for number, other in zip((2, 3), others, strict=True):
            other.set_peer(1, ("127.0.0.1", one.port))
            one.set_peer(number, ("127.0.0.1", other.port))
        await until(lambda: set(handlers[0].up) == {2, 3})
        lists.add("server-2")
        secured.drop_revoked()
        assert set(handlers[0].up) == {2, 3}
        for side in (secured.accepting, secured.dialing):
            assert isinstance(side, TlsContext)
            side.load()
        secured.drop_revoked()
        await until(lambda: set(handlers[0].up) == {3})
        refused = one.refused
        await until(lambda: one.refused > refused + 1)
        assert set(handlers[0].up) == {3}
        others[0].send(1, FrameType.RAFT, [b"revoked"])
        assert others[1].send(1, FrameType.RAFT, [b"good"])
        await until(lambda: [frame[2] for frame in handlers[0].frames] == [b"good"])
        for transport in (*others, one):
            transport.close()
        assert not secured.proved

    asyncio.run(steps())


def test_administrator_that_is_revoked_is_refused_call_by_call(lists: Lists) -> None:
    """gRPC completes the handshake without lists."""
    files = replace(authority().server(1), crl=lists.file)
    admin = authority().admin()

    async def steps() -> None:
        context = TlsContext(files.between_servers(), server_side=True)
        guard = AdminSecurity(files, lambda: context.revocations)
        service = AdminService(Backend(), security=guard)
        port = await service.start(("127.0.0.1", 0))

        def status(client: AdminClient) -> object:
            return client.status()

        with AdminClient(("127.0.0.1", port), files=admin) as client:
            assert await asyncio.to_thread(status, client) == STATUS
            lists.add("admin")
            context.load()
            with pytest.raises(AdminError, match="PERMISSION"):
                await asyncio.to_thread(status, client)
        with AdminClient(("127.0.0.1", port), files=authority().server(2)) as client:
            assert await asyncio.to_thread(status, client) == STATUS
            found = context.revocations
            assert found is not None
            found._ends = dict.fromkeys(found._ends, NOW - DAY)
            with pytest.raises(AdminError, match="PERMISSION"):
                await asyncio.to_thread(status, client)
        await service.stop()

    asyncio.run(steps())


def test_server_follows_the_file_and_says_when_a_list_ends_soon(lists: Lists) -> None:
    """The server reloads the file, and logs a list's coming end once a day, from a week before."""
    lists.file.write_bytes(lists.raw(ends=NOW + 2 * DAY))
    tls = ServerTls(replace(Config(), tls=replace(authority().server(1), crl=lists.file)))
    tls.load()
    assert tls.revocations() is not None
    first = tls.refresh()
    assert (first.loaded, set(first.ending)) == ([], {ACCEPTING})
    assert not tls.refresh().ending
    lists.add("server-2")
    assert ACCEPTING in tls.refresh().loaded
    found = tls.revocations()
    assert found is not None
    assert len(found.serials) == 1
    lists.file.unlink()
    assert "No such file" in tls.refresh().problems[ACCEPTING]


def test_command_revokes_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command revokes by name or by number.

    Repeating it adds nothing; another authority's list is not changed.
    """
    folder = tmp_path / "tls"
    out = ["--out", str(folder)]
    assert run_app(["cert", "revoke", "server-1", *out]) == 1
    assert not folder.exists()
    assert run_app(["cert", *out, "--nodes", "2", "--client", "alice"]) == 0
    for number, arguments in (
        (0, []),
        (1, ["client-alice"]),
        (1, ["client-alice"]),
        (2, ["--serial", "0A:0b"]),
        (3, ["server-2.pem", "--days", "3"]),
    ):
        assert run_app(["cert", "revoke", *arguments, *out]) == 0
        assert f"crl.pem: {number} revoked" in capsys.readouterr().out
    found = x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())
    made = open_authority(folder, "vdl")
    expected = {serial_of(folder, made, name) for name in ("client-alice", "server-2")}
    assert {entry.serial_number for entry in found} == expected | {0xA0B}
    number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    assert number == 5
    assert found.next_update_utc is not None
    assert 2 * DAY < found.next_update_utc - NOW < 4 * DAY
    files = TlsFiles(folder / "server-1.pem", folder / "server-1.key", folder / "ca.pem")
    wanted = replace(files, crl=folder / "crl.pem").between_servers()
    assert TlsContext(wanted, server_side=True).revocations is not None
    assert run_app(["cert", "revoke", "client-bob", *out]) == 1
    assert run_app(["cert", "revoke", "--serial", "xyz", *out]) != 0
    (folder / "crl.pem").write_bytes(Lists(tmp_path).raw(ends=NOW + DAY, issuer="theirs"))
    assert run_app(["cert", "revoke", "client-alice", *out]) == 1


def test_other_ends_of_a_client_context_are_checked_too(lists: Lists) -> None:
    """A client refuses a server whose certificate was revoked."""
    lists.add("server-2")
    files = replace(authority().server(1), crl=lists.file).between_servers()
    dialing = TlsContext(files, server_side=False).new_engine()
    other = TlsContext(authority().server(2).between_servers(), server_side=True).new_engine()

    def shake_hands() -> None:
        for _ in range(4):
            dialing.handshake()
            other.received(dialing.take_output())
            other.handshake()
            dialing.received(other.take_output())

    with pytest.raises(TlsFailed, match="certificate revoked"):
        shake_hands()
