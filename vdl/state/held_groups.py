"""Groups of partitions by the server that has to keep a replica of them.

Derived from the catalog's groups and moves, and kept up to date with them: what is asked each
second for a server that leaves must not take a walk over all partitions.

Does not depend on what a group is, or on why a server keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ids import GroupId, ServerId
from vdl.state.reassignment import ReplicaInfo


class HeldGroups:
    """Group ids by server."""

    def __init__(self) -> None:
        self._by_server: dict[ServerId, dict[GroupId, None]] = {}
        """Dictionaries take less memory than sets."""

    def __getitem__(self, server_id: ServerId) -> Collection[GroupId]:
        """Return the groups of which a server keeps a replica. Not to be changed."""
        return self._by_server.get(server_id, {}).keys()

    def replace(
        self, group_id: GroupId, before: Iterable[ReplicaInfo], after: Iterable[ReplicaInfo]
    ) -> None:
        """Note that a group has other replicas now."""
        for replica in before:
            self._by_server.get(replica.server_id, {}).pop(group_id, None)
        for replica in after:
            self._by_server.setdefault(replica.server_id, {})[group_id] = None
