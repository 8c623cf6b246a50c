"""SASL logins at a front end on virtual time: permitted requests, and who is authenticated."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections import Counter
from collections.abc import Callable
from struct import pack, unpack
from typing import Any

import pytest

from tests.unit.kafka.fake_host import LISTENER, Client, World
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions
from vdl.kafka.connections import frontend
from vdl.kafka.connections.logins import _scram
from vdl.kafka.handlers.sasl import REFUSAL_DELAY_MS
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.security.login import LOGIN_SECONDS_MAX, LoginState
from vdl.kafka.security.login_failures import FREE
from vdl.kafka.security.oauth import Validator
from vdl.kafka.security.oauth_options import OauthOptions
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.kafka.security.protocol import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.security.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    parse_client_first,
    salted_password,
    verifier_of,
)
from vdl.kafka.security.scram_client import ScramConversation, ScramRefused
from vdl.kafka.wire.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    UserName,
)
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest
from vdl.state.commands import AlterScramCredentials, ScramUpsert

HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA, DESCRIBE, ALTER = 17, 36, 18, 3, 50, 51
MECHANISMS = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)
PASSWORD = "correct horse"
WRONG = "correct hearse"


def upsert(user: str, mechanism: str, password: str = PASSWORD) -> ScramUpsert:
    salt = user.encode().ljust(16, b"s")
    salted = salted_password(mechanism, password.encode(), salt, ITERATIONS_MIN)
    made = verifier_of(mechanism, salted, salt, ITERATIONS_MIN)
    return ScramUpsert(user, mechanism, *made)


class Place(World):
    """A front end with users `alice` and `=,`, and a listener that requires a login."""

    def __init__(self, options: KafkaOptions | None = None) -> None:
        super().__init__(options)
        upserts = [upsert(user, m) for user in ("alice", "=,") for m in MECHANISMS[:2]]
        self.host.apply(AlterScramCredentials([], upserts, b"d" * 32))

    def visitor(self, mechanisms: tuple[str, ...] = MECHANISMS) -> Client:
        """Return a client that has not logged in."""
        client = self.client()
        client.session.connection_lost()
        client.closed = False
        session = self.frontend.accept(client, LISTENER, ("10.0.0.1", 1), mechanisms=mechanisms)
        assert session is not None
        client.session = session
        return client

    def prove(self, client: Client, token: bytes, version: int = 2) -> SaslAuthenticateResponse:
        answer = client.ask(
            AUTHENTICATE, version, SaslAuthenticateRequest(token), 2 * REFUSAL_DELAY_MS
        )
        assert isinstance(answer, SaslAuthenticateResponse)
        return answer

    def log_in(
        self, client: Client, mechanism: str, user: str = "alice", password: str = PASSWORD
    ) -> SaslAuthenticateResponse:
        """Run a whole login. Return its last answer."""
        chosen = client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        assert chosen.error_code == ErrorCode.NONE
        if mechanism == PLAIN:
            return self.prove(client, f"\0{user}\0{password}".encode())
        scram = ScramConversation(mechanism, user, password, "client-nonce")
        first = self.prove(client, scram.first())
        if first.error_code:
            return first
        last = self.prove(client, scram.final(first.auth_bytes))
        if not last.error_code:
            scram.check(last.auth_bytes)
        return last


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "=,"])
def test_login_with_the_right_password_says_who_it_is(mechanism: str, user: str) -> None:
    place = Place()
    client = place.visitor()
    assert place.log_in(client, mechanism, user).error_code == ErrorCode.NONE
    assert client.session.info.principal == Principal(user)
    place.topic("t")
    assert client.ask(METADATA, 12, MetadataRequest(topics=None)).topics
    assert not client.closed


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login_that_is_refused_says_the_same_of_every_cause(mechanism: str) -> None:
    """A wrong password and an unknown user get the same answer after the same time."""
    told = set()
    for user, password in (("alice", WRONG), ("nobody", PASSWORD)):
        place = Place()
        client = place.visitor()
        answer = place.log_in(client, mechanism, user, password)
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.auth_bytes == b""
        told.add(answer.error_message)
        assert client.closed
        assert client.session.info.principal == ANONYMOUS
        assert place.frontend.stats.login_failures == 1
        said = repr(place.log.events)
        assert PASSWORD not in said
        assert WRONG not in said
    assert len(told) == 1
    assert mechanism in told.pop()


def kafka_salt(rng: random.Random) -> bytes:
    """Return a salt as Kafka's tools generate it."""
    number, digits = rng.getrandbits(130), ""
    while number:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits.encode()


def asked(place: Place, name: str, extra: str = "") -> tuple[bytes, int]:
    """Return the salt and the iterations that a client receives for a name."""
    steps: list[Any] = []
    login = _scram(place.context, SCRAM_SHA_512)
    login.step(f"n,,n={name},r=nonce{extra}".encode(), steps.append)
    _, salt, iterations = steps.pop().token.decode().split(",", 2)
    return base64.b64decode(salt.removeprefix("s=")), int(iterations.removeprefix("i="))


def look_of(salt: bytes, iterations: int) -> tuple[int, int]:
    """Return the iterations and the length of the salt: all that an outsider can compare.

    The length is 0 for a salt in base 36, whose length varies.
    """
    is_text = all(byte in b"0123456789abcdefghijklmnopqrstuvwxyz" for byte in salt)
    return iterations, 0 if is_text else len(salt)


def test_outsider_cannot_tell_ten_thousand_names_from_users() -> None:
    """Users created by VDL, Kafka's tools and librdkafka: unknown names get salts and iterations of
    the same kinds. Each name has its own salt, the same each time and on every server, and another
    one with `tokenauth`, as users have."""
    rng = random.Random(5)
    makers = [
        lambda: (ITERATIONS_MIN, rng.randbytes(16)),
        lambda: (8_192, kafka_salt(rng)),
        lambda: (10_000, rng.randbytes(64)),
        lambda: (ITERATIONS_MIN, rng.randbytes(100)),
    ]
    upserts = [
        ScramUpsert(f"user{n}", SCRAM_SHA_512, iterations, salt, b"k" * 64, b"k" * 64)
        for n in range(200)
        for iterations, salt in [makers[n % len(makers)]()]
    ]
    places = [Place(), Place()]
    for place, some in zip(places, (upserts, upserts[::-1]), strict=True):
        place.host.apply(AlterScramCredentials([], some, b"d" * 32))
    users = {name: asked(places[0], name) for name in (f"user{n}" for n in range(200))}
    names = [f"name{n}" for n in range(10_000)]
    first = {name: asked(places[0], name) for name in names}
    assert {name: asked(places[0], name) for name in names} == first
    assert {name: asked(places[1], name) for name in names} == first
    assert len({salt for salt, _ in first.values()}) == len(names)
    usual = {look_of(*one) for one in users.values()}
    looks = Counter(look_of(*one) for one in first.values())
    assert set(looks) == usual
    assert min(looks.values()) > 1_000
    drawn = [
        Counter(len(salt) for salt, iterations in some.values() if iterations == 8_192)
        for some in (users, first)
    ]
    assert [max(lengths) for lengths in drawn] == [26, 26]
    assert all(lengths[26] + lengths[25] > 0.9 * lengths.total() for lengths in drawn)
    for name in (*users, *names[:200]):
        by_token = asked(places[0], name, ",tokenauth=true")
        assert by_token != asked(places[0], name)
        assert look_of(*by_token) == (ITERATIONS_MIN, 16)


def test_name_of_nobody_keeps_its_salt_while_users_of_other_kinds_go() -> None:
    """A changed salt would show that no user has this name."""
    place = Place()
    more = [
        ScramUpsert(f"user{n}", SCRAM_SHA_512, iterations, bytes(16), b"k" * 64, b"k" * 64)
        for n, iterations in enumerate((5_000, 6_000, 7_000))
    ]
    place.host.apply(AlterScramCredentials([], more, b"d" * 32))
    names = [f"name{n}" for n in range(300)]
    before = {name: asked(place, name) for name in names}
    assert {iterations for _, iterations in before.values()} == {4_096, 5_000, 6_000, 7_000}
    place.host.apply(AlterScramCredentials([("user1", SCRAM_SHA_512)], [], b""))
    for name in names:
        if before[name][1] != 6_000:
            assert asked(place, name) == before[name]
        else:
            assert asked(place, name)[1] != 6_000


def test_login_of_nobody_is_asked_for_the_same_proof_each_time() -> None:
    """An unknown user's salt is always the same, and differs from that of another name."""
    place = Place()
    salts = []
    for user in ("nobody", "nobody", "someone"):
        client = place.visitor()
        client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_512))
        scram = ScramConversation(SCRAM_SHA_512, user, PASSWORD, "n")
        answer = place.prove(client, scram.first())
        assert answer.error_code == ErrorCode.NONE
        _, salt, iterations = answer.auth_bytes.decode().split(",")
        assert iterations == f"i={ITERATIONS_MIN}"
        salts.append(salt)
    assert salts[0] == salts[1] != salts[2]
    assert len(base64.b64decode(salts[0][2:])) == 16


def test_login_draws_a_nonce_of_its_own_each_time() -> None:
    """A recorded proof is therefore useless in another login."""
    place = Place()
    finals = []
    for _ in range(2):
        client = place.visitor()
        client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_512))
        scram = ScramConversation(SCRAM_SHA_512, "alice", PASSWORD, "same")
        finals.append((client, scram.final(place.prove(client, scram.first()).auth_bytes)))
    assert finals[0][1] != finals[1][1]
    replayed = place.prove(finals[1][0], finals[0][1])
    assert replayed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("first", "change"),
    [
        (b"n,a=bob,n=alice,r=x", None),
        (b"p=tls-unique,,n=alice,r=x", None),
        (b"n,,n=al=ice,r=x", None),
        (b"n,,n=,r=x", None),
        (b"n,,m=ext,n=alice,r=x", None),
        (b"\xff\xfe", None),
        (b"", None),
        (b"n,,n=alice,r=x", (b"r=x", b"r=y")),
        (b"n,,n=alice,r=x", (b"c=biws", b"c=eSws")),
        (b"n,,n=alice,r=x", (b",p=", b",p=AA")),
        (b"n,,n=alice,r=x", (b",p=", b",q=")),
    ],
)
def test_login_by_scram_takes_no_message_that_was_changed(
    first: bytes, change: tuple[bytes, bytes] | None
) -> None:
    """Another authorization identity, channel binding, or a nonce or binding of another login
    (CVE-2017-12610, CVE-2024-56128)."""
    place = Place()
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_256))
    answer = place.prove(client, first)
    if change is not None:
        assert answer.error_code == ErrorCode.NONE
        scram = ScramConversation(SCRAM_SHA_256, "alice", PASSWORD, "x")
        scram.first()
        final = scram.final(answer.auth_bytes)
        assert change[0] in final
        answer = place.prove(client, final.replace(*change, 1))
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.closed


@pytest.mark.parametrize("kept", ["all", "nonce", "binding"])
def test_proof_of_one_who_knows_the_password_is_for_this_login_only(kept: str) -> None:
    """CVE-2024-56128: a valid proof over a nonce or a binding of another login is refused, even if
    the client knows the password."""
    place = Place()
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_256))
    first = "n=alice,r=mine"
    server_first = place.prove(client, f"n,,{first}".encode()).auth_bytes.decode()
    nonce, salt, _ = (part.partition("=")[2] for part in server_first.split(","))
    if kept == "binding":
        nonce = "mine"
    binding = "eSws" if kept == "nonce" else "biws"
    bare = f"c={binding},r={nonce}"
    salted = salted_password(
        SCRAM_SHA_256, PASSWORD.encode(), base64.b64decode(salt), ITERATIONS_MIN
    )
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    signature = hmac.digest(
        hashlib.sha256(client_key).digest(), f"{first},{server_first},{bare}".encode(), "sha256"
    )
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    final = f"{bare},p={base64.b64encode(proof).decode()}"
    expected = ErrorCode.NONE if kept == "all" else ErrorCode.SASL_AUTHENTICATION_FAILED
    assert place.prove(client, final.encode()).error_code == expected


@pytest.mark.parametrize(
    "token",
    [
        b"bob\0alice\0" + PASSWORD.encode(),
        b"\0alice\0",
        b"\0\0x",
        b"alice",
        b"\0a\0b\0c",
        b"\xff\0a\0b",
    ],
)
def test_login_by_plain_takes_no_token_of_another_form(token: bytes) -> None:
    place = Place()
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    assert place.prove(client, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.closed


def test_nothing_but_api_versions_is_answered_before_login() -> None:
    """Every other API ends the connection without an answer; so does ApiVersions once a mechanism
    is chosen."""
    from vdl.kafka.api import ROWS

    for api in ROWS:
        if api.key in (HANDSHAKE, API_VERSIONS):
            continue
        place = Place()
        client = place.visitor()
        client.session.receive(client.frame(api.key, api.max_version, bytes(8)))
        place.run(500)
        assert client.closed, api.name
        assert client.received == b"", api.name
    place = Place()
    client = place.visitor()
    assert client.ask(API_VERSIONS, 3, ApiVersionsRequest("c", "1")).error_code == ErrorCode.NONE
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    client.request(API_VERSIONS, 3, ApiVersionsRequest("c", "1"))
    place.run()
    assert client.closed


def test_request_sent_along_with_a_login_is_not_answered_if_that_fails() -> None:
    """Requests start in order, so a request behind a token does not precede its check."""
    place = Place()
    place.topic("secret")
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0alice\0{WRONG}".encode()))
    client.request(METADATA, 12, MetadataRequest())
    place.run(500)
    assert b"secret" not in client.received
    assert client.closed


def test_mechanism_that_is_not_offered_is_answered_with_those_that_are() -> None:
    place = Place()
    client = place.visitor((SCRAM_SHA_512,))
    answer = client.ask(HANDSHAKE, 1, SaslHandshakeRequest("GSSAPI"))
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == [SCRAM_SHA_512]
    assert not client.closed  # it has a moment to read the answer
    place.run(100)
    assert client.closed


def test_login_on_a_plain_listener_is_answered_as_kafka_does() -> None:
    client = Place().client()
    answer = client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask(AUTHENTICATE, 1, SaslAuthenticateRequest(b"x")).error_code == 34
    assert not client.closed


def test_login_after_handshake_v0_has_bare_tokens() -> None:
    """KIP-43: a length and the token in both directions; afterwards ordinary requests."""
    place = Place()
    client = place.visitor()
    assert client.ask(HANDSHAKE, 0, SaslHandshakeRequest(SCRAM_SHA_256)).error_code == 0
    scram = ScramConversation(SCRAM_SHA_256, "alice", PASSWORD, "v0")

    def exchange(token: bytes) -> bytes:
        client.session.receive(pack(">i", len(token)) + token)
        place.run()
        answer = bytes(client.received)
        client.received.clear()
        assert unpack(">i", answer[:4]) == (len(answer) - 4,)
        return answer[4:]

    scram.check(exchange(scram.final(exchange(scram.first()))))
    assert client.session.info.principal == Principal("alice")
    assert client.ask(METADATA, 12, MetadataRequest()).error_code == ErrorCode.NONE


def test_bare_token_that_is_wrong_ends_the_connection_unanswered() -> None:
    place = Place()
    client = place.visitor()
    client.ask(HANDSHAKE, 0, SaslHandshakeRequest(PLAIN))
    token = f"\0alice\0{WRONG}".encode()
    client.session.receive(pack(">i", len(token)) + token)
    place.run(500)
    assert client.closed
    assert client.received == b""


def test_frame_before_login_is_small() -> None:
    """Larger frames are accepted after the login."""
    place = Place(KafkaOptions(login_bytes_max=2_000))
    client = place.visitor()
    client.session.receive(pack(">i", 2_001))
    place.run()
    assert client.closed
    client = place.visitor()
    place.log_in(client, SCRAM_SHA_512)
    client.session.receive(pack(">i", 1 << 20))
    place.run()
    assert not client.closed


def test_login_that_is_not_done_in_time_ends() -> None:
    """A silent client and one that has begun its login are closed; one that is done stays."""
    place = Place()
    silent, chosen, done = place.visitor(), place.visitor(), place.visitor()
    chosen.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    place.log_in(done, SCRAM_SHA_512)
    place.run((LOGIN_SECONDS_MAX + 2) * 1_000)
    assert (silent.closed, chosen.closed, done.closed) == (True, True, False)


def test_session_ends_and_goes_on_with_another_login() -> None:
    """KIP-368: the answer has the session's lifetime. A new login succeeds before and after its
    end."""
    place = Place(KafkaOptions(session_ms_max=10_000))
    client = place.visitor()
    assert place.log_in(client, SCRAM_SHA_512).session_lifetime_ms == 10_000
    place.run(8_000)
    assert place.log_in(client, SCRAM_SHA_512).error_code == ErrorCode.NONE
    place.run(8_000)
    assert client.ask(METADATA, 12, MetadataRequest()).error_code == ErrorCode.NONE
    place.run(8_000)
    assert place.log_in(client, SCRAM_SHA_512).error_code == ErrorCode.NONE
    place.run(12_000)
    client.request(METADATA, 12, MetadataRequest())
    place.run()
    assert client.closed
    assert client.received == b""


@pytest.mark.parametrize("how", ["user", "mechanism", "password"])
def test_session_is_not_taken_over_by_another_login(how: str) -> None:
    """A new login with another principal, mechanism or password ends the session."""
    place = Place(KafkaOptions(session_ms_max=10_000))
    client = place.visitor()
    place.log_in(client, SCRAM_SHA_512)
    if how == "mechanism":
        answer = client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_256))
    elif how == "user":
        answer = place.log_in(client, SCRAM_SHA_512, "=,")
    else:
        answer = place.log_in(client, SCRAM_SHA_512, password=WRONG)
    assert answer.error_code != ErrorCode.NONE
    place.run(100)
    assert client.closed
    assert client.session.info.principal in (Principal("alice"), ANONYMOUS)


def test_session_without_an_end_takes_no_other_login() -> None:
    place = Place()
    client = place.visitor()
    place.log_in(client, SCRAM_SHA_512)
    answer = client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_512))
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.ask(METADATA, 12, MetadataRequest()).error_code == ErrorCode.NONE


def test_tokens_of_any_bytes_never_fail_the_server() -> None:
    """Random and damaged tokens of each mechanism are refused, and no handler fails."""
    rng = random.Random(5)
    place = Place()
    for _ in range(60):
        for mechanism in MECHANISMS:
            client = place.visitor()
            client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
            scram = ScramConversation(SCRAM_SHA_256, "alice", PASSWORD, "n")
            token = bytearray(scram.first() if rng.random() < 0.7 else rng.randbytes(40))
            for _ in range(rng.randrange(4)):
                token[rng.randrange(len(token))] = rng.randrange(256)
            answer = place.prove(client, bytes(token))
            if not answer.error_code:
                final = bytearray(b"c=biws,r=" + rng.randbytes(8) + b",p=AAAA")
                answer = place.prove(client, bytes(final))
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert [event for event in place.log.events if event[0] == "error"] == []


def test_logins_are_in_the_audit_log_with_what_came_of_them() -> None:
    """Principal, host and mechanism are logged; a refusal with its reason, without the password."""
    place = Place()
    lines: list[bytes] = []
    place.context.audit = AuditLog(lambda line, act_of: lines.append(line), place.clock)
    place.log_in(place.visitor(), SCRAM_SHA_512)
    place.log_in(place.visitor(), PLAIN, password=WRONG)
    found = [json.loads(line) for line in lines]
    assert [(line["event"], line["principal"], line["mechanism"]) for line in found] == [
        ("logged_in", "User:alice", SCRAM_SHA_512),
        ("login_refused", "User:ANONYMOUS", PLAIN),
    ]
    assert {line["host"] for line in found} == {"10.0.0.1"}
    assert "wrong user or password" in found[1]["reason"]
    assert found[1]["user"] == "alice"
    assert WRONG.encode() not in b"".join(lines)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_user_whose_password_is_guessed_is_locked_for_that_address(
    mechanism: str, user: str
) -> None:
    """The right password is refused too, each time for longer. A locked client gets no answer,
    because clients take a failed authentication for final: the connection closes, and they retry.
    No password is computed."""
    place = Place()
    computed: list[Any] = []

    def compute(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        computed.append(job)
        done(job())

    place.context.login_compute = compute

    def refused(password: str) -> bool:
        client = place.visitor()
        answer = place.log_in(client, mechanism, user, password)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.SASL_AUTHENTICATION_FAILED)
        return bool(answer.error_code)

    def closes(password: str) -> bool:
        client = place.visitor()
        client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        token = f"\0{user}\0{password}".encode()
        if mechanism != PLAIN:
            token = ScramConversation(mechanism, user, password, "n").first()
        client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(token))
        place.run(2 * REFUSAL_DELAY_MS)
        return client.closed and not client.received

    failures = place.context.login_failures
    for _ in range(FREE):
        assert refused(WRONG)
    assert refused(PASSWORD) is (user == "nobody")
    while not failures.is_locked(user, "10.0.0.1"):
        assert refused(WRONG)
    computed.clear()
    assert closes(PASSWORD)
    assert closes(WRONG)
    assert not computed
    assert failures.refused == 2
    assert not failures.is_locked(user, "10.0.0.2")
    assert not failures.is_locked("=,", "10.0.0.1")
    place.run(1_000)
    assert refused(PASSWORD) is (user == "nobody")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_guesses_that_end_while_it_is_locked_are_not_told_apart(mechanism: str) -> None:
    """For logins that began before the lock, the right password closes like a wrong one."""
    place = Place()
    failures = place.context.login_failures
    pending: list[Callable[[], None]] = []
    place.context.login_compute = lambda job, done: pending.append(lambda: done(job()))
    clients = []
    for password in (PASSWORD, WRONG):
        client = place.visitor()
        client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
        token = f"\0alice\0{password}".encode()
        if mechanism != PLAIN:
            scram = ScramConversation(mechanism, "alice", password, "n")
            token = scram.final(place.prove(client, scram.first()).auth_bytes)
        else:
            client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(token))
        clients.append((client, token))
    while not failures.is_locked("alice", "10.0.0.1"):
        failures.failed("alice", "10.0.0.1")
    for client, token in clients:
        if mechanism == PLAIN:
            pending.pop(0)()
        else:
            client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(token))
    place.run(2 * REFUSAL_DELAY_MS)
    assert [(client.closed, bytes(client.received)) for client, _ in clients] == 2 * [(True, b"")]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_session_goes_on_while_somebody_guesses_its_password(mechanism: str) -> None:
    """KIP-368: a client with a session has already shown its identity."""
    place = Place(KafkaOptions(session_ms_max=10_000))
    client = place.visitor()
    assert place.log_in(client, mechanism).error_code == ErrorCode.NONE
    failures = place.context.login_failures
    while not failures.is_locked("alice", "10.0.0.1"):
        failures.failed("alice", "10.0.0.1")
    assert place.log_in(client, mechanism).error_code == ErrorCode.NONE
    assert not client.closed


@pytest.mark.parametrize("mechanism", [PLAIN, OAUTHBEARER])
def test_login_whose_check_fails_in_a_thread_costs_one_connection(mechanism: str) -> None:
    """The exception of a thread returns to the loop and does not end the server."""

    def failing(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        del job
        done(RuntimeError("in a library"))

    place = Place()
    place.context.login_compute = failing
    place.context.tokens = Validator(OauthOptions())
    client = place.visitor((mechanism,))
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
    token = b"\0alice\0x" if mechanism == PLAIN else b"n,,\1auth=Bearer a.b.c\1\1"
    assert place.prove(client, token).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    place.run(100)
    assert client.closed


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_user_who_is_removed_in_the_middle_of_a_login_does_not_get_in(mechanism: str) -> None:
    """The user is removed between the first and the last token, or during the password check.
    `credentials_changed` sees only completed logins, so the login itself must check again."""
    place = Place()
    deletions = [("alice", kind) for kind in MECHANISMS[:2]]

    def remove() -> None:
        place.host.apply(AlterScramCredentials(deletions, [], b""))
        place.frontend.credentials_changed()

    def slow(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = job()
        remove()
        done(result)

    place.context.login_compute = slow
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(mechanism))
    if mechanism == PLAIN:
        answer = place.prove(client, f"\0alice\0{PASSWORD}".encode())
    else:
        scram = ScramConversation(mechanism, "alice", PASSWORD, "n")
        final = scram.final(place.prove(client, scram.first()).auth_bytes)
        remove()
        answer = place.prove(client, final)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    place.run(100)
    assert client.closed
    assert client.session.info.principal == ANONYMOUS


@pytest.mark.parametrize("took_ms", [0, 3, 70, 130, 301])
def test_refusal_does_not_tell_by_its_time_what_was_computed(took_ms: int) -> None:
    """A password check takes longer the more iterations its user has, and an unknown user has the
    minimum. A refusal therefore comes a whole number of delays after its request
    (CVE-2021-38153)."""
    place = Place()

    def slow(job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        result = job()
        place.clock.call_later(took_ms * 1_000_000, lambda: done(result))

    place.context.login_compute = slow
    client = place.visitor()
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0alice\0{WRONG}".encode()))
    waited_ms = 0
    while not client.received:
        place.run(1)
        waited_ms += 1
        assert waited_ms < 1_000
    assert waited_ms // REFUSAL_DELAY_MS == took_ms // REFUSAL_DELAY_MS + 1
    assert waited_ms % REFUSAL_DELAY_MS <= 1


def test_requests_before_login_are_read_one_at_a_time() -> None:
    """An unauthenticated client holds little memory (CVE-2022-34917): one that keeps sending is not
    read."""
    place = Place()
    client = place.visitor()
    jobs: list[Callable[[], None]] = []
    place.context.login_compute = lambda job, done: jobs.append(lambda: done(job()))
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(PLAIN))
    client.request(AUTHENTICATE, 2, SaslAuthenticateRequest(f"\0alice\0{PASSWORD}".encode()))
    place.run()
    assert not client.reading
    jobs.pop()()
    place.run()
    assert client.reading
    assert client.session.info.principal == Principal("alice")


def test_token_of_a_client_that_logs_in_again_is_bounded_as_the_first() -> None:
    place = Place(KafkaOptions(session_ms_max=10_000, login_bytes_max=2_000))
    client = place.visitor()
    place.log_in(client, SCRAM_SHA_512)
    client.ask(HANDSHAKE, 1, SaslHandshakeRequest(SCRAM_SHA_512))
    answer = place.prove(client, b"n,,n=alice,r=" + b"x" * 2_000)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_connections_that_do_not_log_in_are_few_and_cost_their_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One more displaces the oldest of the address with the most. Completed logins do not count."""
    monkeypatch.setattr(frontend, "LOGINS_MAX", 3)
    place = Place()

    def visit(host: str) -> Client:
        client = place.visitor()
        client.session.connection_lost()
        client.closed = False
        session = place.frontend.accept(client, LISTENER, (host, 1), mechanisms=MECHANISMS)
        assert session is not None
        client.session = session
        return client

    done = visit("10.0.0.9")
    place.log_in(done, SCRAM_SHA_512)
    other, *flood = visit("10.0.0.8"), *(visit("10.0.0.9") for _ in range(5))
    assert [client.closed for client in flood] == [True, True, True, False, False]
    assert not other.closed
    assert not done.closed
    assert place.frontend.unproved.displaced == 3
    flood[3].session.connection_lost()
    assert not visit("10.0.0.7").closed
    assert place.frontend.unproved.displaced == 3


# --- users ----------------------------------------------------------------------------------------


def salted_upsertion(name: str, number: int = 2, **changes: object) -> ScramCredentialUpsertion:
    mechanism = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}.get(number, SCRAM_SHA_512)
    salted = salted_password(mechanism, PASSWORD.encode(), b"salt", ITERATIONS_MIN)
    fields = {"iterations": ITERATIONS_MIN, "salt": b"salt", "salted_password": salted} | changes
    return ScramCredentialUpsertion(name, number, **fields)  # type: ignore[arg-type]


def altered(place: World, **changes: object) -> dict[str, int]:
    request = AlterUserScramCredentialsRequest(**changes)  # type: ignore[arg-type]
    answer = place.client().ask(ALTER, 0, request)
    return {result.user: result.error_code for result in answer.results}


def test_user_that_was_added_logs_in_and_one_removed_does_not() -> None:
    place = Place()
    assert altered(place, upsertions=[salted_upsertion("bob")]) == {"bob": 0}
    assert place.log_in(place.visitor(), SCRAM_SHA_512, "bob").error_code == 0
    deletion = ScramCredentialDeletion("bob", 2)
    assert altered(place, deletions=[deletion]) == {"bob": 0}
    assert altered(place, deletions=[deletion]) == {"bob": ErrorCode.RESOURCE_NOT_FOUND}
    answer = place.log_in(place.visitor(), SCRAM_SHA_512, "bob")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    ("upsertion", "code"),
    [
        (salted_upsertion(""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u" * 300), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("a\nb"), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u", 0), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (salted_upsertion("u", 3), ErrorCode.UNSUPPORTED_SASL_MECHANISM),
        (salted_upsertion("u", iterations=ITERATIONS_MIN - 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u", iterations=ITERATIONS_MAX + 1), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u", iterations=ITERATIONS_MAX), ErrorCode.NONE),
        (salted_upsertion("u", salt=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u", salted_password=b""), ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (salted_upsertion("u", salted_password=bytes(5_000)), ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_user_with_an_impossible_credential_is_refused(
    upsertion: ScramCredentialUpsertion, code: ErrorCode
) -> None:
    """Another user of the same request is still added."""
    place = World()
    found = altered(place, upsertions=[upsertion, salted_upsertion("other")])
    assert found == {upsertion.name: code, "other": 0}
    assert place.host.catalog.scram.users() == (["other"] if code else ["other", "u"])


def test_user_changed_twice_in_one_request_is_refused() -> None:
    place = World()
    twice = [salted_upsertion("u"), salted_upsertion("u")]
    assert altered(place, upsertions=twice) == {"u": ErrorCode.DUPLICATE_RESOURCE}
    both = [salted_upsertion("u", 1), salted_upsertion("u", 2)]
    assert altered(place, upsertions=both) == {"u": 0}
    assert sorted(place.host.catalog.scram.of("u")) == [SCRAM_SHA_256, SCRAM_SHA_512]


def test_users_described_are_told_without_what_is_secret() -> None:
    place = Place()
    client = place.client()
    names = [UserName("alice"), UserName("nobody"), UserName("x"), UserName("x")]
    answer = client.ask(DESCRIBE, 0, DescribeUserScramCredentialsRequest(names))
    found = {result.user: result for result in answer.results}
    assert found["alice"].credential_infos == [
        CredentialInfo(1, ITERATIONS_MIN),
        CredentialInfo(2, ITERATIONS_MIN),
    ]
    assert found["nobody"].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert found["x"].error_code == ErrorCode.DUPLICATE_RESOURCE
    everybody = client.ask(DESCRIBE, 0, DescribeUserScramCredentialsRequest(None))
    assert [result.user for result in everybody.results] == ["=,", "alice"]


# --- the client's side ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server_first",
    [
        b"r=other,s=c2FsdA==,i=4096",
        b"r=mine,s=c2FsdA==,i=4096",
        b"r=mine-and-more,s=c2FsdA==,i=100000000",
        b"r=mine-and-more,s=c2FsdA==,i=1",
        b"r=mine-and-more,s=!,i=4096",
        b"",
    ],
)
def test_client_does_not_believe_every_server(server_first: bytes) -> None:
    """It refuses a wrong nonce or salt, and too few or too many iterations."""
    conversation = ScramConversation(SCRAM_SHA_256, "alice", PASSWORD, "mine")
    with pytest.raises(ScramRefused):
        conversation.final(server_first)


def test_client_notices_a_server_that_does_not_know_the_password() -> None:
    conversation = ScramConversation(SCRAM_SHA_256, "alice", PASSWORD, "mine")
    conversation.final(b"r=mine-and-more,s=c2FsdA==,i=4096")
    with pytest.raises(ScramRefused):
        conversation.check(b"v=" + base64.b64encode(bytes(32)))


def test_scram_takes_names_of_attributes_in_either_case() -> None:
    first = parse_client_first("N,A=zoë,N=ann,R=Nonce,TokenAuth=true".encode())
    assert (first.gs2, first.authzid, first.name, first.nonce) == (
        "N,A=zoë,",
        "zoë",
        "ann",
        "Nonce",
    )
    assert first.extensions == {"tokenauth": "true"}


def test_scram_gives_the_keys_of_the_published_example() -> None:
    """RFC 7677 §3."""
    conversation = ScramConversation(SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert conversation.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    final = conversation.final(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert final.endswith(b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    conversation.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_login_state_is_known_to_the_session() -> None:
    """The session has the state of its login."""
    place = Place()
    client = place.visitor()
    login = client.session.info.login
    assert login is not None
    assert login.state is LoginState.CHOOSING
    place.log_in(client, PLAIN)
    assert login.state.value == LoginState.DONE.value
    assert login.ends_ns == 0
