"""Security settings of a job's clients, and the secrets in them.

Settings are librdkafka's, for both kinds of source; for the official connector, which uses Java's
client, they are translated. A job file, which is stored, sent and shown, contains no secrets: it
refers to them as `env:NAME` or `file:PATH`, and they are looked up when a client is created.

Does not depend on Spark or on client libraries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from vdl.pipeline.errors import PipelineError

SECRET = re.compile(r"(?i)password|secret|jaas|(^|\.)key\.pem$")
PLACE = re.compile(r"(env|file):(.+)", re.DOTALL)
LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
SAME = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "client.id": "client.id",
    "client.rack": "client.rack",
    "ssl.key.password": "ssl.key.password",
}
"""librdkafka's name → Java's, for settings with the same meaning."""
FILES = {
    "ssl.certificate.location": "ssl.keystore.certificate.chain",
    "ssl.key.location": "ssl.keystore.key",
    "ssl.ca.location": "ssl.truststore.certificates",
}
"""Settings that librdkafka reads from PEM files and Java takes as values."""
TEXTS = {
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.key.pem": "ssl.keystore.key",
    "ssl.ca.pem": "ssl.truststore.certificates",
}
HOST_CHECK = "ssl.endpoint.identification.algorithm"
USER, PASSWORD = "sasl.username", "sasl.password"
KNOWN = frozenset({*SAME, *FILES, *TEXTS, HOST_CHECK, USER, PASSWORD})


class SecretMissing(PipelineError):
    """There is no secret at the place that the job file names."""


def exposed(settings: Mapping[str, str]) -> list[str]:
    """Return the names of settings that contain a secret themselves."""
    return [
        name for name, value in settings.items() if SECRET.search(name) and not PLACE.match(value)
    ]


def resolved(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with their secrets. Raises SecretMissing."""
    return {
        name: looked_up(name, value) if SECRET.search(name) else value
        for name, value in settings.items()
    }


def looked_up(name: str, value: str) -> str:
    """Return the secret at a place, or a value that names no place as it is.

    Raises SecretMissing.
    """
    found = PLACE.match(value)
    if found is None:
        return value
    kind, where = found.groups()
    if kind == "env":
        if where not in os.environ:
            raise SecretMissing(f"{name}: the environment has no variable {where}")
        return os.environ[where]
    try:
        return Path(where).read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        raise SecretMissing(f"{name}: {where}: {error.strerror}") from error


def java_settings(client: Mapping[str, str]) -> dict[str, str]:
    """Translate for the official connector, whose names begin with `kafka.`.

    `client`: settings among KNOWN, with their secrets. Raises SecretMissing if a file cannot be
    read.
    """
    told = {SAME[name]: value for name, value in client.items() if name in SAME}
    told |= {TEXTS[name]: value for name, value in client.items() if name in TEXTS}
    for name, java in FILES.items():
        if name in client:
            told[java] = looked_up(name, f"file:{client[name]}")
    if "ssl.keystore.key" in told or "ssl.keystore.certificate.chain" in told:
        told["ssl.keystore.type"] = "PEM"
    if "ssl.truststore.certificates" in told:
        told["ssl.truststore.type"] = "PEM"
    if HOST_CHECK in client:
        told[HOST_CHECK] = "" if client[HOST_CHECK] == "none" else client[HOST_CHECK]
    if USER in client:
        login = LOGIN.get(told.get("sasl.mechanism", "").upper(), LOGIN["PLAIN"])
        user, password = (_quoted(client.get(name, "")) for name in (USER, PASSWORD))
        told["sasl.jaas.config"] = f"{login} required username={user} password={password};"
    return {f"kafka.{name}": value for name, value in told.items()}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
