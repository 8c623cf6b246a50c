"""Access control lists of the cluster (KIP-11, KIP-290).

A binding allows or denies one principal, or all, an operation on the resources of a pattern, from
one host, or all. The bindings form a set: adding an existing one changes nothing. They are in every
snapshot of the catalog, so their total size is bounded.

An index by pattern and principal finds the bindings for one name without a scan (`on`).

Does not depend on requests, or on how decisions are made (`vdl/kafka/security/authorizer.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from vdl.errors import ErrorCode
from vdl.state.commands import AclBinding, AclFilter
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

ALL_BYTES_MAX = 2 << 20
"""Bound on the size of all bindings: some 20,000 of the usual length."""
BINDING_BYTES = 40
"""Estimated size of a binding without its texts."""
TEXT_CHARS_MAX = 1_024
"""Maximum length of a name, a principal or a host."""
KEY_PREFIX = b"a"
ANY_NAME = "*"
"""As a literal name, every resource; as a host, every host."""
CLUSTER_NAME = "kafka-cluster"
"""Name of the only resource of its type."""


class AclResource(IntEnum):
    """Kafka's numbers of resource types. ANY is valid in a filter only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """Kafka's numbers of pattern types. ANY and MATCH are valid in a filter only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers of operations. ANY is valid in a filter only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Kafka's numbers of permissions. ANY is valid in a filter only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_RESOURCES = frozenset(AclResource) - {AclResource.ANY}
_PATTERNS = frozenset((AclPattern.LITERAL, AclPattern.PREFIXED))
_OPERATIONS = frozenset(AclOperation) - {AclOperation.ANY}
_PERMISSIONS = frozenset((AclPermission.DENY, AclPermission.ALLOW))

ByPrincipal = Mapping[str, tuple[AclBinding, ...]]
"""Bindings of one pattern, by principal."""

_Pattern = tuple[int, int, str]
"""(resource type, pattern type, name)."""


def complaint_about(binding: AclBinding) -> str:
    """Return why a binding is invalid; empty if it is valid."""
    if binding.resource_type not in _RESOURCES:
        return f"Invalid resourceType {binding.resource_type}"
    if binding.pattern_type not in _PATTERNS:
        return f"Invalid patternType {binding.pattern_type}"
    if binding.operation not in _OPERATIONS:
        return f"Invalid operation {binding.operation}"
    if binding.permission not in _PERMISSIONS:
        return f"Invalid permissionType {binding.permission}"
    if not binding.name:
        return "Resource name should not be empty"
    if binding.resource_type == AclResource.CLUSTER and binding.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    kind, separator, name = binding.principal.partition(":")
    if not (kind and separator and name):
        return "a principal has the form Type:name"
    if not binding.host:
        return "a host must not be empty"
    texts = (binding.name, binding.principal, binding.host)
    if max(map(len, texts)) > TEXT_CHARS_MAX:
        return f"a name, a principal or a host has {TEXT_CHARS_MAX} characters at most"
    return ""


def filter_complaint(wanted: AclFilter) -> str:
    """Return why a filter is invalid; empty if it is valid."""
    if wanted.resource_type not in frozenset(AclResource) or wanted.pattern_type not in frozenset(
        AclPattern
    ):
        return "Unknown patternFilter."
    if wanted.operation not in frozenset(AclOperation) or wanted.permission not in frozenset(
        AclPermission
    ):
        return "Unknown entryFilter."
    return ""


def is_scan(wanted: AclFilter) -> bool:
    """Return True if a filter must be compared with all bindings."""
    return (
        wanted.resource_type == AclResource.ANY
        or wanted.name is None
        or wanted.pattern_type not in _PATTERNS
    )


class Acls:
    """All bindings of the cluster; see the module."""

    def __init__(self) -> None:
        self.revision = 0
        """Number of changes seen by this object. Not part of the state."""
        self._keys: dict[AclBinding, bytes] = {}
        self._by_key: dict[bytes, AclBinding] = {}
        """Stored key → binding. Derived, as are the fields below."""
        self._index: dict[_Pattern, dict[str, tuple[AclBinding, ...]]] = {}
        self._lengths: dict[int, Counter[int]] = {}
        """Resource type → lengths of its prefixes, with the number of patterns of each length."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    # --- queries ---------------------------------------------------------------------------
    def on(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        """Yield the bindings of each pattern that a resource matches."""
        index = self._index
        for pattern in (
            (resource_type, AclPattern.LITERAL, name),
            (resource_type, AclPattern.LITERAL, ANY_NAME),
        ):
            found = index.get(pattern)
            if found is not None:
                yield found
            if name == ANY_NAME:
                break
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                found = index.get((resource_type, AclPattern.PREFIXED, name[:length]))
                if found is not None:
                    yield found

    def patterns(self, resource_type: int) -> Iterator[tuple[int, str, ByPrincipal]]:
        """Yield (pattern type, name, bindings) of all patterns of a resource type.

        The cost is a scan of the index. Use: queries without a resource name.
        """
        for (kind, pattern_type, name), found in self._index.items():
            if kind == resource_type:
                yield pattern_type, name, found

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """Return the bindings that a filter selects, in order of their stored keys."""
        found: Iterable[AclBinding] = self._keys
        if not is_scan(wanted):
            assert wanted.name is not None, "a filter without a name is a scan"
            pattern = wanted.resource_type, wanted.pattern_type, wanted.name
            found = [one for some in self._index.get(pattern, {}).values() for one in some]
        return sorted((one for one in found if _selects(wanted, one)), key=self._keys.__getitem__)

    # --- changes ---------------------------------------------------------------------------
    def add(self, binding: AclBinding) -> tuple[ErrorCode, bytes]:
        """Add a binding if it is not present. Return the key it is stored under."""
        known = self._keys.get(binding)
        if known is not None:
            return ErrorCode.NONE, known
        if complaint_about(binding):
            return ErrorCode.INVALID_REQUEST, b""
        if self.bytes + _binding_bytes(binding) > ALL_BYTES_MAX:
            return ErrorCode.POLICY_VIOLATION, b""
        return ErrorCode.NONE, self._put(binding)

    def _put(self, binding: AclBinding) -> bytes:
        key = self._keys[binding] = digest_key(KEY_PREFIX, *_identity(binding))
        self._by_key[key] = binding
        self.revision += 1
        self.bytes += _binding_bytes(binding)
        pattern = _pattern(binding)
        found = self._index.get(pattern)
        if found is None:
            found = self._index[pattern] = {}
            if binding.pattern_type == AclPattern.PREFIXED:
                lengths = self._lengths.setdefault(binding.resource_type, Counter())
                lengths[len(binding.name)] += 1
        found[binding.principal] = (*found.get(binding.principal, ()), binding)
        return key

    def remove(self, binding: AclBinding) -> bytes:
        """Remove an existing binding. Return the key it was stored under."""
        key = self._keys.pop(binding)
        del self._by_key[key]
        self.revision += 1
        self.bytes -= _binding_bytes(binding)
        pattern = _pattern(binding)
        found = self._index[pattern]
        left = tuple(one for one in found[binding.principal] if one != binding)
        if left:
            found[binding.principal] = left
            return key
        del found[binding.principal]
        if not found:
            del self._index[pattern]
            if binding.pattern_type == AclPattern.PREFIXED:
                lengths = self._lengths[binding.resource_type]
                lengths[len(binding.name)] -= 1
                if not lengths[len(binding.name)]:
                    del lengths[len(binding.name)]
        return key

    # --- storing ---------------------------------------------------------------------------
    def keys(self) -> Iterator[bytes]:
        """Return the keys of all stored items."""
        return iter(self._by_key)

    def stored(self, key: bytes) -> bytes | None:
        """Return the value under a key; None if there is none."""
        binding = self._by_key.get(key)
        return None if binding is None else encode_value(binding)

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raise msgspec.DecodeError for a value that was never stored."""
        self._keys.clear()
        self._by_key.clear()
        self._index.clear()
        self._lengths.clear()
        self.bytes = 0
        self.revision += 1
        for value in values:
            self._put(decode_value(value, AclBinding))


def _identity(binding: AclBinding) -> tuple[int, str, int, str, str, int, int]:
    return (
        binding.resource_type,
        binding.name,
        binding.pattern_type,
        binding.principal,
        binding.host,
        binding.operation,
        binding.permission,
    )


def _pattern(binding: AclBinding) -> _Pattern:
    return binding.resource_type, binding.pattern_type, binding.name


def _binding_bytes(binding: AclBinding) -> int:
    texts = (binding.name, binding.principal, binding.host)
    return BINDING_BYTES + sum(map(text_bytes, texts))


def _selects(wanted: AclFilter, binding: AclBinding) -> bool:
    """Return True if a filter selects a binding.

    KIP-290: MATCH selects every pattern that a resource of that name matches.
    """
    if wanted.resource_type not in (AclResource.ANY, binding.resource_type):
        return False
    if wanted.principal not in (None, binding.principal) or wanted.host not in (None, binding.host):
        return False
    if wanted.operation not in (AclOperation.ANY, binding.operation):
        return False
    if wanted.permission not in (AclPermission.ANY, binding.permission):
        return False
    pattern_type, name = wanted.pattern_type, wanted.name
    if pattern_type == AclPattern.MATCH:
        if name is None or name == binding.name:
            return True
        if binding.pattern_type == AclPattern.LITERAL:
            return binding.name == ANY_NAME
        return name.startswith(binding.name)
    if pattern_type not in (AclPattern.ANY, binding.pattern_type):
        return False
    return name in (None, binding.name)
