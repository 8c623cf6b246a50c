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
_NO_STREAMS = "There are no groups of streams (KIP-1071)."


def _whole(name: str, default: int, low: int, high: int, documentation: str) -> TopicConfig:
    return TopicConfig(
        name, ConfigType.INT, str(default), documentation, f"group.{name}", low=low, high=high
    )


def _of_each_kind(kind: str) -> tuple[TopicConfig, ...]:
    return (
        _whole(
            f"{kind}.assignment.interval.ms", 1_000, 0, 15_000,
            "How far apart two computations of an assignment are at least.",
        ),
        _whole(
            f"{kind}.{_HEARTBEAT}", 5_000, 5_000, 15_000,
            "How often a member is to send a heartbeat.",
        ),
        _whole(
            f"{kind}.{_SESSION}", 45_000, 45_000, 60_000,
            "A member that was silent for so long is expelled.",
        ),
    )  # fmt: skip


KNOWN = (
    *_of_each_kind("consumer"),
    *_of_each_kind("share"),
    TopicConfig(
        "share.auto.offset.reset",
        ConfigType.STRING,
        "latest",
        "Where a share group begins in a partition that is new to it.",
        pattern=re.compile(
            r"latest|earliest|by_duration:P(?=[0-9T])(?:[0-9]{1,9}D)?(?:T(?=[0-9])(?:[0-9]{1,9}H)?"
            r"(?:[0-9]{1,9}M)?(?:[0-9]{1,9}(?:\.[0-9]{1,9})?S)?)?",
            re.IGNORECASE,
        ),
    ),
    _whole(
        "share.delivery.count.limit", 5, 2, 10, "How often a record is delivered to a share group."
    ),
    TopicConfig(
        "share.isolation.level",
        ConfigType.STRING,
        "read_uncommitted",
        "Whether a share group is given records of open and aborted transactions.",
        allowed=("read_committed", "read_uncommitted"),
    ),
    _whole(
        "share.partition.max.record.locks", 2_000, 100, 10_000,
        "How many records of a partition may be at a share group's members.",
    ),
    _whole(
        "share.record.lock.duration.ms", 30_000, 15_000, 60_000,
        "How long a member of a share group has for a record.",
    ),
    TopicConfig(
        "share.renew.acknowledge.enable",
        ConfigType.BOOLEAN,
        "true",
        "Whether a member of a share group may ask for more time for a record.",
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
