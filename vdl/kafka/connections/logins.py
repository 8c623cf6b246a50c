"""Logins of clients against the credentials in the catalog and the configuration.

Does not depend on connections, or on how mechanisms work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vdl.kafka.security.login import Login
from vdl.kafka.security.mechanism import Mechanism
from vdl.kafka.security.oauth import OauthLogin
from vdl.kafka.security.plain import PlainLogin
from vdl.kafka.security.principal import Principal, parse_principal
from vdl.kafka.security.protocol import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512
from vdl.kafka.security.scram import ClientFirst, Found, ScramLogin, Verifier, decoy

if TYPE_CHECKING:
    from vdl.kafka.context import Context
    from vdl.state.commands import ScramUpsert


def begin_login(context: Context, mechanisms: tuple[str, ...], address: str) -> Login:
    """Return the login of a new connection to a listener that offers these mechanisms.

    `address` is the client's address (for IPv6: its network).
    """

    def make(name: str) -> Mechanism:
        return _plain(context, login.is_locked) if name == PLAIN else _MAKERS[name](context, name)

    login = Login(
        mechanisms,
        make,
        context.clock,
        context.host.agreed_ms,
        context.config.session_ms_max,
        context.config.login_bytes_max,
        context.login_failures,
        address,
    )
    return login


def _verifier(credential: ScramUpsert) -> Verifier:
    return Verifier(
        credential.iterations, credential.salt, credential.stored_key, credential.server_key
    )


def _scram(context: Context, mechanism: str) -> Mechanism:
    def look_up(mechanism: str, first: ClientFirst) -> Found | None:
        if _has_token(first):
            return _token(context, mechanism, first.name)
        credential = context.host.catalog.scram.of(first.name).get(mechanism)
        return None if credential is None else Found(Principal(first.name), _verifier(credential))

    def stranger(mechanism: str, first: ClientFirst) -> Verifier:
        return _decoy(context, mechanism, first.name, is_token=_has_token(first))

    return ScramLogin(mechanism, look_up, stranger, context.random_bytes)


def _has_token(first: ClientFirst) -> bool:
    return first.extensions.get("tokenauth", "").lower() == "true"


def _token(context: Context, mechanism: str, token_id: str) -> Found | None:
    """Return the owner and verifier of a delegation token, valid until the token expires
    (KIP-48)."""
    token = context.host.catalog.tokens.valid(token_id, context.host.agreed_ms())
    credential = None if token is None else token.verifier(mechanism)
    if token is None or credential is None or not context.delegation_keys.of(token_id):
        return None
    owner = parse_principal(token.owner)
    return Found(owner, _verifier(credential), token.expires_ms, by_token=True)


def _plain(context: Context, is_locked: Callable[[str], bool]) -> Mechanism:
    def find(name: str) -> tuple[str, Verifier] | None:
        credentials = context.host.catalog.scram.of(name)
        for kind in (SCRAM_SHA_512, SCRAM_SHA_256):
            if kind in credentials:
                return kind, _verifier(credentials[kind])
        return None

    def stranger(name: str) -> Verifier:
        return _decoy(context, SCRAM_SHA_512, name)

    return PlainLogin(find, SCRAM_SHA_512, stranger, context.login_compute, is_locked)


def _decoy(context: Context, mechanism: str, name: str, *, is_token: bool = False) -> Verifier:
    """Return a decoy verifier for an unknown name.

    Its kinds follow those in use, once there are users. All tokens are of one kind.
    """
    scram = context.host.catalog.scram
    key = scram.decoy_key or context.host.cluster_id.encode()
    kinds = () if is_token else scram.kinds(mechanism)
    return decoy(mechanism, name, key, kinds, is_token=is_token)


def _oauth(context: Context, mechanism: str) -> Mechanism:
    assert context.tokens is not None, mechanism
    return OauthLogin(context.tokens, context.host.agreed_ms, context.login_compute)


_MAKERS: Mapping[str, Callable[[Context, str], Mechanism]] = {
    SCRAM_SHA_256: _scram,
    SCRAM_SHA_512: _scram,
    OAUTHBEARER: _oauth,
}
