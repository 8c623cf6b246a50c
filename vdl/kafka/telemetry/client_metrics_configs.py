"""The settings of a subscription to clients' metrics (KIP-714): which, how often, of which clients.

Must not know: clients, the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping

from vdl.kafka.configs.topic_configs import ConfigType, InvalidConfig, TopicConfig
from vdl.kafka.telemetry.client_metrics import (
    DEFAULT_INTERVAL_MS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    read_match,
)
from vdl.linear_regex import BadPattern
from vdl.state.resource_configs import list_parts

KNOWN = (
    TopicConfig(
        INTERVAL_MS,
        ConfigType.INT,
        str(DEFAULT_INTERVAL_MS),
        "How often clients push the metrics of the subscription.",
        low=100,
        high=3_600_000,
    ),
    TopicConfig(
        MATCH,
        ConfigType.LIST,
        "",
        "Which clients: a list of selector=regular expression, all of which must match the whole "
        "of what the client says; none: all clients.",
    ),
    TopicConfig(
        METRICS,
        ConfigType.LIST,
        "",
        "Which metrics: a list of prefixes of their names, * for all.",
    ),
)

BY_NAME: Mapping[str, TopicConfig] = {config.name: config for config in KNOWN}


def check_parts(name: str, value: str) -> None:
    """What is in a list of a subscription. Raises InvalidConfig."""
    if name == MATCH:
        for part in list_parts(value):
            try:
                read_match(part)
            except BadPattern as error:
                raise InvalidConfig(f"Illegal client matching pattern: {part} ({error})") from None
