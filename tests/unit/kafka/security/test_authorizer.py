"""Authorization decisions: Kafka's rules, a reference model, and the cache of a connection."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from vdl.kafka.security.authorizer import KNOWN_MAX, Authorizer, Grants
from vdl.kafka.security.principal import ANONYMOUS, Principal
from vdl.state.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    Acls,
)
from vdl.state.commands import AclBinding

ALICE, BOB = Principal("alice"), Principal("bob")
TOPIC, GROUP, CLUSTER = AclResource.TOPIC, AclResource.GROUP, AclResource.CLUSTER
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
LITERAL, PREFIXED = AclPattern.LITERAL, AclPattern.PREFIXED


@dataclass
class Asker:
    principal: Principal = ALICE
    peer_host: str = "10.0.0.1"
    grants: Grants | None = None


def bind(
    acls: Acls,
    operation: AclOperation = READ,
    name: str = "t",
    who: str = "User:alice",
    *,
    permission: AclPermission = ALLOW,
    pattern: AclPattern = LITERAL,
    resource: AclResource = TOPIC,
    host: str = "*",
) -> AclBinding:
    one = AclBinding(resource, name, pattern, who, host, operation, permission)
    acls.add(one)
    return one


def authorizer(acls: Acls, *super_users: Principal, open_: bool = False) -> Authorizer:
    return Authorizer(lambda: acls, super_users=super_users, allow_if_no_acl=open_)


def test_without_a_binding_nothing_is_allowed_to_anybody_but_super_users() -> None:
    """Default deny; a super user is not bound by denials."""
    acls = Acls()
    bind(acls, AclOperation.ALL, "*", "User:*", permission=DENY)
    judge = authorizer(acls, BOB)
    assert not judge.allows(Asker(), READ, TOPIC, "t")
    assert judge.allows(Asker(BOB), READ, TOPIC, "t")
    assert not judge.allows(Asker(Principal("bob", "Group")), READ, TOPIC, "t")


def test_anonymous_is_never_a_super_user() -> None:
    """CVE-2024-32114 (ActiveMQ): an unauthenticated client has no identity, with any settings."""
    assert not authorizer(Acls(), ANONYMOUS).allows(Asker(ANONYMOUS), READ, TOPIC, "t")


def test_denial_is_stronger_than_any_permission() -> None:
    """Literal, prefixed, by wildcard, for everybody: in any order of creation."""
    for pattern, name in ((LITERAL, "t"), (PREFIXED, "t"), (LITERAL, "*")):
        for who in ("User:alice", "User:*"):
            acls = Acls()
            bind(acls, READ, "t")
            bind(acls, READ, name, who, permission=DENY, pattern=pattern)
            bind(acls, AclOperation.ALL, "*", "User:*")
            assert not authorizer(acls).allows(Asker(), READ, TOPIC, "t"), (pattern, name, who)


def test_host_of_a_binding_is_the_clients_address() -> None:
    """The binding does not apply to other addresses."""
    acls = Acls()
    bind(acls, host="10.0.0.2")
    assert not authorizer(acls).allows(Asker(), READ, TOPIC, "t")
    assert authorizer(acls).allows(Asker(peer_host="10.0.0.2"), READ, TOPIC, "t")


@pytest.mark.parametrize("operation", list(AclOperation)[2:])
def test_reading_writing_deleting_and_altering_imply_describing(operation: AclOperation) -> None:
    """Only allowing them implies it: denying one of them denies nothing else."""
    acls = Acls()
    bind(acls, operation)
    judge = authorizer(acls)
    implies = {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE}
    assert judge.allows(Asker(), DESCRIBE, TOPIC, "t") is (operation in implies)
    configs = {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}
    may = judge.allows(Asker(), AclOperation.DESCRIBE_CONFIGS, TOPIC, "t")
    assert may is (operation in configs)
    denied = Acls()
    bind(denied, AclOperation.ALL)
    bind(denied, operation, permission=DENY)
    may = authorizer(denied).allows(Asker(), DESCRIBE, TOPIC, "t")
    assert may is (operation is not DESCRIBE)


def test_prefix_matches_names_that_begin_with_it_and_a_name_itself_only() -> None:
    """KIP-290; the wildcard is a literal name, and a prefix "*" is no wildcard."""
    acls = Acls()
    bind(acls, name="or", pattern=PREFIXED)
    bind(acls, name="exact")
    bind(acls, name="*", pattern=PREFIXED, who="User:bob")
    judge = authorizer(acls)
    allowed = [
        name for name in ("or", "orders", "o", "Orders", "exact", "exactly") if
        judge.allows(Asker(), READ, TOPIC, name)
    ]  # fmt: skip
    assert allowed == ["or", "orders", "exact"]
    assert not judge.allows(Asker(BOB), READ, TOPIC, "orders")
    assert not judge.allows(Asker(), READ, GROUP, "orders")


def test_resource_without_bindings_is_open_where_that_is_said() -> None:
    """`allow.everyone.if.no.acl.found`: any binding of the resource closes it to all others."""
    acls = Acls()
    judge = authorizer(acls, open_=True)
    assert judge.allows(Asker(), WRITE, TOPIC, "t")
    bind(acls, READ, "t", "User:bob")
    assert not judge.allows(Asker(), WRITE, TOPIC, "t")
    assert not judge.allows(Asker(BOB), WRITE, TOPIC, "t")
    assert judge.allows(Asker(), WRITE, TOPIC, "other")
    bind(acls, READ, "o", "User:bob", pattern=PREFIXED)
    assert not judge.allows(Asker(), WRITE, TOPIC, "other")


def test_answers_are_remembered_until_bindings_or_the_principal_change() -> None:
    """The next check after a change is decided anew."""
    acls = Acls()
    judge, asker = authorizer(acls), Asker()
    one = bind(acls)
    for _ in range(3):
        assert judge.allows(asker, READ, TOPIC, "t")
    assert judge.decisions == 1
    acls.remove(one)
    assert not judge.allows(asker, READ, TOPIC, "t")
    bind(acls)
    assert judge.allows(asker, READ, TOPIC, "t")
    asker.principal = BOB
    assert not judge.allows(asker, READ, TOPIC, "t"), "what alice was told is not bob's"
    acls.load([])
    asker.principal = ALICE
    assert not judge.allows(asker, READ, TOPIC, "t"), "of a snapshot as well"


def test_what_a_connection_remembers_is_bounded() -> None:
    """Holds for any number of names that it uses."""
    acls = Acls()
    judge, asker = authorizer(acls), Asker()
    for number in range(10 * KNOWN_MAX):
        judge.allows(asker, READ, TOPIC, f"t{number}")
        assert asker.grants is not None
        assert len(asker.grants.known) <= KNOWN_MAX


def test_operations_are_told_as_the_bits_of_what_is_allowed() -> None:
    """KIP-430; a client that may not describe the cluster gets no operations."""
    acls = Acls()
    judge = authorizer(acls)
    bind(acls, READ)
    assert judge.operations(Asker(), TOPIC, "t") == 1 << READ | 1 << DESCRIBE
    assert judge.cluster_operations(Asker()) == 0
    bind(acls, AclOperation.ALL, CLUSTER_NAME, resource=CLUSTER)
    assert judge.cluster_operations(Asker()) == 8_096, "all that Kafka lists"
    bind(acls, AclOperation.ALL, "t")
    assert judge.operations(Asker(), TOPIC, "t") == 3_576
    bind(acls, AclOperation.ALL, "g", resource=GROUP)
    assert judge.operations(Asker(), GROUP, "g") == 3_400


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        ([], False),
        ([(ALLOW, LITERAL, "t")], True),
        ([(ALLOW, PREFIXED, "t")], True),
        ([(ALLOW, LITERAL, "*")], True),
        ([(ALLOW, LITERAL, "*"), (DENY, LITERAL, "*")], False),
        ([(ALLOW, LITERAL, "*"), (DENY, PREFIXED, "t")], True),
        ([(ALLOW, LITERAL, "t"), (DENY, LITERAL, "t")], False),
        ([(ALLOW, LITERAL, "t"), (DENY, LITERAL, "u")], True),
        ([(ALLOW, LITERAL, "topic"), (DENY, PREFIXED, "to")], False),
        ([(ALLOW, PREFIXED, "to"), (DENY, PREFIXED, "topic")], True),
        ([(ALLOW, PREFIXED, "topic"), (DENY, PREFIXED, "to")], False),
        ([(ALLOW, PREFIXED, "to"), (DENY, PREFIXED, "to")], False),
        ([(ALLOW, PREFIXED, "to"), (DENY, LITERAL, "to")], True),
    ],
)
def test_to_write_to_some_topic_is_enough_for_a_producer_id(
    bindings: list[tuple[AclPermission, AclPattern, str]], expected: bool
) -> None:
    """KIP-679: Kafka's `authorizeByResourceType`."""
    acls = Acls()
    for permission, pattern, name in bindings:
        bind(acls, WRITE, name, permission=permission, pattern=pattern)
    judge = authorizer(acls, BOB)
    assert judge.allows_some(Asker(), WRITE, TOPIC) is expected
    assert not judge.allows_some(Asker(), READ, TOPIC)
    assert judge.allows_some(Asker(BOB), READ, TOPIC), "a super user"


@pytest.mark.parametrize("seed", range(30))
def test_decisions_are_those_of_a_plain_model(seed: int) -> None:
    """Random bindings are added and removed under connections that cache decisions."""
    rng = random.Random(seed)
    acls = Acls()
    open_ = rng.random() < 0.5
    judge = authorizer(acls, Principal("root"), open_=open_)
    names = ["a", "ab", "abc", "b", "*"]
    principals = [ALICE, BOB, Principal("root"), Principal("alice", "Group"), ANONYMOUS]
    askers = [
        Asker(principal, host)
        for principal in principals
        for host in ("10.0.0.1", "10.0.0.2")
    ]  # fmt: skip
    present: list[AclBinding] = []
    for _ in range(400):
        if present and rng.random() < 0.4:
            acls.remove(present.pop(rng.randrange(len(present))))
        elif rng.random() < 0.7:
            one = AclBinding(
                rng.choice([TOPIC, GROUP]),
                rng.choice(names),
                rng.choice([LITERAL, PREFIXED]),
                rng.choice(["User:*", *map(str, principals)]),
                rng.choice(["*", "10.0.0.1"]),
                rng.choice(list(AclOperation)[1:8]),
                rng.choice([ALLOW, ALLOW, DENY]),
            )
            if one not in present:
                acls.add(one)
                present.append(one)
        for _ in range(4):
            asker = rng.choice(askers)
            operation = rng.choice(list(AclOperation)[2:8])
            resource, name = rng.choice([TOPIC, GROUP]), rng.choice(["a", "abc", "b", "x"])
            expected = plainly(present, asker, operation, resource, name, open_=open_)
            assert judge.allows(asker, operation, resource, name) is expected, seed


def plainly(
    bindings: list[AclBinding],
    asker: Asker,
    operation: AclOperation,
    resource: AclResource,
    name: str,
    *,
    open_: bool,
) -> bool:
    if str(asker.principal) == "User:root":
        return True
    on_it = [
        one
        for one in bindings
        if one.resource_type == resource
        and (
            name.startswith(one.name)
            if one.pattern_type == PREFIXED
            else one.name in ("*", name)
        )
    ]  # fmt: skip
    if not on_it:
        return open_
    of_asker = [
        one
        for one in on_it
        if one.principal in ("User:*", str(asker.principal)) and one.host in ("*", asker.peer_host)
    ]
    if any(
        one.permission == DENY and one.operation in (operation, AclOperation.ALL)
        for one in of_asker
    ):
        return False
    enough = {operation, AclOperation.ALL}
    if operation is DESCRIBE:
        enough |= {READ, WRITE, AclOperation.DELETE, AclOperation.ALTER}
    return any(one.permission == ALLOW and one.operation in enough for one in of_asker)


@pytest.mark.parametrize("written", ["10.0.0.7", "::ffff:10.0.0.7"])
def test_host_is_the_same_however_it_is_written(written: str) -> None:
    """A denial of an address applies in every notation of the socket or of the binding."""
    acls = Acls()
    bind(acls, READ)
    bind(acls, READ, permission=DENY, host=written)
    assert not authorizer(acls).allows(Asker(peer_host="10.0.0.7"), READ, TOPIC, "t")
    assert authorizer(acls).allows(Asker(peer_host="10.0.0.8"), READ, TOPIC, "t")
