"""Settings of one consumer, share or streams group, under Kafka's names and in its ranges.

They may be set before the group exists, and for a group of any protocol. A classic group uses none
of them.

Does not depend on groups or the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from vdl.kafka.configs.topic_configs import ConfigType, InvalidConfig, Standing, TopicConfig

_HEARTBEAT = "heartbeat.interval.ms"
_SESSION = "session.timeout.ms"
_NO_STREAMS = "Streams groups (KIP-1071) are not supported."


def _whole(name: str, default: int, low: int, high: int, documentation: str) -> TopicConfig:
    return TopicConfig(
        name, ConfigType.INT, str(default), documentation, f"group.{name}", low=low, high=high
    )


def _of_each_kind(kind: str) -> tuple[TopicConfig, ...]:
    return (
        _whole(
            f"{kind}.assignment.interval.ms", 1_000, 0, 15_000,
            "Minimum time between two assignments of the group.",
        ),
        _whole(
            f"{kind}.{_HEARTBEAT}", 5_000, 5_000, 15_000,
            "Time between two heartbeats of a member.",
        ),
        _whole(
            f"{kind}.{_SESSION}", 45_000, 45_000, 60_000,
            "Time without a heartbeat after which a member is removed.",
        ),
    )  # fmt: skip


KNOWN = (
    *_of_each_kind("consumer"),
    *_of_each_kind("share"),
    TopicConfig(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Initial offset of a share group in a partition without one.",
        pattern=re.compile(
            r"latest|earliest|by_duration:P(?=[0-9T])(?:[0-9]{1,9}D)?(?:T(?=[0-9])(?:[0-9]{1,9}H)?"
            r"(?:[0-9]{1,9}M)?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?S)?)?",
            re.IGNORECASE,
        ),
    ),
    _whole(
        "share.delivery.count.limit", 5, 2, 10, (
            "Maximum number of deliveries of a record to a share group."
        )
    ),
    TopicConfig(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "Isolation level of a share group: records of open and aborted transactions are "
        "delivered or not.",
        allowed=("read_committed", "read_uncommitted"),
    ),
    _whole(
        "share.partition.max.record.locks", 2_000, 100, 10_000,
        "Maximum number of acquired records of a partition in a share group.",
    ),
    _whole(
        "share.record.lock.duration.ms", 30_000, 15_000, 60_000,
        "Time for which a member of a share group may hold a record.",
    ),
    TopicConfig(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        "true",
        "True if a member of a share group may extend this time for a record.",
    ),
    *(
        replace(config, standing=Standing.REFUSED, documentation=_NO_STREAMS)
        for config in (
            *_of_each_kind("streams"),
            _whole("streams.initial.rebalance.delay.ms", 3_000, 0, 60_000, _NO_STREAMS),
            _whole("streams.num.standby.replicas", 0, 0, 2, _NO_STREAMS),
        )
    ),
)  # fmt: skip

BY_NAME: Mapping[str, TopicConfig] = {config.name: config for config in KNOWN}


def check_together(configs: Mapping[str, str]) -> None:
    """Check settings of one group against each other. Raises InvalidConfig."""
    for kind in ("consumer", "share", "streams"):
        heartbeat, session = f"{kind}.{_HEARTBEAT}", f"{kind}.{_SESSION}"
        if heartbeat not in configs and session not in configs:
            continue
        heartbeat_ms = int(configs.get(heartbeat, BY_NAME[heartbeat].default))
        if int(configs.get(session, BY_NAME[session].default)) <= heartbeat_ms:
            raise InvalidConfig(f"{session} must be greater than {heartbeat}")
