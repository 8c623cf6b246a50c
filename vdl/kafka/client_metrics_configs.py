"""The settings of a subscription to clients' metrics (KIP-714): which, how often, of which clients.

Must not know: clients, the catalog.
"""

from __future__ import annotations

from collections.abc import Mapping

from vdl.kafka.linear_regex import BadPattern, compile_pattern
from vdl.kafka.topic_configs import ConfigType, InvalidConfig, TopicConfig, list_parts

METRICS = "metrics"
INTERVAL_MS = "interval.ms"
MATCH = "match"
DEFAULT_INTERVAL_MS = 300_000

SELECTORS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What a subscription may choose its clients by."""

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


def match_pattern(part: str) -> tuple[str, str]:
    """Selector and regular expression of one part of `match`. Raises InvalidConfig."""
    selector, equals, pattern = part.partition("=")
    selector, pattern = selector.strip(), pattern.strip()
    if not equals or selector not in SELECTORS or not pattern:
        raise InvalidConfig(f"Illegal client matching pattern: {part}")
    return selector, pattern


def check_parts(name: str, value: str) -> None:
    """What is in a list of a subscription. Raises InvalidConfig."""
    if name != MATCH:
        return
    for part in list_parts(value):
        selector, pattern = match_pattern(part)
        try:
            compile_pattern(pattern)
        except BadPattern as error:
            raise InvalidConfig(f"{selector}: {error}") from None
