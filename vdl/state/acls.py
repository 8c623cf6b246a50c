"""Who may do what: the bindings of the cluster's access control lists (KIP-11, KIP-290).

A binding allows or denies one principal, or all, an operation on the resources of a pattern, from
one host, or all. A set of them: one that is there already is not added again. They are in every
snapshot of the catalog, so they are bounded as a whole.

Beside the set there is an index by pattern and principal: what concerns one name is found without
a look at the rest (`on`).

Must not know: who asks, what a decision follows from (`vdl/kafka/security/authorizer.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from vdl.errors import ErrorCode
from vdl.state.commands import AclBinding, AclFilter
from vdl.state.table import decode_value, digest_key, encode_value, text_bytes

ALL_BYTES_MAX = 2 << 20
"""Of all bindings: some 20,000 of the usual length."""
BINDING_BYTES = 40
"""What a binding takes besides its texts."""
TEXT_CHARS_MAX = 1_024
"""Of a name, a principal or a host."""
KEY_PREFIX = b"a"
ANY_NAME = "*"
"""As a literal name, of every resource; as a host, of every host."""
CLUSTER_NAME = "kafka-cluster"
"""The one resource of its type."""


class AclResource(IntEnum):
    """Kafka's numbers of what is protected; 1 stands for any in a filter."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """What a name stands for; 1 and 2 in a filter only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers of what is done; 1 in a filter only."""

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
    """1 in a filter only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_RESOURCES = frozenset(AclResource) - {AclResource.ANY}
_PATTERNS = frozenset((AclPattern.LITERAL, AclPattern.PREFIXED))
_OPERATIONS = frozenset(AclOperation) - {AclOperation.ANY}
_PERMISSIONS = frozenset((AclPermission.DENY, AclPermission.ALLOW))

ByPrincipal = Mapping[str, tuple[AclBinding, ...]]
"""The bindings of one pattern, by principal."""

_Pattern = tuple[int, int, str]
"""(type of resource, type of pattern, name)."""


def complaint_about(binding: AclBinding) -> str:
    """Why there can be no such binding; empty if there can."""
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
    """Why a filter makes no sense; empty if it does."""
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
    """Whether all bindings have to be looked at for a filter."""
    return (
        wanted.resource_type == AclResource.ANY
        or wanted.name is None
        or wanted.pattern_type not in _PATTERNS
    )


class Acls:
    """See the module."""

    def __init__(self) -> None:
        self.revision = 0
        """How often something changed in this object's life: not part of the state."""
        self._keys: dict[AclBinding, bytes] = {}
        self._by_key: dict[bytes, AclBinding] = {}
        """Stored key → binding. Derived, as all below."""
        self._index: dict[_Pattern, dict[str, tuple[AclBinding, ...]]] = {}
        self._lengths: dict[int, Counter[int]] = {}
        """Type of resource → lengths of its prefixes, and how many patterns have each."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    # --- asking ----------------------------------------------------------------------------
    def on(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        """The bindings of each pattern that a resource matches."""
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
        """(type of pattern, name, bindings) of all patterns of a type of resource. Work: for
        questions that concern no one name."""
        for (kind, pattern_type, name), found in self._index.items():
            if kind == resource_type:
                yield pattern_type, name, found

    def matching(self, wanted: AclFilter) -> list[AclBinding]:
        """The bindings that a filter selects, in order of their stored keys."""
        found: Iterable[AclBinding] = self._keys
        if not is_scan(wanted):
            assert wanted.name is not None, "a scan otherwise"
            pattern = wanted.resource_type, wanted.pattern_type, wanted.name
            found = [one for some in self._index.get(pattern, {}).values() for one in some]
        return sorted((one for one in found if _selects(wanted, one)), key=self._keys.__getitem__)

    # --- changing --------------------------------------------------------------------------
    def add(self, binding: AclBinding) -> tuple[ErrorCode, bytes]:
        """Add one, if it is not there; and the key under which it is stored."""
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
        """Remove one that is there; the key under which it was stored."""
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
        """The keys of all that is stored."""
        return iter(self._by_key)

    def stored(self, key: bytes) -> bytes | None:
        """The value under a key; None when there is none."""
        binding = self._by_key.get(key)
        return None if binding is None else encode_value(binding)

    def load(self, values: list[bytes]) -> None:
        """Replace everything. Raises msgspec.DecodeError for what was never stored."""
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
    """KIP-290's rules: MATCH selects every pattern that a resource of that name matches."""
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
