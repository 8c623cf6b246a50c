"""OAUTHBEARER: which tokens are good, and what a login by one is."""

from __future__ import annotations

import base64
import functools
import hmac
import http.server
import json
import random
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from joserfc import jwk, jwt

from tests.unit.kafka.connections.test_logins import HANDSHAKE, METADATA, Place
from tests.unit.kafka.fake_host import WALL_MS, Client
from tests.unit.security_files import authority
from vdl.errors import ErrorCode
from vdl.kafka.security.jwks import BYTES_MAX, KeysUnavailable, fetch_keys
from vdl.kafka.security.oauth import KeysRefused, TokenRefused, Validator
from vdl.kafka.security.oauth_options import OauthOptions
from vdl.kafka.security.principal import Principal
from vdl.kafka.security.protocol import OAUTHBEARER
from vdl.kafka.wire.metadata import MetadataRequest
from vdl.kafka.wire.sasl_handshake import SaslHandshakeRequest

ISSUER, AUDIENCE = "https://issuer.example.org", "vdl"
NOW_S = WALL_MS // 1_000
OPTIONS = OauthOptions("file:///keys", audience=f"other,{AUDIENCE}", issuer=ISSUER)


@functools.cache
def key(kind: str = "EC", name: str = "k1") -> Any:
    size: Any = {"EC": "P-256", "RSA": 2048, "OKP": "Ed25519"}[kind]
    return jwk.JWKRegistry.generate_key(kind, size, {"kid": name, "use": "sig"})  # type: ignore[arg-type]


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [one.as_dict(private=False) for one in keys]}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Those of a good token; None leaves one out."""
    found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW_S + 60} | changes
    return {name: value for name, value in found.items() if value is not None}


def token(signer: Any = None, algorithm: str = "ES256", header: Any = None, **changes: Any) -> str:
    signer = signer or key()
    head = {"alg": algorithm, "kid": signer.kid} | (header or {})
    return jwt.encode(head, claims(**changes), signer, algorithms=[algorithm])


@functools.cache
def validator() -> Validator:
    found = Validator(OPTIONS)
    found.take_keys(key_set(key(), key("RSA", "k2")))
    return found


def by_hand(header: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    """What no library makes."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims()).encode())}"
    return f"{signed}.{part(sign(signed.encode()))}"


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    return by_hand(header, lambda _: signature)


def hmac_with_public_key() -> str:
    """The confusion of algorithms: the public key as a shared secret."""
    secret = key("RSA", "k2").as_pem(private=False)
    header = {"alg": "HS256", "kid": "k2"}
    return by_hand(header, lambda signed: hmac.digest(secret, signed, "sha256"))


def with_critical_header() -> str:
    """Well signed, with an extension that must be understood and is not."""

    def sign(signed: bytes) -> bytes:
        made = key().get_op_key("sign").sign(signed, ec.ECDSA(hashes.SHA256()))
        return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(made))

    good = by_hand({"alg": "ES256", "kid": "k1"}, sign)
    assert validator().validate(good, WALL_MS).user == "alice"
    return by_hand({"alg": "ES256", "kid": "k1", "crit": ["x"], "x": 1}, sign)


def test_token_of_the_issuer_says_whose_and_until_when() -> None:
    """ECDSA or RSA; one audience or several; a clock that is a little behind."""
    for good in (
        token(),
        token(key("RSA", "k2"), "RS256"),
        token(key("RSA", "k2"), "PS256"),
        token(aud=["x", AUDIENCE]),
        token(nbf=NOW_S + 20, iat=NOW_S + 20),
        token(exp=NOW_S - 20),
    ):
        assert validator().validate(good, WALL_MS).user == "alice"
    assert validator().validate(token(), WALL_MS).expires_ms == (NOW_S + 60 + 30) * 1_000


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: token(exp=NOW_S - 31), id="expired"),
        pytest.param(lambda: token(exp=None), id="without end"),
        pytest.param(lambda: token(exp="soon"), id="end is a text"),
        pytest.param(lambda: token(exp=True), id="end is a truth"),
        pytest.param(lambda: token(exp=1 << 70), id="end is beyond time"),
        pytest.param(lambda: token(nbf=NOW_S + 31), id="not yet"),
        pytest.param(lambda: token(iat=NOW_S + 31), id="issued in the future"),
        pytest.param(lambda: token(iss="https://evil"), id="other issuer"),
        pytest.param(lambda: token(iss=None), id="no issuer"),
        pytest.param(lambda: token(iss=[ISSUER]), id="issuer is a list"),
        pytest.param(lambda: token(aud="kafka"), id="other audience"),
        pytest.param(lambda: token(aud=None), id="no audience"),
        pytest.param(lambda: token(aud=[]), id="empty audience"),
        pytest.param(lambda: token(aud={"vdl": 1}), id="audience is a table"),
        pytest.param(lambda: token(sub=None), id="no user"),
        pytest.param(lambda: token(sub=""), id="empty user"),
        pytest.param(lambda: token(sub=7), id="user is a number"),
        pytest.param(lambda: token(sub="u" * 300), id="user is too long"),
        pytest.param(lambda: token(key("EC", "other")), id="unknown key"),
        pytest.param(lambda: token(key("EC", "k9"), header={"kid": "k1"}), id="forged key id"),
        pytest.param(lambda: unsigned({"alg": "none"}), id="none"),
        pytest.param(lambda: unsigned({"alg": "None", "kid": "k1"}), id="None"),
        pytest.param(lambda: unsigned({"alg": "ES256", "kid": "k1"}), id="no signature"),
        pytest.param(lambda: unsigned({"alg": "ES256", "kid": "k1"}, bytes(64)), id="zeros"),
        pytest.param(hmac_with_public_key, id="hmac with the public key"),
        pytest.param(
            lambda: token(
                key("EC", "own"), header={"jwk": key("EC", "own").as_dict(private=False)}
            ),
            id="key of its own",
        ),
        pytest.param(with_critical_header, id="critical"),
        pytest.param(lambda: token() + ".x", id="five parts"),
        pytest.param(lambda: "x.y.z", id="junk"),
        pytest.param(lambda: "", id="nothing"),
        pytest.param(lambda: "." * 20_000, id="dots"),
        pytest.param(lambda: token(x="y" * 20_000), id="too large"),
    ],
)
def test_token_that_is_not_good_is_refused(make: Any) -> None:
    """And the reason repeats nothing of it."""
    bad = make()
    with pytest.raises(TokenRefused) as raised:
        validator().validate(bad, WALL_MS)
    for part in bad.split("."):
        assert len(part) < 8 or part not in str(raised.value)


def test_token_without_keys_to_check_it_is_refused() -> None:
    """Fail closed (CVE-2026-33557): no keys yet, or an incomplete configuration."""
    with pytest.raises(TokenRefused):
        Validator(OPTIONS).validate(token(), WALL_MS)
    for options in (
        OauthOptions("file:///keys", audience=AUDIENCE),
        OauthOptions("file:///keys", issuer=ISSUER),
    ):
        incomplete = Validator(options)
        incomplete.take_keys(key_set(key()))
        for one in (token(), token(iss=""), token(aud="")):
            with pytest.raises(TokenRefused):
                incomplete.validate(one, WALL_MS)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"keys": 1}',
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "k1"}]}',
        b'{"keys": [{"kty": "EC", "crv": "P-256"}]}',
        b"[" * 100_000,
    ],
)
def test_keys_that_cannot_be_used_leave_those_there_are(document: bytes) -> None:
    """A shared secret is no key here."""
    found = Validator(OPTIONS)
    found.take_keys(key_set(key()))
    with pytest.raises(KeysRefused):
        found.take_keys(document)
    assert found.validate(token(), WALL_MS).user == "alice"


def test_keys_that_are_replaced_make_old_tokens_bad() -> None:
    found = Validator(OPTIONS)
    found.take_keys(key_set(key()))
    found.take_keys(key_set(key("EC", "new")))
    with pytest.raises(TokenRefused):
        found.validate(token(), WALL_MS)
    assert found.unknown_keys == 1
    assert found.validate(token(key("EC", "new")), WALL_MS).user == "alice"


def test_tokens_of_damaged_bytes_raise_nothing_else() -> None:
    rng = random.Random(3)
    good = token()
    for _ in range(500):
        bad = list(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(len(bad))] = rng.choice("abcXYZ019-_.=+/ \x00é")
        text = "".join(bad)
        if text != good:
            try:
                assert validator().validate(text, WALL_MS).user == "alice"
            except TokenRefused:
                continue
            # Base64 has several texts for the same bytes: only such a one may pass.
            assert text.rsplit(".", 1)[0] == good.rsplit(".", 1)[0]


# --- logins ---------------------------------------------------------------------------------------


def visitor() -> tuple[Place, Client]:
    place = Place()
    place.context.tokens = validator()
    client = place.visitor((OAUTHBEARER,))
    chosen = client.ask(HANDSHAKE, 1, SaslHandshakeRequest(OAUTHBEARER))
    assert chosen.error_code == ErrorCode.NONE
    return place, client


def initial(bearer: str, gs2: str = "n,,") -> bytes:
    return f"{gs2}\x01auth=Bearer {bearer}\x01\x01".encode()


def test_login_by_a_token_lasts_as_long_as_the_token() -> None:
    place, client = visitor()
    answer = place.prove(client, initial(token()))
    assert answer.error_code == ErrorCode.NONE
    assert 89_000 < answer.session_lifetime_ms <= 90_000
    assert client.session.info.principal == Principal("alice")
    assert client.ask(METADATA, 12, MetadataRequest()).error_code == ErrorCode.NONE
    place.run(91_000)
    client.request(METADATA, 12, MetadataRequest())
    place.run()
    assert client.closed


def test_login_by_a_bad_token_is_told_so_in_the_mechanism_s_way() -> None:
    """RFC 7628 §3.2.2: an error in JSON, the client's 0x01, and then the end."""
    place, client = visitor()
    bad = token(exp=NOW_S - 100)
    challenge = place.prove(client, initial(bad))
    assert challenge.error_code == ErrorCode.NONE
    assert json.loads(challenge.auth_bytes) == {"status": "invalid_token"}
    assert not client.closed
    last = place.prove(client, b"\x01")
    assert last.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert last.error_message == '{"status":"invalid_token"}'
    assert client.closed
    said = repr(place.log.events)
    assert "expired" in said
    assert bad.split(".")[2] not in said


@pytest.mark.parametrize(
    "message",
    [
        initial(token(), "n,a=bob,"),
        initial(token(), "p=x,,"),
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer " + token().encode() + b"\x01\x01",
        b"",
        b"\xff" * 10,
        token().encode(),
    ],
)
def test_login_by_a_message_of_another_form_is_refused(message: bytes) -> None:
    """Also one for somebody else."""
    place, client = visitor()
    answer = place.prove(client, message)
    if not answer.error_code:
        answer = place.prove(client, b"\x01")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.closed


def test_token_after_a_refusal_is_not_looked_at() -> None:
    place, client = visitor()
    place.prove(client, initial("x.y.z"))
    assert place.prove(client, initial(token())).error_code
    assert client.closed


# --- keys -----------------------------------------------------------------------------------------


class Issuer(http.server.BaseHTTPRequestHandler):
    """Answers as its path says."""

    def do_GET(self) -> None:
        body = key_set(key())
        status = 200
        if self.path == "/large":
            body = bytes(BYTES_MAX + 1)
        if self.path == "/moved":
            status = 302
        if self.path == "/broken":
            status = 500
        self.send_response(status)
        self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture(name="issuer")
def _issuer() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Issuer)
    files = authority().server(1)
    assert files.own is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.own.certificate, files.own.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def options_of(url: str, name: str = "ours") -> OauthOptions:
    return OauthOptions(url, ca=str(authority(name).directory / "ca.pem"))


def test_keys_are_fetched_from_an_address_and_from_a_file(issuer: str, tmp_path: Path) -> None:
    assert fetch_keys(options_of(f"{issuer}/keys")) == key_set(key())
    file = tmp_path / "key set.json"
    file.write_bytes(key_set(key()))
    assert fetch_keys(options_of(file.as_uri())) == key_set(key())


def test_keys_of_an_address_that_is_not_to_be_believed_are_not_taken(
    issuer: str, tmp_path: Path
) -> None:
    """Another certificate, a redirection, an error, too much, no encryption, no file."""
    with pytest.raises(KeysUnavailable, match="certificate"):
        fetch_keys(options_of(f"{issuer}/keys", "theirs"))
    for path in ("moved", "broken", "large"):
        with pytest.raises(KeysUnavailable):
            fetch_keys(options_of(f"{issuer}/{path}"))
    for url in ("http://127.0.0.1/keys", "ftp://x/y", (tmp_path / "none").as_uri(), ""):
        with pytest.raises(KeysUnavailable):
            fetch_keys(options_of(url))
