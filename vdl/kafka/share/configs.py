"""Settings of a share group, read from `share.*` of its GROUP resource in the catalog.

Does not depend on share-partitions or requests.
"""

from __future__ import annotations

import re

from vdl.clock import MS
from vdl.kafka.configs.group_configs import BY_NAME
from vdl.kafka.share.group_settings import EARLIEST, LATEST, GroupSettings
from vdl.kafka.share.share_partition import Limits
from vdl.state.catalog import Catalog
from vdl.state.resource_configs import ResourceType

_DURATION = re.compile(
    r"by_duration:P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)


def group_settings(catalog: Catalog, group_id: str) -> GroupSettings:
    """Return the present settings of a group; the defaults, where it has none."""
    configs = catalog.resources.of(ResourceType.GROUP, group_id)

    def text(name: str) -> str:
        return configs.get(name, BY_NAME[name].default)

    reset = text("share.auto.offset.reset").lower()
    return GroupSettings(
        Limits(
            locks_max=int(text("share.partition.max.record.locks")),
            deliveries_max=int(text("share.delivery.count.limit")),
            lock_ns=int(text("share.record.lock.duration.ms")) * MS,
        ),
        reset=reset if reset in (EARLIEST, LATEST) else "",
        reset_ms=duration_ms(reset),
        is_read_committed=text("share.isolation.level").lower() == "read_committed",
        may_renew=text("share.renew.acknowledge.enable").lower() == "true",
    )


def duration_ms(text: str) -> int:
    """Return the milliseconds of `by_duration:` and an ISO 8601 duration; 0 for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return int((((days * 24 + hours) * 60 + minutes) * 60 + float(match[4] or 0)) * 1_000)
