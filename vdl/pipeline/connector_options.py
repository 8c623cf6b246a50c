"""Options by the official connector's names, translated to this reader's own.

| the connector's | ours |
|---|---|
| kafka.bootstrap.servers, subscribe | bootstrap, topics |
| startingOffsets, endingOffsets | start, end |
| startingTimestamp, endingTimestamp | start, end: ms since 1970 |
| failOnDataLoss | allowLoss, negated |
| maxOffsetsPerTrigger | maxRows |
| includeHeaders | headers |
| kafka.isolation.level | isolation |
| kafka.security.protocol, kafka.sasl.…, kafka.ssl.…, kafka.client.… | client.… |

minPartitions is the same in both. Missing options have our defaults: a stream too begins at the
earliest offset, and only committed records are read. Options without a meaning here are refused by
name.

Does not depend on Spark or on Kafka clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from vdl.pipeline.client_secrets import SAME, TEXTS

PREFIX = "kafka."
CLIENT_PREFIX = "client."
RENAMED = {
    "kafka.bootstrap.servers": "bootstrap",
    "subscribe": "topics",
    "startingoffsets": "start",
    "endingoffsets": "end",
    "startingtimestamp": "start",
    "endingtimestamp": "end",
    "maxoffsetspertrigger": "maxrows",
    "includeheaders": "headers",
    "kafka.isolation.level": "isolation",
}
"""Names are in lower case, as Spark passes them."""
LOSS, ALLOW = "failondataloss", "allowloss"
JAAS = "sasl.jaas.config"
HOST_CHECK = "ssl.endpoint.identification.algorithm"
PEM_FILES = {
    "ssl.truststore.location": ("ssl.truststore.type", "ssl.ca.location"),
    "ssl.keystore.location": ("ssl.keystore.type", ""),
}
"""Java's name of a file → (the name of its type, librdkafka's name for a PEM file)."""
LOGIN = re.compile(r'(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')
JAVA_CLIENT = {
    **{java: name for name, java in SAME.items() if name != "sasl.mechanisms"},
    **{java: name for name, java in TEXTS.items()},
}


class OptionRefused(Exception):
    """An option without a meaning here: the message names it and gives the reason."""


def renamed(given: Mapping[str, str]) -> dict[str, str]:
    """Return options, given by names in lower case, by our own names. Raises OptionRefused."""
    found = {n: v for n, v in given.items() if not _is_connectors(n)}
    client: dict[str, str] = {}
    for name, value in given.items():
        if not _is_connectors(name):
            continue
        if name in RENAMED:
            own, told = RENAMED[name], value
        elif name == LOSS:
            own, told = ALLOW, {"true": "false", "false": "true"}.get(value.lower(), value)
        else:
            client[name.removeprefix(PREFIX)] = value
            continue
        if own in found:
            raise OptionRefused(
                f"{name}: conflicts with {own}, which has the same meaning; give one of them"
            )
        found[own] = told
    for name, value in _client(client).items():
        found.setdefault(f"{CLIENT_PREFIX}{name}", value)
    return found


def _is_connectors(name: str) -> bool:
    return name in RENAMED or name == LOSS or name.startswith(PREFIX)


def _client(java: Mapping[str, str]) -> dict[str, str]:
    """Translate settings of Java's client to librdkafka's."""
    types = {kind for kind, _ in PEM_FILES.values()}
    found: dict[str, str] = {}
    for name, value in java.items():
        if name in JAVA_CLIENT:
            found[JAVA_CLIENT[name]] = value
        elif name == JAAS:
            found |= _login(value)
        elif name == HOST_CHECK:
            found[HOST_CHECK] = value or "none"
        elif name in PEM_FILES:
            kind, own = PEM_FILES[name]
            if java.get(kind, "").upper() != "PEM" or not own:
                raise OptionRefused(
                    f"{PREFIX}{name}: only PEM certificates are supported; use "
                    "client.ssl.ca.location, client.ssl.certificate.location and "
                    "client.ssl.key.location"
                )
            found[own] = value
        elif name not in types:
            raise OptionRefused(
                f"{PREFIX}{name}: is a setting of Java's client without a meaning here; "
                "settings of librdkafka begin with client."
            )
    return found


def _login(text: str) -> dict[str, str]:
    """Return the user and password of a JAAS configuration."""
    told = dict(LOGIN.findall(text))
    if "LoginModule" not in text or set(told) != {"username", "password"}:
        raise OptionRefused(f"{PREFIX}{JAAS}: has no readable user and password")
    return {f"sasl.{name}": re.sub(r"\\(.)", r"\1", value) for name, value in told.items()}
