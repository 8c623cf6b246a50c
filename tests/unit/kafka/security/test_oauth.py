"""OAUTHBEARER: validation of tokens, and logins with them."""

from __future__ import annotations

import base64
import contextlib
import functools
import hmac
import http.server
import json
import random
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from joserfc import jwk, jwt

from tests.unit.kafka.connections.test_logins import HANDSHAKE, METADATA, Place
from tests.unit.kafka.fake_host import WALL_MS, Client
from tests.unit.security_files import authority
from vdl.errors import ErrorCode
from vdl.kafka.security import jwks
from vdl.kafka.security.jwks import BYTES_MAX, KeysUnavailable, fetch_keys
from vdl.kafka.security.oauth import KEYS_MAX, KeysRefused, TokenRefused, Validator
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
    """Return the claims of a valid token, with changes; None leaves one out."""
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
    """Return a token that no library creates."""

    def part(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    signed = f"{part(json.dumps(header).encode())}.{part(json.dumps(claims()).encode())}"
    return f"{signed}.{part(sign(signed.encode()))}"


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    return by_hand(header, lambda _: signature)


def hmac_with_public_key() -> str:
    """Algorithm confusion: return a token signed with the public key as a shared secret."""
    secret = key("RSA", "k2").as_pem(private=False)
    header = {"alg": "HS256", "kid": "k2"}
    return by_hand(header, lambda signed: hmac.digest(secret, signed, "sha256"))


def with_critical_header() -> str:
    """Return a correctly signed token with a critical extension that is not understood."""

    def sign(signed: bytes) -> bytes:
        made = key().get_op_key("sign").sign(signed, ec.ECDSA(hashes.SHA256()))
        return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(made))

    good = by_hand({"alg": "ES256", "kid": "k1"}, sign)
    assert validator().validate(good, WALL_MS).user == "alice"
    return by_hand({"alg": "ES256", "kid": "k1", "crit": ["x"], "x": 1}, sign)


def test_token_of_the_issuer_says_whose_and_until_when() -> None:
    """Covers ECDSA and RSA, one audience or several, and a clock that is a little behind."""
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
        pytest.param(lambda: token(sub="alice\nlevel=info"), id="user has a control character"),
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
    """The error text repeats nothing of the token."""
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
    """A shared secret is not accepted as a key."""
    found = Validator(OPTIONS)
    found.take_keys(key_set(key()))
    with pytest.raises(KeysRefused):
        found.take_keys(document)
    assert found.validate(token(), WALL_MS).user == "alice"


def changed(one: Any, **members: Any) -> dict[str, Any]:
    """Return the public key with changed members; None removes one."""
    found = one.as_dict(private=False) | members
    return {name: value for name, value in found.items() if value is not None}


def set_of(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


@functools.cache
def rsa(bits: int, exponent: int = 65_537) -> dict[str, Any]:
    """Return an RSA public key that no library creates; it has no private key."""

    def text(number: int) -> str:
        data = number.to_bytes((number.bit_length() + 7) // 8, "big")
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    modulus = (1 << bits) - (1 << (bits // 3)) + 1
    return {"kty": "RSA", "kid": "k2", "use": "sig", "n": text(modulus), "e": text(exponent)}


@functools.cache
def weak() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jwk.RSAKey.generate_key(1024, {"kid": "weak"})


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: changed(weak()), id="weak RSA"),
        pytest.param(lambda: rsa(2_047), id="RSA of 2047 bits"),
        pytest.param(lambda: rsa(8_200), id="RSA of 8200 bits"),
        pytest.param(lambda: rsa(2_048, (1 << 65) + 1), id="RSA with a large exponent"),
        pytest.param(lambda: changed(key("RSA", "k2"), n="A" * 100_000), id="long member"),
        pytest.param(lambda: changed(key("RSA", "k2"), alg="ES256"), id="RSA for ES256"),
        pytest.param(lambda: changed(key("RSA", "k2"), alg="HS256"), id="RSA for HS256"),
        pytest.param(lambda: changed(key("RSA", "k2"), alg="none"), id="RSA for none"),
        pytest.param(lambda: changed(key("RSA", "k2"), alg="RSA-OAEP"), id="RSA to encrypt"),
        pytest.param(lambda: changed(key("RSA", "k2"), use="enc"), id="to encrypt"),
        pytest.param(lambda: changed(key("RSA", "k2"), use=None, key_ops=["encrypt"]), id="op"),
        pytest.param(lambda: changed(key("RSA", "k2"), kty="EC"), id="RSA called EC"),
        pytest.param(lambda: changed(key(), kty="RSA"), id="EC called RSA"),
        pytest.param(lambda: changed(key(), alg="ES384"), id="P-256 for ES384"),
        pytest.param(lambda: changed(key(), crv="secp256k1"), id="another curve"),
        pytest.param(lambda: changed(key(), y="AAAA"), id="not on the curve"),
        pytest.param(lambda: key("RSA", "k2").as_dict(private=True), id="private"),
        pytest.param(lambda: key().as_dict(private=True), id="private EC"),
        pytest.param(lambda: {"kty": "oct", "k": "c2VjcmV0", "kid": "k1"}, id="shared secret"),
        pytest.param(lambda: {"kty": ["RSA"], "n": {}, "e": 3}, id="other types"),
        pytest.param(lambda: "RSA", id="no table"),
    ],
)
def test_key_that_is_good_for_no_signature_is_left_out(make: Any) -> None:
    """A set of such keys alone is refused. Beside a valid key they are ignored (RFC 7517 §5)."""
    one, found = make(), Validator(OPTIONS)
    with pytest.raises(KeysRefused, match="no usable signature key"):
        found.take_keys(set_of(one))
    good = jwk.ECKey.generate_key("P-384", {"kid": "good"})
    found.take_keys(set_of(one, changed(good)))
    assert found.left_out == 1
    assert [kept.kid for kept in found._keys] == ["good"]
    assert found.validate(token(good, "ES384"), WALL_MS).user == "alice"


def test_token_by_a_weak_key_is_refused() -> None:
    found = Validator(OPTIONS)
    found.take_keys(set_of(changed(weak()), changed(key())))
    signed = by_hand(
        {"alg": "RS256", "kid": "weak"},
        lambda data: weak().get_op_key("sign").sign(data, padding.PKCS1v15(), hashes.SHA256()),
    )
    with pytest.raises(TokenRefused):
        found.validate(signed, WALL_MS)


def test_largest_and_smallest_keys_are_taken() -> None:
    """The bounds are RSA of 2,048 and 8,192 bits, and the largest number of keys.

    One key more is refused.
    """
    found = Validator(OPTIONS)
    found.take_keys(set_of(rsa(2_048), rsa(8_192), rsa(3_072, (1 << 63) + 1)))
    assert found.left_out == 0
    found.take_keys(set_of(*[changed(key(), kid=str(n)) for n in range(KEYS_MAX)]))
    with pytest.raises(KeysRefused, match="more than 100 keys"):
        found.take_keys(set_of(*[changed(key(), kid=str(n)) for n in range(KEYS_MAX + 1)]))
    with pytest.raises(KeysRefused, match="more than 100 keys"):
        found.take_keys(set_of(*[{} for _ in range(5_000)]))


@pytest.mark.parametrize("with_id", [True, False])
@pytest.mark.parametrize("alone", [True, False])
def test_key_is_good_for_its_own_algorithm_only(with_id: bool, alone: bool) -> None:
    """Covers a key that names one algorithm, and tokens of the same key with another algorithm.

    Also if it is the only key, so that tokens need not name it.
    """
    signer = key("RSA", "k2")
    found = Validator(OPTIONS)
    others = [] if alone else [changed(key())]
    found.take_keys(set_of(changed(signer, alg="RS256"), *others))
    header = {} if with_id else {"kid": None}
    for algorithm in ("RS256", "RS384", "RS512", "PS256", "PS512"):
        made = jwt.encode(
            {
                name: value
                for name, value in ({"alg": algorithm, "kid": "k2"} | header).items()
                if value
            },
            claims(),
            signer,
            algorithms=[algorithm],
        )
        if algorithm == "RS256" and (with_id or alone):
            assert found.validate(made, WALL_MS).user == "alice"
        else:
            with pytest.raises(TokenRefused):
                found.validate(made, WALL_MS)


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES384", "ES512", "EdDSA", "HS512"])
def test_token_that_says_another_algorithm_than_its_key_has_is_refused(algorithm: str) -> None:
    """It is correctly signed by the P-256 key that it names, but declares another algorithm."""

    def sign(signed: bytes) -> bytes:
        made = key().get_op_key("sign").sign(signed, ec.ECDSA(hashes.SHA256()))
        return b"".join(number.to_bytes(32, "big") for number in decode_dss_signature(made))

    with pytest.raises(TokenRefused):
        validator().validate(by_hand({"alg": algorithm, "kid": "k1"}, sign), WALL_MS)


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
            # Base64 has several texts for the same bytes: only such a text may pass.
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
    """RFC 7628 §3.2.2: an error in JSON, the client's 0x01, and then the close."""
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
    """Covers a message for another user."""
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


_GOOD = b"HTTP/1.1 200 OK\r\n"
WITHOUT_END = {
    "status": (b"HTTP/1.1 2", b"0"),
    "headers": (_GOOD, b"x: y\r\n"),
    "header": (_GOOD + b"x: ", b"y"),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body": (_GOOD + b"\r\n", b" "),
    "counted": (_GOOD + b"Content-Length: 9000\r\n\r\n", b" "),
    "chunks": (_GOOD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}
"""Start of each endless response, and the bytes that follow repeatedly."""
UNREADABLE = {
    "/garbage": b"\0\1\2\3 what is this?\r\n\r\n",
    "/closed": b"",
    "/long-line": _GOOD + b"x: " + bytes(70_000) + b"\r\n\r\n",
    "/many-headers": _GOOD + b"x: y\r\n" * 200 + b"\r\n",
    "/cut-chunk": _GOOD + b"Transfer-Encoding: chunked\r\n\r\nffff\r\nabc",
    "/no-chunk": _GOOD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc",
    "/no-length": _GOOD + b"Content-Length: -7\r\n\r\n{",
}


class Issuer(http.server.BaseHTTPRequestHandler):
    """HTTP server whose path selects the response."""

    def do_GET(self) -> None:
        body = key_set(key())
        status = 200
        if self.path == "/large":
            body = bytes(BYTES_MAX + 1)
        if self.path == "/moved":
            status = 302
        if self.path == "/broken":
            status = 500
        if self.path.startswith("/without-end"):
            self._go_on()
            return
        if self.path in UNREADABLE:
            self.wfile.write(UNREADABLE[self.path])
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Location", "/keys")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _go_on(self) -> None:
        """Send until the client stops reading."""
        begin, part = WITHOUT_END[self.path.rpartition("/")[2]]
        with contextlib.suppress(OSError):
            self.wfile.write(begin)
            while True:
                self.wfile.write(part)
                time.sleep(0.02)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture(name="issuer")
def _issuer() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Issuer)
    server.daemon_threads = True
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
    """Covers another certificate, a redirect, an error, too much data, no encryption, no file."""
    with pytest.raises(KeysUnavailable, match="certificate"):
        fetch_keys(options_of(f"{issuer}/keys", "theirs"))
    for path in ("moved", "broken", "large"):
        with pytest.raises(KeysUnavailable):
            fetch_keys(options_of(f"{issuer}/{path}"))
    for url in ("http://127.0.0.1/keys", "ftp://x/y", (tmp_path / "none").as_uri(), ""):
        with pytest.raises(KeysUnavailable):
            fetch_keys(options_of(url))


@pytest.mark.parametrize("how", WITHOUT_END)
def test_issuer_that_goes_on_without_end_is_left_when_the_time_is_over(
    issuer: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One timeout covers the whole download; each single read would be in time."""
    monkeypatch.setattr(jwks, "SECONDS_MAX", 0.4)
    with pytest.raises(KeysUnavailable, match=r"no response within|larger than|got more than"):
        fetch_keys(options_of(f"{issuer}/without-end/{how}"))


@pytest.mark.parametrize("path", UNREADABLE)
def test_issuer_that_answers_what_cannot_be_read_has_no_keys(issuer: str, path: str) -> None:
    """No other exception is raised, which would stop the server."""
    with pytest.raises((KeysUnavailable, KeysRefused)):
        Validator(OPTIONS).take_keys(fetch_keys(options_of(issuer + path)))


@pytest.mark.parametrize("sends", [b"", b"\x16\x03\x03\x00\x7a", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_issuer_that_does_not_get_on_with_its_handshake_is_left(
    sends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwks, "SECONDS_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            one, _ = listening.accept()
            one.sendall(sends)
            taken.append(one)

        thread = threading.Thread(target=take)
        thread.start()
        with pytest.raises(KeysUnavailable):
            fetch_keys(options_of(f"https://127.0.0.1:{listening.getsockname()[1]}/"))
        thread.join()
        taken.pop().close()
