"""Fuzzer of handshakes, certificates and login tokens: finds crashes and memory leaks.

    python -m tests.fuzz.security [--count N] [--seed S]

Each round damages one of

* the flights of a client's good handshake of TLS 1.2 or 1.3, with a certificate, which TLS 1.2
  sends in the clear; a server's engine gets them in pieces;
* the first or the last message of SCRAM, a token of PLAIN or of OAUTHBEARER;
* the subject and the names of a certificate.

Allowed results are those that the owners of these parts handle: TlsFailed, or a refusal. Anything
else ends the run, with the round's number; the same seed and count give the same rounds.
"""

from __future__ import annotations

import argparse
import base64
import random
import resource
import ssl
import sys
import time
from collections.abc import Callable

from rpc.errors import TlsFailed
from rpc.tls_context import ClientAuth, TlsContext, TlsOptions, alternative_names, identity_in
from rpc.tls_engine import TlsEngine
from tests.unit.kafka.security.test_oauth import token as bearer_token
from tests.unit.kafka.security.test_oauth import validator
from tests.unit.security_files import CLUSTER, authority
from vdl.kafka.security.certificate_names import PrincipalRules
from vdl.kafka.security.mechanism import Accepted, Challenge, Mechanism, Refused, Step
from vdl.kafka.security.oauth import OauthLogin
from vdl.kafka.security.plain import PlainLogin
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.protocol import SCRAM_SHA_256
from vdl.kafka.security.scram import Found, ScramLogin, Verifier, decoy
from vdl.kafka.security.scram_client import ScramConversation

GROWTH_BYTES_MAX = 64 << 20
"""Limit of the process's growth over a whole run, after the first rounds."""
WARM_ROUNDS = 200
NOW_MS = 1_700_000_000_000
_VERIFIER = Verifier(1, b"salt", bytes(32), bytes(32))
"""Verifier of no user, with one iteration, so that a round takes less than a millisecond."""


class Fuzz:
    """Rounds of one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        ours = authority()
        files, client = ours.server(1), ours.client("alice")
        options = TlsOptions(own=files.own, ca=files.ca, client_auth=ClientAuth.REQUESTED)
        self._context = TlsContext(options, server_side=True).current
        self._flights = [
            flights_of(self._context, client.certificate, client.key, files.ca, version)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
        ]
        self._rules = PrincipalRules(r"RULE:^CN=([^,]+).*$/$1/L,DEFAULT")
        self._bearer = b"n,,\1auth=Bearer " + bearer_token().encode() + b"\1\1"
        self._kinds: tuple[Callable[[], None], ...] = (
            self.handshake, self.scram, self.plain, self.oauth, self.certificate,
        )  # fmt: skip

    def round(self) -> None:
        """Run one round. Half of them are handshakes: one of each kind in turn would cover less."""
        (self.handshake if self._rng.random() < 0.5 else self._rng.choice(self._kinds[1:]))()

    def damaged(self, data: bytes) -> bytes:
        rng = self._rng
        made = bytearray(data)
        for _ in range(1 + rng.randrange(4)):
            at = rng.randrange(len(made) + 1)
            match rng.randrange(6):
                case 0 if at < len(made):
                    made[at] = rng.randrange(256)
                case 1 if at < len(made):
                    made[at] ^= 1 << rng.randrange(8)
                case 2:
                    del made[at : at + rng.randrange(40)]
                case 3:
                    made[at:at] = rng.randbytes(rng.randrange(40))
                case 4:
                    made[at:at] = made[at : at + rng.randrange(400)]
                case _:
                    made[at : at + 2] = rng.choice((b"\xff\xff", b"\0\0", b"\x7f\xff", b"\0\1"))
        return bytes(made)

    def handshake(self) -> None:
        rng = self._rng
        engine = TlsEngine(self._context, server_side=True)
        buffer = memoryview(bytearray(1 << 14))
        flights = rng.choice(self._flights)
        broken = rng.randrange(len(flights))
        try:
            for number, flight in enumerate(flights):
                rest = self.damaged(flight) if number == broken else flight
                while rest:
                    size = rng.choice((1, 5, 100, 1 << 16))
                    engine.received(rest[:size])
                    rest = rest[size:]
                    if engine.is_open or engine.handshake():
                        engine.read_into(buffer)
                engine.take_output()
        except TlsFailed:
            pass
        engine.close()

    def scram(self) -> None:
        login = ScramLogin(
            SCRAM_SHA_256,
            lambda _, first: Found(Principal(first.name), _VERIFIER) if first.name else None,
            lambda mechanism, first: decoy(mechanism, first.name, b"key"),
            self._rng.randbytes,
        )
        client = ScramConversation(SCRAM_SHA_256, "alice", "secret", "nonce")
        first = client.first()
        step = taken(login, self.damaged(first) if self._rng.random() < 0.5 else first)
        if isinstance(step, Challenge):
            nonce = step.token.split(b",")[0]
            final = b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32))
            assert not isinstance(taken(login, self.damaged(final)), Accepted)

    def plain(self) -> None:
        login = PlainLogin(
            lambda name: (SCRAM_SHA_256, _VERIFIER),
            SCRAM_SHA_256,
            lambda name: decoy(SCRAM_SHA_256, name, b"key"),
            lambda job, done: done(job()),
            lambda name: False,
        )
        assert isinstance(taken(login, self.damaged(b"\0alice\0secret")), Refused)

    def oauth(self) -> None:
        login = OauthLogin(validator(), lambda: NOW_MS, lambda job, done: done(job()))
        token = self.damaged(self._bearer)
        step = taken(login, token)
        if isinstance(step, Accepted):
            assert signed_part(self._bearer) in token, token

    def certificate(self) -> None:
        rng = self._rng
        names = ("commonName", "emailAddress", "x", "organizationName")

        def text() -> str:
            return self.damaged(b'alice, "O=x+y;<\\> #').decode("latin-1")

        subject = tuple(((rng.choice(names), text()),) for _ in range(rng.randrange(6)))
        self._rules.principal_of({"subject": subject})
        uri = self.damaged(f"vdl://{CLUSTER}/server/2".encode()).decode("latin-1")
        found = alternative_names({"subjectAltName": (("URI", uri), ("DNS", text()))}, "URI")
        identity = identity_in(found, CLUSTER)
        assert identity is None or uri in (
            f"vdl://{CLUSTER}/admin", f"vdl://{CLUSTER}/server/{identity}"
        ), uri  # fmt: skip


def signed_part(message: bytes) -> bytes:
    """Return the signed part of a token: its header and claims."""
    return message.partition(b"Bearer ")[2].rpartition(b".")[0]


def taken(login: Mechanism, token: bytes) -> Step:
    """Return a login's result for a token."""
    steps: list[Step] = []
    login.step(token, steps.append)
    (step,) = steps
    return step


def flights_of(
    context: ssl.SSLContext, certificate: object, key: object, ca: object, version: ssl.TLSVersion
) -> list[bytes]:
    """Return the messages that a client sends in a good handshake, and after it."""
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.load_verify_locations(str(ca))
    own.load_cert_chain(str(certificate), str(key))
    own.minimum_version = own.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = own.wrap_bio(incoming, outgoing, server_hostname="localhost")
    server = TlsEngine(context, server_side=True)
    flights = []
    is_done = False
    while not (is_done and server.is_open):
        try:
            client.do_handshake()
            is_done = True
        except ssl.SSLWantReadError:
            pass
        if flight := outgoing.read():
            flights.append(flight)
            server.received(flight)
            server.handshake()
            incoming.write(server.take_output())
    client.write(b"request")
    flights.append(outgoing.read())
    return flights


def resident_bytes() -> int:
    """Return the largest resident size so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def run(count: int, seed: int) -> int:
    """Return the number of bytes by which the process grew.

    Raises exceptions that no owner of a part handles.
    """
    fuzz = Fuzz(seed)
    for _ in range(min(count, WARM_ROUNDS)):
        fuzz.round()
    before = resident_bytes()
    for number in range(WARM_ROUNDS, count):
        try:
            fuzz.round()
        except BaseException as error:
            error.add_note(f"seed {seed}, round {number}")
            raise
    return resident_bytes() - before


def main() -> int:
    parser = argparse.ArgumentParser(description="Damage handshakes, certificates and tokens.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    grown = run(arguments.count, arguments.seed)
    seconds = time.monotonic() - began
    print(f"{arguments.count} rounds in {seconds:.0f} s; the process grew by {grown >> 10} KiB")
    return int(grown > GROWTH_BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main())
