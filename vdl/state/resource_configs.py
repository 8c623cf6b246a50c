"""Settings of resources other than topics.

These are servers, all servers together, consumer groups, and metrics subscriptions. Each resource
is (Kafka's number of its type, name). A resource without settings is not stored; it is removed with
its last one. All settings are in every snapshot of the catalog, so their total size is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import ConfigChange, ListChange
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

CONFIGS_BYTES_MAX = 4_096
"""Bound on the names and values of one resource's settings; also of a topic's."""
ALL_BYTES_MAX = 1 << 20
"""Bound on the size of all resources, with their names."""
RESOURCE_BYTES = 48
"""Estimated size of a resource without its name and settings."""
KEY_PREFIX = b"x"


class ResourceType(IntEnum):
    """Kafka's numbers of resource types with settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


Resource = tuple[int, str]
"""(type, name)."""


class StoredResource(msgspec.Struct, frozen=True, array_like=True):
    """Settings of one resource as stored; the key is a digest."""

    resource_type: int
    name: str
    configs: dict[str, str]


class ResourceConfigs:
    """All settings of resources other than topics; see the module."""

    def __init__(self) -> None:
        self.revision = 0
        """Number of changes seen by this object. Not part of the state."""
        self._configs: dict[Resource, dict[str, str]] = {}
        self._by_key: dict[bytes, Resource] = {}
        """Stored key → resource. Derived."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._configs)

    def of(self, resource_type: int, name: str) -> Mapping[str, str]:
        """Return the settings that were set for a resource, as text."""
        return self._configs.get((resource_type, name), {})

    def names(self, resource_type: int) -> Iterator[str]:
        """Return the names of a type's resources that have settings, sorted."""
        return iter(sorted(name for kind, name in self._configs if kind == resource_type))

    def alter(self, resource_type: int, change: ConfigChange) -> tuple[ErrorCode, bytes]:
        """Change one resource's settings, if valid.

        Return an error and the key they are stored under.
        """
        resource = (resource_type, change.topic)
        key = digest_key(KEY_PREFIX, *resource)
        before = self._configs.get(resource, {})
        configs = changed_configs(change, before)
        if configs is None or configs_bytes(configs) > CONFIGS_BYTES_MAX:
            return ErrorCode.INVALID_CONFIG, key
        more = _resource_bytes(resource, configs) - _resource_bytes(resource, before)
        if more > 0 and self._bytes + more > ALL_BYTES_MAX:
            return ErrorCode.POLICY_VIOLATION, key
        self._put(key, resource, configs)
        return ErrorCode.NONE, key

    def _put(self, key: bytes, resource: Resource, configs: dict[str, str]) -> None:
        self.revision += 1
        before = self._configs.pop(resource, {})
        self._bytes += _resource_bytes(resource, configs) - _resource_bytes(resource, before)
        if configs:
            self._configs[resource] = configs
            self._by_key[key] = resource
        else:
            self._by_key.pop(key, None)

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """Return the keys of all stored items."""
        return iter(self._by_key)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        resource = self._by_key.get(key)
        if resource is None:
            return None
        return encode_value(StoredResource(*resource, self._configs[resource]))

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self._configs = {}
        self._by_key = {}
        self._bytes = 0
        self.revision += 1
        for value in values:
            stored = decode_value(value, StoredResource)
            resource = (stored.resource_type, stored.name)
            self._put(digest_key(KEY_PREFIX, *resource), resource, stored.configs)


def changed_configs(change: ConfigChange, before: Mapping[str, str]) -> dict[str, str] | None:
    """Return the settings after a change; None if a list setting would get an invalid value."""
    kept = {} if change.replaces else before
    configs = {name: value for name, value in kept.items() if name not in change.unset}
    configs |= change.set
    for one in change.lists:
        value = changed_list(one, kept.get(one.name))
        if value is None:
            return None
        configs[one.name] = value
    return configs


def changed_list(change: ListChange, present: str | None) -> str | None:
    """Return the new text of a list setting; None if it would be invalid."""
    parts = [part for part in (change.default if present is None else present).split(",") if part]
    if change.subtracts:
        parts = [part for part in parts if part not in change.parts]
    else:
        parts += [part for part in change.parts if part not in parts]
    if change.is_open:
        return ",".join(parts)
    allowed = all(part.lower() in change.allowed for part in parts)
    return ",".join(parts) if allowed and (parts or change.may_be_empty) else None


def list_parts(value: str) -> list[str]:
    """Return the parts of a list setting, without surrounding whitespace."""
    return [part.strip() for part in value.split(",") if part.strip()]


def configs_bytes(configs: Mapping[str, str]) -> int:
    """Return the total bytes of names and values."""
    return sum(text_bytes(name) + text_bytes(value) for name, value in configs.items())


def _resource_bytes(resource: Resource, configs: Mapping[str, str]) -> int:
    if not configs:
        return 0
    return RESOURCE_BYTES + text_bytes(resource[1]) + configs_bytes(configs)
