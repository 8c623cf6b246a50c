"""Client quotas of users, client ids and addresses (KIP-13, KIP-546).

An entity is a user, a client id, or both; either may be the default for all of its kind that have
no quotas of their own (a name of None). Or it is an address, or the default for all addresses. An
entity without quotas is not stored. All quotas are in every snapshot of the catalog, so their total
size is bounded.

Does not depend on measured usage, or on how quotas are enforced (`vdl.kafka.limits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from math import isfinite

import msgspec

from vdl.errors import ErrorCode
from vdl.state.commands import QuotaChange
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

ALL_BYTES_MAX = 1 << 20
"""Bound on the size of all entities: some 8,000 with two quotas each."""
ENTITY_BYTES = 64
"""Estimated size of an entity without its names."""
VALUE_BYTES = 32
"""Estimated size of one quota."""
NAME_CHARS_MAX = 1_024
KEY_PREFIX = b"q"

USER, CLIENT_ID, IP = "user", "client-id", "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
MUTATION_RATE = "controller_mutation_rate"
CONNECTION_RATE = "connection_creation_rate"

_OF_CLIENTS = {
    PRODUCER_BYTE_RATE: (1 << 63) - 1,
    CONSUMER_BYTE_RATE: (1 << 63) - 1,
    REQUEST_PERCENTAGE: 0,
    MUTATION_RATE: 0,
}
"""Quota → largest value, which must be a whole number; 0 for any number."""
_OF_ADDRESSES = {CONNECTION_RATE: (1 << 31) - 1}

Entity = tuple[tuple[str, str | None], ...]
"""(kind, name or None for the default), sorted by kind."""


class StoredQuotas(msgspec.Struct, frozen=True, array_like=True):
    """Quotas of one entity as stored; the key is a digest."""

    entity: list[tuple[str, str | None]]
    values: dict[str, float]


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity of these parts, regardless of their order."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def entity_complaint(parts: list[tuple[str, str | None]]) -> str:
    """Return why an entity is invalid; empty if it is valid."""
    kinds = [kind for kind, _ in parts]
    if not kinds:
        return "Invalid empty client quota entity"
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            return f"Unhandled client quota entity type: {kind[:100]}"
        if name == "":
            return f"Empty {kind} not supported"
        if name is not None and len(name) > NAME_CHARS_MAX:
            return f"a name has at most {NAME_CHARS_MAX} characters"
        if kind == IP and name is not None and not _is_address(name):
            return f"{name} is not a valid IP"
    if len(set(kinds)) < len(kinds):
        return "Invalid client quota entity, duplicate entity entry"
    if IP in kinds and len(kinds) > 1:
        return (
            "Invalid quota entity combination, IP entity should not be combined with User or "
            "ClientId"
        )
    return ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def value_complaint(entity: Entity, key: str, value: float) -> str:
    """Return why an entity cannot have this quota; empty if it can."""
    known = _OF_ADDRESSES if entity[0][0] == IP else _OF_CLIENTS
    if key not in known:
        return f"Invalid configuration key {key[:100]}"
    if not (value > 0 and isfinite(value)):
        return f"Quota {key} must be greater than 0"
    limit = known[key]
    if limit and value > limit:
        return f"Proposed value for {key} is too large"
    if limit and value != int(value):
        return f"{key} cannot be a fractional value."
    return ""


class Quotas:
    """All client quotas of the cluster; see the module."""

    def __init__(self) -> None:
        self.revision = 0
        """Number of changes seen by this object. Not part of the state."""
        self.entities: dict[Entity, dict[str, float]] = {}
        """Read-only to other modules."""
        self._by_key: dict[bytes, Entity] = {}
        """Stored key → entity. Derived, as are the fields below."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.entities)

    def of(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas set for an entity."""
        return self.entities.get(entity, {})

    def alter(self, change: QuotaChange) -> tuple[ErrorCode, bytes]:
        """Change one entity's quotas, all or none.

        Return an error and the key they are stored under.
        """
        if entity_complaint(change.entity):
            return ErrorCode.INVALID_REQUEST, b""
        entity = entity_of(change.entity)
        if any(value_complaint(entity, key, value) for key, value in change.set.items()):
            return ErrorCode.INVALID_REQUEST, b""
        before = self.entities.get(entity, {})
        values = {key: value for key, value in before.items() if key not in change.unset}
        # Floats, as after loading: equal states must have equal bytes.
        values |= {key: float(value) for key, value in change.set.items()}
        more = _entity_bytes(entity, values) - _entity_bytes(entity, before)
        if more > 0 and self.bytes + more > ALL_BYTES_MAX:
            return ErrorCode.POLICY_VIOLATION, b""
        key = _key(entity)
        self._put(key, entity, values)
        return ErrorCode.NONE, key

    def _put(self, key: bytes, entity: Entity, values: dict[str, float]) -> None:
        self.revision += 1
        before = self.entities.pop(entity, {})
        self.bytes += _entity_bytes(entity, values) - _entity_bytes(entity, before)
        if values:
            self.entities[entity] = values
            self._by_key[key] = entity
        else:
            self._by_key.pop(key, None)

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """Return the keys of all stored items."""
        return iter(self._by_key)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        entity = self._by_key.get(key)
        if entity is None:
            return None
        return encode_value(StoredQuotas(list(entity), self.entities[entity]))

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self.entities.clear()
        self._by_key.clear()
        self.bytes = 0
        self.revision += 1
        for value in values:
            stored = decode_value(value, StoredQuotas)
            entity = entity_of(stored.entity)
            self._put(_key(entity), entity, stored.values)


def _key(entity: Entity) -> bytes:
    names = [part for kind, name in entity for part in (kind, name is None, name or "")]
    return digest_key(KEY_PREFIX, *names)


def _entity_bytes(entity: Entity, values: Mapping[str, float]) -> int:
    if not values:
        return 0
    names = sum(text_bytes(name or "") for _, name in entity)
    return ENTITY_BYTES + names + VALUE_BYTES * len(values)
