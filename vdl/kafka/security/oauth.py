"""OAUTHBEARER (RFC 7628): the client shows a token that an issuer has signed.

* Only asymmetric signatures are accepted, by keys of the issuer's set (JWKS): never `none`, and
  never a key in the token itself (`jwk`, `jku`, `x5u` are ignored). Without keys no token is valid.
* A key of the set may be used for the algorithms of its type and curve, or for only one of them if
  it names one. Keys that are usable for none, are weak or are private are left out (RFC 7517 §5).
* A token must name the issuer, one of our audiences, a user, and an expiry time. If it also has a
  time from which it is valid or at which it was issued, that must be in the past.
* The session ends with the token at the latest.
* A refusal has the mechanism's own form: an error in JSON, which the client then acknowledges.

Validating a token takes a tenth of a millisecond, in the thread where passwords are checked.
joserfc is imported with the first keys.

Does not depend on connections, or on where keys come from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vdl.kafka.host import Compute
from vdl.kafka.security.mechanism import Accepted, Challenge, Refused, Step
from vdl.kafka.security.oauth_options import OauthOptions
from vdl.kafka.security.principal import Principal, is_name

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Signatures by a private key. Those by a shared secret are excluded: a public key could be taken
for one."""
_RSA = frozenset(name for name in ALGORITHMS if name[0] in "RP")
_ALGORITHMS_OF: Mapping[tuple[str, str], frozenset[str]] = {
    ("RSA", ""): _RSA,
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
    ("OKP", "Ed448"): frozenset({"EdDSA"}),
}
"""(type, curve) of a key → the algorithms for which it may be used."""
_MEMBERS = ("kty", "kid", "use", "alg", "key_ops", "crv", "x", "y", "n", "e")
_MEMBER_CHARS_MAX = 2_048
RSA_BITS_MIN, RSA_BITS_MAX = 2_048, 8_192
"""RFC 7518 §3.3. The maximum keeps the check of a token below milliseconds."""
_EXPONENT_BITS_MAX = 64
TOKEN_BYTES_MAX = 16 << 10
KEYS_MAX = 100
_NAME_CHARS_MAX = 256
_SECONDS_MAX = 1 << 40

_INITIAL = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\x00\x01]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\x00\x01]*\x01)*)\x01"
)
_BEARER = re.compile(r"Bearer +([A-Za-z0-9._~+/=-]+) *", re.IGNORECASE)
_ERROR = b'{"status":"invalid_token"}'


class TokenRefused(Exception):
    """A token is invalid; the argument is the reason, without any content of the token."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """Verified user of a token, and the time when it expires (ms since 1970)."""

    user: str
    expires_ms: int


class KeysRefused(ValueError):
    """A set of keys that cannot be used."""


class Validator:
    """Validator of tokens. Keys are replaced as a whole; all else may be called in any thread."""

    def __init__(self, options: OauthOptions) -> None:
        self.options = options
        self._keys: Any = None
        self.unknown_keys = 0
        """Tokens signed with a key that is not in the set."""
        self.left_out = 0
        """Keys of the set that are not used."""

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    def take_keys(self, document: bytes) -> None:
        """Use the keys of this set from now on. Raises KeysRefused."""
        from joserfc import jwk

        try:
            found = json.loads(document)["keys"]
            assert isinstance(found, list)
        except Exception as error:  # noqa: BLE001 - any failure of a parser on a foreign document
            raise KeysRefused(f"not a set of keys: {type(error).__name__}") from None
        if len(found) > KEYS_MAX:
            raise KeysRefused(f"more than {KEYS_MAX} keys")
        public = [key for one in found if (key := _usable(one)) is not None]
        if not public:
            raise KeysRefused("no usable signature key")
        self.left_out = len(found) - len(public)
        self._keys = jwk.KeySet(public)

    def validate(self, token: str, now_ms: int) -> Bearer:
        """Return the user and expiry of a valid token. Raises TokenRefused."""
        claims = self._claims(token)
        options = self.options
        if claims.get("iss") != options.issuer:
            raise TokenRefused("has another issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if not any(one in options.audiences for one in named if isinstance(one, str)):
            raise TokenRefused("has another audience")
        skew_ms = options.clock_skew_s * 1_000
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None:
            raise TokenRefused("has no expiry time")
        if expires_ms + skew_ms <= now_ms:
            raise TokenRefused("expired")
        for name in ("nbf", "iat"):
            begins_ms = _time_ms(claims, name)
            if begins_ms is not None and begins_ms - skew_ms > now_ms:
                raise TokenRefused("is not valid yet")
        user = claims.get(options.subject_claim)
        if not isinstance(user, str) or not 0 < len(user) <= _NAME_CHARS_MAX:
            raise TokenRefused("has no user")
        if not is_name(user):
            raise TokenRefused("has a control character in the name of its user")
        return Bearer(user, expires_ms + skew_ms)

    def _claims(self, token: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        if self._keys is None or not self.options.is_complete:
            raise TokenRefused("cannot be checked: the keys are not loaded")
        if len(token) > TOKEN_BYTES_MAX or token.count(".") != 2:
            raise TokenRefused("is not a signed token")
        try:
            return dict(jwt.decode(token, self._keys, algorithms=list(ALGORITHMS)).claims)
        except InvalidKeyIdError:
            self.unknown_keys += 1
            raise TokenRefused("is signed with an unknown key") from None
        except JoseError as error:
            raise TokenRefused(f"is invalid: {type(error).__name__}") from None
        except Exception as error:  # noqa: BLE001 - any failure of a parser on a client's bytes
            raise TokenRefused(f"cannot be parsed: {type(error).__name__}") from None


def _usable(one: Any) -> Any:
    """Return a key by which signatures may be checked; None if `one` is no such key."""
    from joserfc import jwk

    try:
        made = {name: one[name] for name in _MEMBERS if name in one}
        good_for = _ALGORITHMS_OF[made["kty"], made.get("crv", "")]
        is_long = any(len(value) > _MEMBER_CHARS_MAX for value in made.values())
        # A published private key lets anyone sign.
        if is_long or "d" in one or made.get("use", "sig") != "sig":
            return None
        if made.get("alg", next(iter(good_for))) not in good_for:
            return None
        key = jwk.import_key(made)
        public: Any = key.get_op_key("verify")
        if made["kty"] == "RSA":
            exponent: int = public.public_numbers().e
            if not RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX:
                return None
            if exponent.bit_length() > _EXPONENT_BITS_MAX:
                return None
    except Exception:  # noqa: BLE001 - any failure of a parser on a foreign document
        return None
    return key


def _time_ms(claims: dict[str, Any], name: str) -> int | None:
    """Return a time in a token; None if it is missing. Raises TokenRefused if it is no time."""
    value = claims.get(name)
    if value is None:
        return None
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (0 <= value <= _SECONDS_MAX)
    ):
        raise TokenRefused(f"has no valid time in {name}")
    return int(value * 1_000)


class OauthLogin:
    """One login."""

    def __init__(self, validator: Validator, now_ms: Callable[[], int], compute: Compute) -> None:
        self._validator = validator
        self._now_ms = now_ms
        self._compute = compute
        self._refusal = ""
        self.user = ""

    def step(self, token: bytes, done: Callable[[Step], None]) -> None:
        """See `Mechanism.step`."""
        if self._refusal:
            done(Refused(self._refusal, is_credential=True, message=_ERROR.decode()))
            return
        match = _INITIAL.fullmatch(token)
        if match is None:
            done(Refused("malformed message"))
            return
        listed = [pair.split(b"=", 1) for pair in match["pairs"].split(b"\1") if pair]
        pairs = dict(listed)
        if len(pairs) < len(listed):
            done(Refused("malformed message"))  # another reader might use the other one of two
            return
        bearer = _BEARER.fullmatch(pairs.get(b"auth", b"").decode("latin-1"))
        if bearer is None:
            done(Refused("no bearer token"))
            return
        authzid = (match["authzid"] or b"").decode("utf-8", "replace")
        value, now_ms = bearer[1], self._now_ms()

        def checked(result: Bearer | BaseException) -> None:
            if isinstance(result, TokenRefused):
                self._refuse(str(result), done)
            elif isinstance(result, BaseException):
                done(Refused(f"failed in the server: {type(result).__name__}"))
            elif authzid not in ("", result.user):
                self._refuse("acting for another user is not supported", done)
            else:
                done(Accepted(Principal(result.user), expires_ms=result.expires_ms))

        self._compute(lambda: _judged(self._validator, value, now_ms), checked)

    def _refuse(self, reason: str, done: Callable[[Step], None]) -> None:
        self._refusal = f"token {reason}"
        done(Challenge(_ERROR))


def _judged(validator: Validator, token: str, now_ms: int) -> Bearer | TokenRefused:
    """Return the result or the error as a value, for callers that compute at once."""
    try:
        return validator.validate(token, now_ms)
    except TokenRefused as error:
        return error
