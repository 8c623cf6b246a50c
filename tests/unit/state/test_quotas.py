"""Client quotas in the catalog: independent entities, stored completely, bounded together."""

from __future__ import annotations

import math

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.commands import QuotaChange
from vdl.state.quotas import ALL_BYTES_MAX, entity_of

NONE, INVALID = ErrorCode.NONE, ErrorCode.INVALID_REQUEST
Parts = list[tuple[str, str | None]]


def alter(catalog: Catalog, *changes: QuotaChange) -> list[ErrorCode]:
    errors: list[ErrorCode] = catalog.apply(commands.AlterQuotas(list(changes)), 0, 1).errors
    return errors


def test_quotas_are_set_changed_and_unset_whatever_the_order_of_names() -> None:
    """Another order names the same entity; setting twice equals setting once."""
    catalog = Catalog("c")
    one: Parts = [("user", "u"), ("client-id", None)]
    other: Parts = [("client-id", None), ("user", "u")]
    for _ in range(2):
        assert alter(catalog, QuotaChange(one, {"request_percentage": 0.5})) == [NONE]
    alter(catalog, QuotaChange(other, {"producer_byte_rate": 10}))
    assert catalog.quotas.of(entity_of(one)) == {
        "request_percentage": 0.5, "producer_byte_rate": 10,
    }  # fmt: skip
    alter(catalog, QuotaChange(other, unset=["request_percentage", "unknown"]))
    assert catalog.quotas.of(entity_of(one)) == {"producer_byte_rate": 10}
    alter(catalog, QuotaChange(one, unset=["producer_byte_rate"]))
    assert (len(catalog.quotas), catalog.quotas.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("parts", "key", "value"),
    [
        ([], "producer_byte_rate", 1),
        ([("user", "")], "producer_byte_rate", 1),
        ([("group", "g")], "producer_byte_rate", 1),
        ([("user", "a"), ("user", "b")], "producer_byte_rate", 1),
        ([("user", "a"), ("ip", "10.0.0.1")], "producer_byte_rate", 1),
        ([("ip", "not an address")], "connection_creation_rate", 1),
        ([("ip", "10.0.0.1")], "producer_byte_rate", 1),
        ([("user", "u")], "connection_creation_rate", 1),
        ([("user", "u")], "unknown", 1),
        ([("user", "u")], "producer_byte_rate", 0),
        ([("user", "u")], "producer_byte_rate", -1),
        ([("user", "u")], "producer_byte_rate", 1.5),
        ([("user", "u")], "request_percentage", math.nan),
        ([("user", "u")], "request_percentage", math.inf),
        ([("ip", None)], "connection_creation_rate", 1 << 40),
        ([("user", "u" * 2_000)], "producer_byte_rate", 1),
    ],
)
def test_what_is_no_quota_is_refused_also_by_the_catalog(
    parts: Parts, key: str, value: float
) -> None:
    """Valid quotas in the same command are applied."""
    catalog = Catalog("c")
    sound = QuotaChange([("ip", "::1")], {"connection_creation_rate": 3})
    assert alter(catalog, QuotaChange(parts, {key: value}), sound) == [INVALID, NONE]
    assert len(catalog.quotas) == 1


def test_quotas_take_a_bounded_part_of_every_snapshot() -> None:
    """Quotas beyond the bound are refused; changes that need no more space are not."""
    catalog = Catalog("c")
    changes = [
        QuotaChange([("user", f"{number:>0900}")], {"producer_byte_rate": 1})
        for number in range(ALL_BYTES_MAX // 900)
    ]
    assert set(alter(catalog, *changes)) == {NONE, ErrorCode.POLICY_VIOLATION}
    assert catalog.quotas.bytes <= ALL_BYTES_MAX
    assert alter(catalog, QuotaChange(changes[0].entity, {"producer_byte_rate": 2})) == [NONE]


def test_quotas_survive_checkpoints_and_snapshots() -> None:
    """Defaults are distinct from clients with an empty name."""
    catalog = Catalog("c")
    alter(
        catalog,
        QuotaChange([("user", None)], {"producer_byte_rate": 1}),
        QuotaChange([("user", "ü"), ("client-id", None)], {"request_percentage": 2.5}),
        QuotaChange([("ip", None)], {"connection_creation_rate": 3}),
        QuotaChange([("client-id", "gone")], {"producer_byte_rate": 1}),
    )
    stored: dict[bytes, bytes | None] = dict(catalog.take_dirty())
    alter(catalog, QuotaChange([("client-id", "gone")], unset=["producer_byte_rate"]))
    stored.update(catalog.take_dirty())
    assert {k: v for k, v in stored.items() if v is not None} == {
        k: v for k, v in catalog.items() if k[:1] == b"q"
    }
    again = Catalog("c")
    revision = again.quotas.revision
    again.load(catalog.items())
    assert again.items() == catalog.items()
    assert again.item_count == len(again.items())
    assert again.quotas.entities == catalog.quotas.entities
    assert again.quotas.bytes == catalog.quotas.bytes
    assert again.quotas.revision > revision
