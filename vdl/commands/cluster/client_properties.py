"""Client properties as librdkafka names them, from those of Java clients.

| Java | librdkafka |
|---|---|
| `sasl.jaas.config` | `sasl.username`, `sasl.password`, or those of OAUTHBEARER and Kerberos |
| `ssl.truststore.location`, `.certificates` | `ssl.ca.location`, `ssl.ca.pem` |
| `ssl.keystore.location`, `.key`, `.certificate.chain` | PKCS#12, or PEM |
| `ssl.endpoint.identification.algorithm=` (empty) | `none` |

Names that both share stay. Relative paths are relative to the file that names them. Of a file,
properties that do not secure the connection are left out: one file may serve several programs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vdl.kafka.security.client_settings import SECURING, ClientSettingsError

_FILES = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.crl.location")
_STORES = ("ssl.truststore.", "ssl.keystore.")
_JAVA_ALONE = (
    "sasl.client.callback.handler.class",
    "sasl.jaas.config",
    "sasl.login.",
    "security.providers",
    "ssl.enabled.protocols",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "vdl.",
)
"""Beginnings of names that librdkafka does not know and that change nothing for it."""
_PASSED = ("bootstrap.servers", "client.id", "client.rack", *SECURING)
"""Beginnings of names that are taken from a file."""
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;]+))""")
_JKS = b"\xfe\xed\xfe\xed"
_PEM = b"-----BEGIN"


def librdkafka_properties(
    properties: Mapping[str, str], source: object, folder: Path
) -> dict[str, str]:
    """Return the properties that librdkafka gets. Raises ClientSettingsError.

    `source` names the file in errors; relative paths are below `folder`.
    """
    given = {name: value for name, value in properties.items() if name.startswith(_PASSED)}
    found = {
        name: value
        for name, value in given.items()
        if not name.startswith((*_JAVA_ALONE, *_STORES)) and value
    }
    for name in _FILES:
        # "probe" stands for the system's authorities.
        if name in found and found[name] != "probe":
            found[name] = str(folder / found[name])
    if "ssl.endpoint.identification.algorithm" in given:
        found.setdefault("ssl.endpoint.identification.algorithm", "none")
    # A file for both kinds of clients has both names: librdkafka's own win, and Java's stores are
    # not even opened.
    if not {"sasl.username", "sasl.password"} & set(found):
        found |= _login(given.get("sasl.jaas.config", ""), source)
    if not {"ssl.ca.location", "ssl.ca.pem"} & set(found):
        found |= _trust(given, source, folder)
    if not {"ssl.certificate.location", "ssl.certificate.pem"} & set(found):
        found |= _key(given, source, folder)
    return found


def _login(jaas: str, source: object) -> dict[str, str]:
    """Return the login of a `sasl.jaas.config`: a module's class, and its options."""
    if not jaas:
        return {}
    module = jaas.split(maxsplit=1)[0].rpartition(".")[2].rstrip(";")
    options = {
        match[1]: re.sub(r"\\(.)", r"\1", match[2] or match[3] or match[4] or "")
        for match in _OPTION.finditer(jaas)
    }
    if options.get("tokenauth", "").lower() == "true":
        raise ClientSettingsError(
            source, "sasl.jaas.config: librdkafka cannot log in with a delegation token"
        )
    names = {
        "ScramLoginModule": {"username": "sasl.username", "password": "sasl.password"},
        "PlainLoginModule": {"username": "sasl.username", "password": "sasl.password"},
        "OAuthBearerLoginModule": {
            "clientId": "sasl.oauthbearer.client.id",
            "clientSecret": "sasl.oauthbearer.client.secret",
            "scope": "sasl.oauthbearer.scope",
        },
        "Krb5LoginModule": {
            "principal": "sasl.kerberos.principal",
            "keyTab": "sasl.kerberos.keytab",
        },
    }.get(module)
    if names is None:
        raise ClientSettingsError(source, f"sasl.jaas.config: unknown login module {module!r}")
    found = {names[key]: value for key, value in options.items() if key in names}
    if "sasl.oauthbearer.client.id" in found:
        found["sasl.oauthbearer.method"] = "oidc"
    return found


def _trust(given: Mapping[str, str], source: object, folder: Path) -> dict[str, str]:
    """Return the authorities of a trust store."""
    if inline := given.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": _pem(inline)}
    if not (location := given.get("ssl.truststore.location")):
        return {}
    path = folder / location
    content = _content(path, source, "ssl.truststore.location")
    if content.lstrip().startswith(_PEM):
        return {"ssl.ca.location": str(path)}
    return {"ssl.ca.pem": _pkcs12_authorities(content, given, source)}


def _pkcs12_authorities(content: bytes, given: Mapping[str, str], source: object) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

    password = given.get("ssl.truststore.password", "")
    try:
        store = pkcs12.load_pkcs12(content, password.encode() or None)
    except ValueError:
        raise ClientSettingsError(
            source, "ssl.truststore.location: not PKCS#12, or another password"
        ) from None
    certificates = [one.certificate for one in store.additional_certs]
    certificates += [store.cert.certificate] if store.cert else []
    return "".join(one.public_bytes(Encoding.PEM).decode() for one in certificates)


def _key(given: Mapping[str, str], source: object, folder: Path) -> dict[str, str]:
    """Return the client's own certificate and key."""
    found = {}
    if chain := given.get("ssl.keystore.certificate.chain"):
        found["ssl.certificate.pem"] = _pem(chain)
    if key := given.get("ssl.keystore.key"):
        found["ssl.key.pem"] = _pem(key)
    if found or not (location := given.get("ssl.keystore.location")):
        return found
    path = folder / location
    if _content(path, source, "ssl.keystore.location").lstrip().startswith(_PEM):
        return {"ssl.certificate.location": str(path), "ssl.key.location": str(path)}
    return {
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": given.get("ssl.keystore.password", ""),
    }


def _content(path: Path, source: object, name: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ClientSettingsError(source, f"{name}: {path}: {error.strerror}") from None
    if content.startswith(_JKS):
        raise ClientSettingsError(
            source,
            f"{name}: {path} is a JKS store, which only Java reads; convert it with"
            " `keytool -importkeystore -deststoretype PKCS12`",
        )
    return content


def _pem(text: str) -> str:
    """Return PEM text whose line ends are real: properties files write them as backslash n."""
    return text.replace("\\n", "\n")
