"""ACL bindings of the catalog: a bounded set, found by pattern and principal."""

from __future__ import annotations

import random

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.acls import (
    ALL_BYTES_MAX,
    ANY_NAME,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    Acls,
    complaint_about,
    filter_complaint,
)
from vdl.state.catalog import Catalog
from vdl.state.commands import AclBinding, AclFilter

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
EVERYTHING = AclFilter(1, None, 1, None, None, 1, 1)


def binding(
    name: str = "t",
    principal: str = "User:alice",
    *,
    resource: int = AclResource.TOPIC,
    pattern: int = AclPattern.LITERAL,
    host: str = "*",
    operation: int = AclOperation.READ,
    permission: int = ALLOW,
) -> AclBinding:
    return AclBinding(resource, name, pattern, principal, host, operation, permission)


def create(catalog: Catalog, *bindings: AclBinding) -> list[ErrorCode]:
    errors: list[ErrorCode] = catalog.apply(commands.CreateAcls(list(bindings)), 0, 1).errors
    return errors


def delete(catalog: Catalog, *filters: AclFilter) -> list[list[AclBinding]]:
    deleted: list[list[AclBinding]] = catalog.apply(
        commands.DeleteAcls(list(filters)), 0, 1
    ).deleted
    return deleted


def test_bindings_are_a_set_and_a_command_may_come_twice() -> None:
    """A client that retries gets the same answer."""
    catalog = Catalog("c")
    for _ in range(2):
        assert create(catalog, binding(), binding("u")) == [ErrorCode.NONE] * 2
        assert len(catalog.acls) == 2
    assert len(delete(catalog, EVERYTHING)[0]) == 2
    assert len(catalog.acls) == 0
    assert delete(catalog, EVERYTHING) == [[]]


def test_each_filter_selects_from_what_was_there_before() -> None:
    """A binding that two filters select is in both results, as in Kafka."""
    catalog = Catalog("c")
    create(catalog, binding("t"), binding("u"))
    only_t = AclFilter(AclResource.TOPIC, "t", AclPattern.LITERAL, None, None, 1, 1)
    first, second = delete(catalog, only_t, EVERYTHING)
    assert first == [binding("t")]
    assert set(second) == {binding("t"), binding("u")}
    assert len(catalog.acls) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        binding(""),
        binding(resource=0),
        binding(resource=1),
        binding(resource=8),
        binding(pattern=1),
        binding(pattern=2),
        binding(pattern=5),
        binding(operation=1),
        binding(operation=99),
        binding(permission=1),
        binding(principal="alice"),
        binding(principal="User:"),
        binding(principal=":alice"),
        binding(host=""),
        binding("t" * 2_000),
        binding("some", resource=AclResource.CLUSTER),
    ],
    ids=str,
)
def test_what_is_no_binding_is_refused_also_by_the_catalog(wrong: AclBinding) -> None:
    """The proposer may run another version that did not check it."""
    assert complaint_about(wrong)
    catalog = Catalog("c")
    assert create(catalog, wrong, binding()) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert len(catalog.acls) == 1


def test_bindings_take_a_bounded_part_of_every_snapshot() -> None:
    """Bindings beyond the bound are refused; existing ones and deletions are not."""
    catalog = Catalog("c")
    many = [binding(f"{number:>0900}") for number in range(ALL_BYTES_MAX // 900)]
    errors = create(catalog, *many)
    assert set(errors) == {ErrorCode.NONE, ErrorCode.POLICY_VIOLATION}
    assert catalog.acls.bytes <= ALL_BYTES_MAX
    assert create(catalog, many[0]) == [ErrorCode.NONE]
    assert create(catalog, binding("n" * 900)) == [ErrorCode.POLICY_VIOLATION]
    delete(catalog, EVERYTHING)
    assert (catalog.acls.bytes, len(catalog.acls)) == (0, 0)
    assert create(catalog, binding("n" * 900)) == [ErrorCode.NONE]


def test_bindings_survive_checkpoints_and_snapshots_denials_too() -> None:
    """CVE-2024-27309: denials must not get lost on the way to another replica."""
    catalog = Catalog("c")
    kept = [binding("t"), binding("t", permission=DENY), binding("ü" * 300, host="10.0.0.1")]
    create(catalog, *kept, binding("gone"))
    stored: dict[bytes, bytes | None] = dict(catalog.take_dirty())
    assert all(len(key) < 64 for key in stored), "whatever the name"
    delete(catalog, AclFilter(1, "gone", AclPattern.LITERAL, None, None, 1, 1))
    stored.update(catalog.take_dirty())
    assert {k: v for k, v in stored.items() if v is not None} == {
        k: v for k, v in catalog.items() if k[:1] == b"a"
    }
    again = Catalog("c")
    revision = again.acls.revision
    again.load(catalog.items())
    assert again.items() == catalog.items()
    assert again.item_count == len(again.items())
    assert set(again.acls.matching(EVERYTHING)) == set(kept)
    assert again.acls.bytes == catalog.acls.bytes
    assert again.acls.revision > revision, "whoever remembers answers has to ask again"


def test_filters_are_checked() -> None:
    """Unassigned numbers select nothing; that is an error, not an empty result."""
    assert not filter_complaint(EVERYTHING)
    for wrong in (
        AclFilter(0, None, 1, None, None, 1, 1),
        AclFilter(1, None, 0, None, None, 1, 1),
        AclFilter(1, None, 1, None, None, 0, 1),
        AclFilter(1, None, 1, None, None, 1, 0),
    ):
        assert filter_complaint(wrong)


@pytest.mark.parametrize("seed", range(20))
def test_index_finds_what_a_look_at_all_bindings_finds(seed: int) -> None:
    """Random bindings come and go.

    The bindings for a name, and a filter's selection, are compared with a plain list.
    """
    rng = random.Random(seed)
    names = ["a", "ab", "abc", "b", ANY_NAME]
    acls = Acls()
    present: set[AclBinding] = set()
    for _ in range(300):
        one = binding(
            rng.choice(names),
            rng.choice(["User:a", "User:*"]),
            resource=rng.choice([2, 3]),
            pattern=rng.choice([3, 4]),
            operation=rng.choice([3, 4]),
            permission=rng.choice([2, 3]),
        )
        if one in present and rng.random() < 0.5:
            acls.remove(one)
            present.remove(one)
        else:
            assert acls.add(one)[0] is ErrorCode.NONE
            present.add(one)
        resource, name = rng.choice([2, 3]), rng.choice(["a", "abcd", "x", "b"])
        found = [b for by in acls.on(resource, name) for some in by.values() for b in some]
        assert len(found) == len(set(found))
        assert set(found) == {
            b
            for b in present
            if b.resource_type == resource
            and (
                name.startswith(b.name)
                if b.pattern_type == AclPattern.PREFIXED
                else b.name in (name, ANY_NAME)
            )
        }
        wanted = AclFilter(
            rng.choice([1, 2]), rng.choice([None, "a", "abc"]), rng.choice([1, 2, 3, 4]),
            rng.choice([None, "User:a"]), None, rng.choice([1, 3]), 1,
        )  # fmt: skip
        assert set(acls.matching(wanted)) == {b for b in present if selects(wanted, b)}
    assert len(acls) == len(present)


def selects(wanted: AclFilter, one: AclBinding) -> bool:
    """Return True if the filter selects the binding: reference implementation of KIP-290."""
    by_name = {
        1: one.name == wanted.name,
        2: one.name in (wanted.name, ANY_NAME)
        if one.pattern_type == AclPattern.LITERAL
        else (wanted.name or "").startswith(one.name),
        3: one.pattern_type == 3 and one.name == wanted.name,
        4: one.pattern_type == 4 and one.name == wanted.name,
    }[wanted.pattern_type]
    if wanted.name is None:
        by_name = wanted.pattern_type in (1, 2, one.pattern_type)
    return (
        by_name
        and wanted.resource_type in (1, one.resource_type)
        and wanted.principal in (None, one.principal)
        and wanted.operation in (1, one.operation)
    )
