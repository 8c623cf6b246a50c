"""Settings of a subscription to clients' metrics (KIP-714): metrics, interval, selected clients.

Does not depend on clients or the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from vdl.kafka.configs.topic_configs import ConfigType, InvalidConfig, TopicConfig
from vdl.kafka.telemetry.client_metrics import (
    DEFAULT_INTERVAL_MS,
    INTERVAL_MS,
    MATCH,
    METRICS,
    read_match,
)
from vdl.patterns import BadPattern
from vdl.state.resource_configs import list_parts

KNOWN = (
    TopicConfig(
        INTERVAL_MS,
        ConfigType.INT,
        str(DEFAULT_INTERVAL_MS),
        "Time between two pushes of a client.",
        low=100,
        high=3_600_000,
    ),
    TopicConfig(
        MATCH,
        ConfigType.LIST,
        "",
        "Clients of the subscription: a list of selector=regular expression, all of which "
        "must match. Empty: all clients.",
    ),
    TopicConfig(
        METRICS,
        ConfigType.LIST,
        "",
        "Metrics of the subscription: a list of prefixes of names. *: all metrics.",
    ),
)

BY_NAME: Mapping[str, TopicConfig] = {config.name: config for config in KNOWN}


Refusal = Callable[[str], BadPattern | None]
"""Return the reason why a checked pattern is invalid; None if it is valid."""


def patterns_of(name: str | None, value: str | None) -> Iterable[str]:
    """Yield the patterns in a setting, which must be checked before `check_parts`.

    The setting may be invalid in other ways.
    """
    if name == MATCH and value:
        for part in list_parts(value):
            try:
                yield read_match(part)[1]
            except BadPattern:
                continue


def check_parts(name: str, value: str, refusal: Refusal) -> None:
    """Check the parts of a list in a subscription. Raises InvalidConfig."""
    if name != MATCH:
        return
    for part in list_parts(value):
        try:
            error = refusal(read_match(part)[1])
        except BadPattern as wrong:
            error = wrong
        if error is not None:
            raise InvalidConfig(f"Illegal client matching pattern: {part} ({error})")
