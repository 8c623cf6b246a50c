"""The `[[listeners]]` tables of a configuration: client ports and their security.

Does not depend on other tables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from rpc.tls_context import ClientAuth, KeyPair, TlsFiles, TlsOptions
from vdl.config.values import Address, parse_address
from vdl.kafka.configs.options import ListenerOptions
from vdl.kafka.security.certificate_names import PrincipalRules
from vdl.kafka.security.protocol import GSSAPI, MECHANISMS, SecurityProtocol

LISTENER_KEYS = (
    "name", "listen", "advertise", "protocol", "mechanisms", "client_auth", "certificate", "key",
    "ca", "crl", "other_certificates", "principal_rules", "unencrypted_login",
    "max_connections",
)  # fmt: skip
CONNECTIONS_MAX = 1_000_000
MECHANISMS_DEFAULT = MECHANISMS[:2]
"""Mechanisms that need no other settings and do not send the password."""
_PAIR_KEYS = {"certificate", "key"}
_T = TypeVar("_T")


class ListenerError(Exception):
    """Raised for a problem with a key; an empty key stands for the table."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key = key
        self.problem = problem


def parse_listener(
    table: Mapping[str, object], reserved: str, files: TlsFiles, folder: Path
) -> ListenerOptions:
    """Parse one table. Raise ListenerError if it is invalid.

    `reserved` is a name it must not have; `files` supplies certificates that it does not name
    itself.
    """
    for key in table:
        if key not in LISTENER_KEYS:
            close = difflib.get_close_matches(key, LISTENER_KEYS, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ListenerError(key, f"unknown key{hint}")
    name = table.get("name", "PLAINTEXT")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Z][A-Z0-9_]{0,31}", name):
        raise ListenerError("name", f"expected capital letters, found {_shown(name)}")
    if name == reserved:
        raise ListenerError(
            "name", f"{name} is reserved for the port of [admin]; choose another name"
        )
    protocol = _protocol(table, name)
    listen, advertise = _addresses(table)
    _check_unencrypted(table, protocol, listen)
    return ListenerOptions(
        name=name,
        host=listen.host,
        port=listen.port,
        advertised_host=advertise.host,
        advertised_port=advertise.port,
        protocol=protocol,
        tls=_tls(table, protocol, files, folder),
        principal_rules=_rules(table, protocol),
        mechanisms=_mechanisms(table, protocol),
        connections_max=_connections_max(table),
    )


def _protocol(table: Mapping[str, object], name: str) -> SecurityProtocol:
    """Return the protocol as set, else the one that has the listener's name, else PLAINTEXT."""
    known = [protocol.value for protocol in SecurityProtocol]
    said = table.get("protocol", name if name in known else SecurityProtocol.PLAINTEXT.value)
    if said not in known:
        expected = " or ".join(f'"{protocol}"' for protocol in known)
        raise ListenerError("protocol", f"expected {expected}, found {_shown(said)}")
    return SecurityProtocol(said)


def _connections_max(table: Mapping[str, object]) -> int:
    if "max_connections" not in table:
        return 0
    raw = table["max_connections"]
    if not isinstance(raw, int) or isinstance(raw, bool) or not 1 <= raw <= CONNECTIONS_MAX:
        raise ListenerError(
            "max_connections", f"expected 1 to {CONNECTIONS_MAX}, found {_shown(raw)}"
        )
    return raw


def _check_unencrypted(
    table: Mapping[str, object], protocol: SecurityProtocol, listen: Address
) -> None:
    """Refuse unencrypted logins on a network unless they are allowed explicitly.

    An eavesdropper on a login can take over the session, and reads the password that PLAIN sends.
    """
    allowed = table.get("unencrypted_login", False)
    if not isinstance(allowed, bool):
        raise ListenerError("unencrypted_login", "expected true or false")
    is_open = protocol is SecurityProtocol.SASL_PLAINTEXT and not listen.is_loopback
    if is_open and not allowed:
        raise ListenerError(
            "protocol",
            "SASL_PLAINTEXT sends logins unencrypted over the network; expected SASL_SSL, a "
            "loopback address, or unencrypted_login = true",
        )


def _addresses(table: Mapping[str, object]) -> tuple[Address, Address]:
    """Return (listen, advertise) of one listener; `advertise` is `listen` unless it is set."""
    parsed: dict[str, Address] = {}
    for key in ("listen", "advertise"):
        if key not in table and key == "advertise":
            continue
        raw = table.get(key, "")
        try:
            parsed[key] = parse_address(raw if isinstance(raw, str) else "")
        except ValueError as error:
            raise ListenerError(key, f"expected {error}, found {_shown(table.get(key))}") from None
    listen = parsed["listen"]
    advertise = parsed.get("advertise", listen)
    if not advertise.is_reachable:
        raise ListenerError("advertise", f"required, because clients cannot connect to {advertise}")
    return listen, advertise


def _tls(
    table: Mapping[str, object], protocol: SecurityProtocol, files: TlsFiles, folder: Path
) -> TlsOptions:
    if not protocol.is_encrypted:
        for key in ("client_auth", "certificate", "key", "ca", "crl", "other_certificates"):
            if key in table:
                raise ListenerError(
                    key, f"not allowed: a {protocol.value} listener does not use it"
                )
        return TlsOptions()
    if ("certificate" in table) != ("key" in table):
        raise ListenerError("certificate", "certificate and key must be given together")
    own = _pair(table, "", folder) if "certificate" in table else files.own
    if own is None:
        raise ListenerError(
            "certificate", "required; set it here or as tls.certificate and tls.key"
        )
    auth = table.get("client_auth", ClientAuth.NONE.value)
    known = [one.value for one in ClientAuth]
    if auth not in known:
        expected = " or ".join(f'"{one}"' for one in known)
        raise ListenerError("client_auth", f"expected {expected}, found {_shown(auth)}")
    ca = _path(table["ca"], "ca", folder) if "ca" in table else files.ca
    if auth != ClientAuth.NONE.value and ca is None:
        raise ListenerError(
            "ca", "required to check certificates of clients; set it here or as tls.ca"
        )
    if "crl" in table and auth == ClientAuth.NONE.value:
        raise ListenerError(
            "crl", 'not allowed: client_auth is "none", so clients show no certificates'
        )
    return TlsOptions(
        own=own,
        ca=ca,
        crl=_crl(table, files, folder) if auth != ClientAuth.NONE.value else None,
        client_auth=ClientAuth(auth),
        others=_other_pairs(table, folder),
        version_min=files.version_min,
        ciphers=files.ciphers,
    )


def _crl(table: Mapping[str, object], files: TlsFiles, folder: Path) -> Path | None:
    """Return the listener's revocation list; the server's unless the listener names one.

    "off" disables it. A listener with another authority but without that authority's list refuses
    clients, which reveals the omission.
    """
    raw = table.get("crl")
    if raw == "off":
        return None
    return files.crl if raw is None else _path(raw, "crl", folder)


def _other_pairs(table: Mapping[str, object], folder: Path) -> tuple[KeyPair, ...]:
    key = "other_certificates"
    raw = table.get(key, [])
    if not isinstance(raw, list) or not all(
        isinstance(item, dict) and set(item) == _PAIR_KEYS for item in raw
    ):
        raise ListenerError(key, 'expected a list such as [{ certificate = "…", key = "…" }]')
    return tuple(_pair(item, f"{key}.", folder) for item in raw)


def _pair(table: Mapping[str, object], prefix: str, folder: Path) -> KeyPair:
    return KeyPair(
        _path(table["certificate"], f"{prefix}certificate", folder),
        _path(table["key"], f"{prefix}key", folder),
    )


def _path(raw: object, key: str, folder: Path) -> Path:
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise ListenerError(key, f"expected a path, found {_shown(raw)}")
    return folder / raw


def _rules(table: Mapping[str, object], protocol: SecurityProtocol) -> str:
    if "principal_rules" not in table:
        return "DEFAULT"
    if protocol is not SecurityProtocol.SSL:
        raise ListenerError(
            "principal_rules",
            "not allowed: only an SSL listener derives principals from certificates",
        )
    raw = table["principal_rules"]
    try:
        PrincipalRules(_expect(raw, str, "rules as a string"))
    except ValueError as error:
        raise ListenerError("principal_rules", f"expected {error}, found {_shown(raw)}") from None
    return str(raw)


def _mechanisms(table: Mapping[str, object], protocol: SecurityProtocol) -> tuple[str, ...]:
    if not protocol.has_login:
        if "mechanisms" in table:
            raise ListenerError(
                "mechanisms", f"not allowed: a {protocol.value} listener has no login"
            )
        return ()
    raw = table.get("mechanisms", list(MECHANISMS_DEFAULT))
    if not isinstance(raw, list) or not raw or len(set(map(str, raw))) < len(raw):
        raise ListenerError(
            "mechanisms", f"expected a list of one or more of {', '.join(MECHANISMS)}, each once"
        )
    for mechanism in raw:
        if mechanism == GSSAPI:
            raise ListenerError("mechanisms", "GSSAPI (Kerberos) is not supported")
        if mechanism not in MECHANISMS:
            raise ListenerError(
                "mechanisms",
                (f"expected one or more of {', '.join(MECHANISMS)}, found {_shown(mechanism)}"),
            )
    return tuple(str(mechanism) for mechanism in raw)


def _expect(raw: object, kind: type[_T], what: str) -> _T:
    if not isinstance(raw, kind):
        raise ValueError(what)
    return raw


def _shown(raw: object) -> str:
    if isinstance(raw, list | dict):
        return "a list" if isinstance(raw, list) else "a table"
    if isinstance(raw, int) and raw.bit_length() > 63:
        return "a number of more than 64 bits"
    shown = repr(raw)
    return shown if len(shown) <= 100 else f"{shown[:100]}..."
