"""Security settings of the commands' own connections: a properties file with librdkafka's names.

```
security.protocol=SASL_SSL            PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
ssl.ca.location=tls/ca.pem            CA of the servers' certificates; empty: the system's
ssl.certificate.location, ssl.key.location    the client's own, if it shows one
ssl.key.password                      of a key that is encrypted
ssl.endpoint.identification.algorithm=https   or none: any host name is accepted
sasl.mechanism=SCRAM-SHA-512          or SCRAM-SHA-256, or PLAIN
sasl.username, sasl.password
vdl.admin.certificate.location, vdl.admin.key.location    for the admin plane
```
Relative paths are relative to the file. Other properties are ignored: one file may serve several
programs. Lines that begin with # are comments.

Does not depend on connections.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rpc.tls_context import KeyPair, TlsFiles
from vdl.kafka.security.protocol import PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, SecurityProtocol

_MECHANISMS = (SCRAM_SHA_512, SCRAM_SHA_256, PLAIN)

SECURING = ("security.", "ssl.", "sasl.", "vdl.")
KNOWN = frozenset(
    {
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "vdl.admin.certificate.location",
        "vdl.admin.key.location",
    }
)
"""Properties with these prefixes that are read from a file."""
OF_JAVA_CLIENTS = frozenset(
    {
        "sasl.jaas.config",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Properties of Java clients in a file for both kinds of clients; they are ignored. Without the
properties above, the system's authorities apply, and a server that they do not certify is
refused."""


class ClientSettingsError(Exception):
    """A file that cannot be used: its name, and the reason. Never contains a secret value."""

    def __init__(self, source: object, problem: str) -> None:
        super().__init__(f"{source}: {problem}")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings in such a file. `str` of it does not reveal the passwords."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    ca: Path | None = None
    own: KeyPair | None = None
    checks_host: bool = True
    mechanism: str = SCRAM_SHA_512
    user: str = ""
    password: str = ""
    admin: KeyPair | None = None
    key_password: str = ""

    def __repr__(self) -> str:
        return f"ClientSettings({self.protocol.value}, {self.mechanism}, user={self.user!r})"

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context of a connection; None if not encrypted. Raises ClientSettingsError."""
        if not self.protocol.is_encrypted:
            return None
        context = ssl.create_default_context()
        if self.ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _load(self.ca, context.load_verify_locations, self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.checks_host
        if self.own is not None:
            own = self.own
            # Without this callback OpenSSL would prompt for a pass phrase at the terminal.
            told = self.key_password
            _load(own.key, context.load_cert_chain, own.certificate, own.key, lambda: told)
        return context

    def admin_files(self) -> TlsFiles | None:
        """Return the files to show to the admin plane; None if there are none."""
        if self.admin is None:
            return None
        return TlsFiles(certificate=self.admin.certificate, key=self.admin.key, ca=self.ca)


def _load(what: Path, load: object, *arguments: object) -> None:
    assert callable(load)
    try:
        load(*arguments)
    except (OSError, ValueError) as error:
        words = error.reason if isinstance(error, ssl.SSLError) else None
        if isinstance(error, OSError) and not words:
            words = error.strerror
        raise ClientSettingsError(what, words or type(error).__name__) from None


def read_properties(path: Path) -> dict[str, str]:
    """Return all name=value lines of a file, without a look at the names.

    Raises ClientSettingsError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ClientSettingsError(path, error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise ClientSettingsError(path, "is not UTF-8 text") from None
    properties: dict[str, str] = {}
    for line in text.replace("\\\n", "").splitlines():  # a backslash at the end continues a line
        name, separator, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith(("#", "!")):
            continue
        if not separator:
            # If it were ignored, another kind of file would be read as one without encryption. Its
            # text may be a password behind a ":", or a part of a key: only a head in [] is shown.
            line = line.strip()
            shown = repr(line[:40]) if line.startswith("[") else "a line without '='"
            raise ClientSettingsError(
                path, f"{shown} is not a client property of the form name=value"
            )
        properties[name.strip()] = value.strip()
    return properties


def read_client_settings(path: Path) -> ClientSettings:
    """Read a file. Raises ClientSettingsError."""
    properties = read_properties(path)
    check_names(properties, path)
    return parse_client_settings(properties, path, path.resolve().parent)


def check_names(properties: Mapping[str, str], source: object) -> None:
    """Raise ClientSettingsError for a security property that is not known."""
    for name in properties:
        # A misspelt property would leave the connection less secure than intended. Others belong to
        # clients with more features than these programs.
        if name.startswith(SECURING) and name not in KNOWN | OF_JAVA_CLIENTS:
            raise ClientSettingsError(
                source, f"{name}: unknown property; expected one of {', '.join(sorted(KNOWN))}"
            )


def parse_client_settings(
    properties: Mapping[str, str], source: object, folder: Path
) -> ClientSettings:
    """Return the settings in properties, with relative paths below `folder`.

    Raises ClientSettingsError.
    """

    def get(name: str) -> str:
        return properties.get(name, "")

    protocols = [protocol.value for protocol in SecurityProtocol]
    protocol = get("security.protocol").upper() or SecurityProtocol.PLAINTEXT.value
    if protocol not in protocols:
        raise ClientSettingsError(source, f"security.protocol: expected {' or '.join(protocols)}")
    checks = get("ssl.endpoint.identification.algorithm").lower() or "https"
    if checks not in ("https", "none"):
        raise ClientSettingsError(
            source, "ssl.endpoint.identification.algorithm: expected https or none"
        )
    mechanism = get("sasl.mechanism") or get("sasl.mechanisms") or SCRAM_SHA_512
    settings = ClientSettings(
        SecurityProtocol(protocol),
        folder / get("ssl.ca.location") if get("ssl.ca.location") else None,
        _pair(get("ssl.certificate.location"), get("ssl.key.location"), folder),
        checks == "https",
        mechanism,
        get("sasl.username"),
        get("sasl.password"),
        _pair(get("vdl.admin.certificate.location"), get("vdl.admin.key.location"), folder),
        get("ssl.key.password"),
    )
    if settings.protocol.has_login:
        if mechanism not in _MECHANISMS:
            raise ClientSettingsError(
                source, f"sasl.mechanism: expected one of {', '.join(_MECHANISMS)}"
            )
        if not settings.user:
            raise ClientSettingsError(source, "sasl.username: required")
    return settings


def _pair(certificate: str, key: str, folder: Path) -> KeyPair | None:
    return KeyPair(folder / certificate, folder / key) if certificate and key else None
