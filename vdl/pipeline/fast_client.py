"""Whether our own reader can do what settings for librdkafka say, and how it does it.

Those that say who asks and how the connection is secured are understood by both. With any other,
librdkafka reads everything: what it means is only known there.

Must not know: connections, Spark.
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
    """How our own connections are made. `str` of it does not tell the passwords."""

    settings: ClientSettings = field(default_factory=ClientSettings)
    client_id: str = CLIENT_ID


PLAIN_CLIENT = FastClient()


def fast_client(client: Mapping[str, str]) -> FastClient | None:
    """For settings of librdkafka, with their secrets; None where only librdkafka can do what they
    say, or can say what is wrong with them."""
    if not UNDERSTOOD.issuperset(client):
        return None
    try:
        settings = parse_client_settings(client, "client", Path())
    except ClientSettingsError:
        return None
    if settings.protocol.has_login and not any(name in client for name in MECHANISMS):
        return None  # librdkafka's is another one than ours where none is named
    # A folder of certificates is librdkafka's, too.
    if settings.ca is not None and settings.ca.is_dir():
        return None
    return FastClient(settings, client.get(NAME) or CLIENT_ID)
