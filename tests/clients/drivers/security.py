"""Security settings of the drivers' clients, from JSON in VDL_TEST_SECURITY.

```
{"protocol": "SASL_SSL", "ca": FILE, "certificate": FILE, "key": FILE,
 "mechanism": "SCRAM-SHA-512", "user": NAME, "password": TEXT, "token": FILE}
```
Everything but the protocol is optional. A token's file is read for each login. With "tokenauth"
the user and the password are those of a delegation token, for clients that support them. Each
client's settings use its own names.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECURITY: dict[str, str] = json.loads(os.environ.get("VDL_TEST_SECURITY", "{}"))
TOKEN_SECONDS = 3_600
"""Token lifetime reported to librdkafka, which requires one; the server checks the real one."""

_LIBRDKAFKA = {
    "protocol": "security.protocol",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "mechanism": "sasl.mechanism",
    "user": "sasl.username",
    "password": "sasl.password",
}
_KAFKA_PYTHON = {
    "protocol": "security_protocol",
    "ca": "ssl_cafile",
    "certificate": "ssl_certfile",
    "key": "ssl_keyfile",
    "mechanism": "sasl_mechanism",
    "user": "sasl_plain_username",
    "password": "sasl_plain_password",
}


def librdkafka() -> dict[str, Any]:
    """Return the settings of confluent-kafka."""
    settings: dict[str, Any] = {
        name: SECURITY[field] for field, name in _LIBRDKAFKA.items() if field in SECURITY
    }
    if "token" in SECURITY:
        settings["oauth_cb"] = _fresh_token
    return settings


def _fresh_token(config: str) -> tuple[str, float]:
    del config
    return _token(), time.time() + TOKEN_SECONDS


def kafka_python() -> dict[str, Any]:
    """Return the arguments of kafka-python's clients."""
    settings: dict[str, Any] = {
        name: SECURITY[field] for field, name in _KAFKA_PYTHON.items() if field in SECURITY
    }
    if "token" in SECURITY:
        settings["sasl_oauth_token_provider"] = _provider(_token)
    return settings


def _provider(read: Callable[[], str]) -> object:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # the library has no types
        def token(self) -> str:
            return read()

    return Provider()


def _token() -> str:
    return Path(SECURITY["token"]).read_text(encoding="ascii")
