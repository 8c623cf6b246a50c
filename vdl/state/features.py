"""Finalised features: levels of Kafka's features that all servers support (KIP-584).

A level determines which commands may be in the logs and what clients may rely on at any server. So
it belongs to the cluster: each server registers the levels that its version supports, and a level
is finalised only if every registered server supports it. From then on a server that does not
support it cannot join.

A new cluster begins with the levels that its initial voters register as their defaults. Later
levels are finalised only on request, because the effects of a level's commands cannot be undone.

Does not depend on the meaning of a level, or on which requests it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from ids import ServerId
from vdl.errors import ErrorCode
from vdl.state.commands import FeatureUpdate

Levels = Mapping[str, tuple[int, int, int]]
"""Feature → (lowest, highest, initial) level of one server: `RegisterServer.features`."""

NOT_FINALISED = 0
"""Level of a feature that must not be used."""

METADATA_VERSION = "metadata.version"
GROUP_VERSION = "group.version"
"""1: groups of the newer protocol (KIP-848)."""
TRANSACTION_VERSION = "transaction.version"
SHARE_VERSION = "share.version"
"""1: share groups (KIP-932)."""

KRAFT_VERSION = "kraft.version"
ELIGIBLE_REPLICAS_VERSION = "eligible.leader.replicas.version"
STREAMS_VERSION = "streams.version"

SUPPORTED: Levels = {
    # Administration has the semantics of Kafka 4.4 (4.4-IV2). There is only this level, so it
    # cannot be upgraded or downgraded.
    METADATA_VERSION: (33, 33, 33),
    GROUP_VERSION: (0, 1, 1),
    # Below 2 clients keep their epoch over transactions (KIP-98). From 2 on each end of a
    # transaction bumps it, and the first batch adds its partition (KIP-890). Servers support both
    # at once: the level only decides which one clients start with.
    TRANSACTION_VERSION: (0, 2, 2),
    SHARE_VERSION: (0, 1, 1),
    # Not available: voters are the catalog's members (KIP-853), committed records are on a
    # majority, for which no other replica can substitute (KIP-966), and there are no streams groups
    # (KIP-1071).
    KRAFT_VERSION: (0, 0, 0),
    ELIGIBLE_REPLICAS_VERSION: (0, 0, 0),
    STREAMS_VERSION: (0, 0, 0),
}
"""Levels that servers of this version support."""


class UpgradeType(IntEnum):
    """Permitted kind of a level change (KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class Features:
    """Finalised levels. `epoch` grows with every change; it is 0 before the first."""

    def __init__(self) -> None:
        self.levels: dict[str, int] = {}
        """Invariant: no level is 0, and every registered server supports each."""
        self.epoch = 0

    def complaint_about(self, supported: Levels) -> str:
        """Return why a server with these levels cannot join; empty if it can."""
        for feature, level in sorted(self.levels.items()):
            low, high, _ = supported.get(feature, (0, 0, 0))
            if not low <= level <= high:
                return (
                    f"the cluster uses level {level} of {feature}, which the server does not "
                    "support"
                )
        return ""

    def begin(self, servers: Iterable[Levels]) -> list[str]:
        """Finalise the initial levels of a new cluster's voters. Return the features' names."""
        assert not self.epoch, self.epoch
        known = list(servers)
        first = {
            feature: min(levels.get(feature, (0, 0, 0))[2] for levels in known)
            for feature in sorted({name for levels in known for name in levels})
        }
        self.levels = {
            feature: level
            for feature, level in first.items()
            if level != NOT_FINALISED
            and all(levels[feature][0] <= level <= levels[feature][1] for levels in known)
        }
        self.epoch = 1
        return list(self.levels)

    def update(
        self,
        updates: list[FeatureUpdate],
        servers: Mapping[ServerId, Levels],
        *,
        validate_only: bool,
    ) -> tuple[ErrorCode, str]:
        """Change all levels, or return why none was changed."""
        for update in updates:
            complaint = self._complaint(update, servers)
            if complaint:
                return (
                    ErrorCode.INVALID_UPDATE_VERSION,
                    f"Invalid update version {update.level} for feature {update.feature}. "
                    f"{complaint}",
                )
        after = {**self.levels, **{update.feature: update.level for update in updates}}
        after = {name: level for name, level in after.items() if level != NOT_FINALISED}
        if not validate_only and after != self.levels:
            self.levels = after
            self.epoch += 1
        return ErrorCode.NONE, ""

    def _complaint(self, update: FeatureUpdate, servers: Mapping[ServerId, Levels]) -> str:
        """Return Kafka's error text for an invalid update; empty if the update is valid."""
        if update.upgrade_type not in frozenset(UpgradeType):
            return "The controller does not support the given upgrade type."
        if update.level < 0:
            return "A feature version cannot be less than 0."
        for server_id, levels in sorted(servers.items()):
            if update.feature not in levels:
                return f"Broker {server_id} does not support this feature."
            low, high, _ = levels[update.feature]
            if not low <= update.level <= high:
                versions = str(low) if low == high else f"{low}-{high}"
                return f"Broker {server_id} only supports versions {versions}"
        if not servers:
            return "No broker is registered."
        present = self.levels.get(update.feature, NOT_FINALISED)
        is_upgrade = update.upgrade_type == UpgradeType.UPGRADE
        if update.level < present and is_upgrade:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to "
                "either safe or unsafe downgrade."
            )
        if update.level > present and not is_upgrade:
            return "Can't downgrade to a newer version."
        return ""
