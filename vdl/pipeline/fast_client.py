"""Selection of our own reader or librdkafka, by the settings given for librdkafka.

Both understand settings of identity and connection security. With any other setting librdkafka
reads everything, since only it knows the meaning.

Does not depend on connections or Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vdl.kafka.security.client_settings import (
    KNOWN,
    ClientSettings,
    ClientSettingsError,
    parse_client_settings,
)

CLIENT_ID = "vdl-pipeline"
NAME = "client.id"
MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
UNDERSTOOD = frozenset(name for name in KNOWN if not name.startswith("vdl.")) | {NAME}


@dataclass(frozen=True, slots=True)
class FastClient:
    """Settings of our own connections. Its `str` does not contain the passwords."""

    settings: ClientSettings = field(default_factory=ClientSettings)
    client_id: str = CLIENT_ID


PLAIN_CLIENT = FastClient()


def fast_client(client: Mapping[str, str]) -> FastClient | None:
    """Return our client for settings of librdkafka, with their secrets.

    Return None if only librdkafka can do what they require, or report what is wrong with them.
    """
    if not UNDERSTOOD.issuperset(client):
        return None
    try:
        settings = parse_client_settings(client, "client", Path())
    except ClientSettingsError:
        return None
    if settings.protocol.has_login and not any(name in client for name in MECHANISMS):
        return None  # librdkafka has another default mechanism
    # Only librdkafka supports a folder of certificates.
    if settings.ca is not None and settings.ca.is_dir():
        return None
    return FastClient(settings, client.get(NAME) or CLIENT_ID)
