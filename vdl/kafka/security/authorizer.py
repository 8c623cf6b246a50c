"""Permissions of clients: Kafka's StandardAuthorizer over the ACL bindings in the applied catalog.

The rules, in their order (KIP-11, KIP-290):

1. A super user may do everything, independently of the bindings.
2. A binding matches a question if it names the resource, a prefix of its name or all of its type;
   the principal or all (`User:*`); the host or all; the operation or all. Allowing read, write,
   delete or alter implies describe; allowing alter configs implies describe configs. Denying
   implies nothing.
3. A DENY binding overrides every ALLOW binding. If no binding matches, the answer is no.
4. A resource without any bindings is denied, too, unless `allow.everyone.if.no.acl.found` is set.

Each connection caches its last answers. They hold until the bindings or the principal change: the
first question after a command is applied here is decided anew.

Does not depend on requests (`vdl/kafka/permissions/table.py` maps them to the permissions they
need).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from vdl.kafka.security.peer_address import canonical_host
from vdl.kafka.security.principal import ANONYMOUS, USER, Principal
from vdl.state.acls import (
    ANY_NAME,
    CLUSTER_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    Acls,
    ByPrincipal,
)
from vdl.state.commands import AclBinding

EVERYBODY = f"{USER}:*"
KNOWN_MAX = 256
"""Answers that one connection caches."""

_Question = tuple[AclOperation, AclResource, str]

_ALLOWED_BY: dict[int, frozenset[int]] = {
    AclOperation.DESCRIBE: frozenset(
        (
            AclOperation.ALL,
            AclOperation.DESCRIBE,
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.DELETE,
            AclOperation.ALTER,
        )
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset(
        (AclOperation.ALL, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    ),
}
"""Operations of bindings that allow an operation, if not only the operation itself and ALL."""

_SUPPORTED: dict[AclResource, tuple[AclOperation, ...]] = {
    AclResource.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResource.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""Operations of each type of resource, for clients that request their permissions (KIP-430)."""


class Asker(Protocol):
    """A connection, as far as permissions need it."""

    principal: Principal
    peer_host: str
    grants: Grants | None


class Grants:
    """Cached answers of one connection."""

    __slots__ = ("known", "principal", "revision")

    def __init__(self, principal: Principal, revision: int) -> None:
        self.principal = principal
        self.revision = revision
        """Revision of the bindings: see `Acls.revision`."""
        self.known: dict[_Question, bool] = {}


class Authorizer:
    """Authorizer over the bindings of the applied catalog; see the module."""

    def __init__(
        self,
        acls: Callable[[], Acls],
        *,
        super_users: Iterable[Principal] = (),
        allow_if_no_acl: bool = False,
    ) -> None:
        self._acls = acls
        """The bindings in the applied catalog."""
        self._super_users = frozenset(super_users) - {ANONYMOUS}
        self._allow_if_no_acl = allow_if_no_acl
        self.decisions = 0
        """Questions that no connection's cache answered."""
        self.denials = 0
        """Number of decisions that denied."""

    def allows(
        self, asker: Asker, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """Return True if the client may do the operation on the resource of that name."""
        acls = self._acls()
        grants = asker.grants
        if (
            grants is None
            or grants.revision != acls.revision
            or grants.principal is not asker.principal
        ):
            grants = asker.grants = Grants(asker.principal, acls.revision)
        question = operation, resource, name
        known = grants.known.get(question)
        if known is None:
            known = self._decide(acls, asker, operation, resource, name)
            if len(grants.known) >= KNOWN_MAX:
                grants.known.clear()
            grants.known[question] = known
        return known

    def _decide(
        self,
        acls: Acls,
        asker: Asker,
        operation: AclOperation,
        resource: AclResource,
        name: str,
    ) -> bool:
        self.decisions += 1
        if asker.principal in self._super_users:
            return True
        is_allowed, is_listed = False, False
        for by_principal in acls.on(resource, name):
            is_listed = True
            for binding in self._concerning(by_principal, asker):
                if binding.permission == AclPermission.DENY:
                    if binding.operation in (operation, AclOperation.ALL):
                        self.denials += 1
                        return False
                elif _allows(binding, operation):
                    is_allowed = True
        is_allowed = is_allowed or (self._allow_if_no_acl and not is_listed)
        self.denials += not is_allowed
        return is_allowed

    def _concerning(self, by_principal: ByPrincipal, asker: Asker) -> Iterable[AclBinding]:
        """Yield the bindings of a pattern that match the client."""
        for principal in (str(asker.principal), EVERYBODY):
            for binding in by_principal.get(principal, ()):
                if binding.host == ANY_NAME or canonical_host(binding.host) == asker.peer_host:
                    yield binding

    def is_super(self, principal: Principal) -> bool:
        """Return True if the principal may do everything, independently of the bindings."""
        return principal in self._super_users

    @property
    def revision(self) -> int:
        """Revision of the bindings."""
        return self._acls().revision

    def allows_some(self, asker: Asker, operation: AclOperation, resource: AclResource) -> bool:
        """Return True if the client may do the operation on some resource of the type.

        That is so if a binding allows it, and no stronger one denies it for all names of that
        binding (KIP-679).
        """
        if asker.principal in self._super_users:
            return True
        if self._allow_if_no_acl and self.allows(asker, operation, resource, "\0"):
            # No resource has such a name, so only bindings for many names match it.
            return True
        allowed: list[tuple[int, str]] = []
        denied: set[tuple[int, str]] = set()
        for pattern_type, name, by_principal in self._acls().patterns(resource):
            for binding in self._concerning(by_principal, asker):
                if binding.operation not in (operation, AclOperation.ALL):
                    continue
                if binding.permission == AclPermission.ALLOW:
                    allowed.append((pattern_type, name))
                elif pattern_type == AclPattern.LITERAL and name == ANY_NAME:
                    return False
                else:
                    denied.add((pattern_type, name))
        return any(not _is_taken_back(pattern, denied) for pattern in allowed)

    def operations(self, asker: Asker, resource: AclResource, name: str) -> int:
        """Return all operations that the client may do on a resource, as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in _SUPPORTED[resource]
            if self.allows(asker, operation, resource, name)
        )

    def cluster_operations(self, asker: Asker) -> int:
        """Return the client's operations on the cluster; 0 if it may not describe the cluster."""
        if not self.allows(asker, AclOperation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME):
            return 0
        return self.operations(asker, AclResource.CLUSTER, CLUSTER_NAME)


@dataclass(slots=True)
class _Stranger:
    """An `Asker` without a connection."""

    principal: Principal
    peer_host: str
    grants: Grants | None = None


@dataclass(frozen=True, slots=True)
class TopicViewer:
    """A client that may not see every topic, kept longer than its request."""

    principal: Principal
    host: str
    authorizer: Authorizer = field(compare=False)

    @property
    def revision(self) -> int:
        """Revision of the state that determines its answers."""
        return self.authorizer.revision

    def hidden(self, names: Iterable[str]) -> frozenset[str]:
        """Return the topics that it may not describe."""
        asker = _Stranger(self.principal, self.host)
        allows = self.authorizer.allows
        describe, topic = AclOperation.DESCRIBE, AclResource.TOPIC
        return frozenset(name for name in names if not allows(asker, describe, topic, name))


def _allows(binding: AclBinding, operation: AclOperation) -> bool:
    enough = _ALLOWED_BY.get(operation)
    if enough is None:
        return binding.operation in (operation, AclOperation.ALL)
    return binding.operation in enough


def _is_taken_back(pattern: tuple[int, str], denied: set[tuple[int, str]]) -> bool:
    """Return True if a stronger pattern denies all names that a pattern stands for."""
    pattern_type, name = pattern
    if pattern_type == AclPattern.LITERAL:
        if name == ANY_NAME:
            return False
        if pattern in denied:
            return True
    return any((AclPattern.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
