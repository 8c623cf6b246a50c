"""What a client may do: Kafka's StandardAuthorizer over the bindings in the applied catalog.

The rules, in their order (KIP-11, KIP-290):

1. A super user may do everything, whatever the bindings say.
2. A binding concerns a question if it names the resource, a prefix of its name or all of its type;
   the principal or all (`User:*`); the host or all; the operation or all. Allowing to read, write,
   delete or alter allows to describe; allowing to alter configs allows to describe them. Denying
   implies nothing.
3. One that denies is stronger than any that allow. Where none concerns the question, it is denied.
4. Where a resource has no bindings at all, it is denied too, unless
   `allow.everyone.if.no.acl.found` says otherwise.

Each connection remembers its last answers. They hold until the bindings or the principal change:
the next question after a command is applied here is decided anew.

Must not know: requests (`vdl/kafka/permissions/table.py` says what each needs).
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
"""Answers that one connection remembers."""

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
"""The operations of bindings that allow an operation, where those are not it and ALL."""

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
"""What can be done with a resource, for clients that ask what they may do (KIP-430)."""


class Asker(Protocol):
    """A connection, as far as permission is concerned."""

    principal: Principal
    peer_host: str
    grants: Grants | None


class Grants:
    """What one connection was answered, as long as that holds."""

    __slots__ = ("known", "principal", "revision")

    def __init__(self, principal: Principal, revision: int) -> None:
        self.principal = principal
        self.revision = revision
        """Of the bindings: see `Acls.revision`."""
        self.known: dict[_Question, bool] = {}


class Authorizer:
    """See the module."""

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
        """Questions that were not answered from what a connection remembers."""
        self.denials = 0
        """Of those."""

    def allows(
        self, asker: Asker, operation: AclOperation, resource: AclResource, name: str
    ) -> bool:
        """Whether the client may do this with the resource of that name."""
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
        """The bindings of a pattern that concern the client."""
        for principal in (str(asker.principal), EVERYBODY):
            for binding in by_principal.get(principal, ()):
                if binding.host == ANY_NAME or canonical_host(binding.host) == asker.peer_host:
                    yield binding

    def is_super(self, principal: Principal) -> bool:
        """Whether it may do everything, whatever the bindings say."""
        return principal in self._super_users

    @property
    def revision(self) -> int:
        """Of the bindings."""
        return self._acls().revision

    def allows_some(self, asker: Asker, operation: AclOperation, resource: AclResource) -> bool:
        """Whether there may be a resource of the type with which the client may do this: a binding
        allows it that no other one takes back for all names it stands for (KIP-679)."""
        if asker.principal in self._super_users:
            return True
        if self._allow_if_no_acl and self.allows(asker, operation, resource, "\0"):
            # No resource has such a name: only what stands for many says anything about it.
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
        """All that the client may do with a resource, as a bit field (KIP-430)."""
        return sum(
            1 << operation
            for operation in _SUPPORTED[resource]
            if self.allows(asker, operation, resource, name)
        )

    def cluster_operations(self, asker: Asker) -> int:
        """The same of the cluster; nothing, for who may not describe it."""
        if not self.allows(asker, AclOperation.DESCRIBE, AclResource.CLUSTER, CLUSTER_NAME):
            return 0
        return self.operations(asker, AclResource.CLUSTER, CLUSTER_NAME)


@dataclass(slots=True)
class _Stranger:
    """An asker without a connection."""

    principal: Principal
    peer_host: str
    grants: Grants | None = None


@dataclass(frozen=True, slots=True)
class TopicViewer:
    """Somebody who may not see every topic, beyond the request in which it asked."""

    principal: Principal
    host: str
    authorizer: Authorizer = field(compare=False)

    @property
    def revision(self) -> int:
        """Of what its answers follow from."""
        return self.authorizer.revision

    def hidden(self, names: Iterable[str]) -> frozenset[str]:
        """Those of the topics that it may not describe."""
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
    """Whether for all names that a pattern stands for, a stronger one denies."""
    pattern_type, name = pattern
    if pattern_type == AclPattern.LITERAL:
        if name == ANY_NAME:
            return False
        if pattern in denied:
            return True
    return any((AclPattern.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))
