"""Settings of resources other than topics: independent, stored completely, bounded together."""

from __future__ import annotations

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.commands import ConfigChange, ListChange
from vdl.state.resource_configs import (
    ALL_BYTES_MAX,
    CONFIGS_BYTES_MAX,
    RESOURCE_BYTES,
    ResourceType,
)

BROKER, METRICS, GROUP = ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP


def alter(catalog: Catalog, *changes: tuple[int, ConfigChange]) -> list[ErrorCode]:
    errors: list[ErrorCode] = catalog.apply(
        commands.AlterResourceConfigs(list(changes)), 0, 1
    ).errors
    return errors


def test_resources_of_one_name_are_told_apart_by_their_type() -> None:
    """A resource whose settings are back at their defaults is removed."""
    catalog = Catalog("c")
    for kind in (BROKER, GROUP):
        assert alter(catalog, (kind, ConfigChange("1", {"a": str(kind)}))) == [ErrorCode.NONE]
    assert catalog.resources.of(BROKER, "1") == {"a": str(BROKER)}
    assert catalog.resources.of(GROUP, "1") == {"a": str(GROUP)}
    assert catalog.resources.of(METRICS, "1") == {}
    alter(catalog, (GROUP, ConfigChange("1", unset=["a"])))
    assert list(catalog.resources.names(GROUP)) == []
    assert list(catalog.resources.names(BROKER)) == ["1"]


def test_two_additions_to_a_list_that_race_are_both_kept() -> None:
    """Each of two proposers read the list without the other's addition (KIP-339).

    It may be empty.
    """
    catalog = Catalog("c")

    def change(part: str, *, subtracts: bool = False) -> None:
        one = ListChange("metrics", [part], subtracts, "", [], is_open=True)
        assert alter(catalog, (METRICS, ConfigChange("m", lists=[one]))) == [ErrorCode.NONE]

    change("a")
    change("b")
    assert catalog.resources.of(METRICS, "m") == {"metrics": "a,b"}
    change("a", subtracts=True)
    change("b", subtracts=True)
    assert catalog.resources.of(METRICS, "m") == {"metrics": ""}


def test_resources_are_stored_and_restored() -> None:
    """Settings are stored by checkpoints, which take changes, and by snapshots."""
    catalog = Catalog("c")
    alter(
        catalog,
        (BROKER, ConfigChange("", {"a": "1"})),
        (GROUP, ConfigChange("g" * 5_000 + "ü", {"b": "2"})),
        (METRICS, ConfigChange("m", {"c": "3"})),
    )
    stored: dict[bytes, bytes | None] = dict(catalog.take_dirty())
    assert all(len(key) < 64 for key in stored), "whatever the name"
    alter(
        catalog, (METRICS, ConfigChange("m", unset=["c"])), (BROKER, ConfigChange("", {"a": "9"}))
    )
    stored.update(catalog.take_dirty())
    kept = sorted((key, value) for key, value in stored.items() if value is not None)
    assert kept == [item for item in catalog.items() if item[0][:1] == b"x"]
    again = Catalog("c")
    revision = again.resources.revision
    again.load(catalog.items())
    assert again.items() == catalog.items()
    assert again.item_count == len(again.items())
    assert again.resources.of(BROKER, "") == {"a": "9"}
    assert again.resources.revision > revision, "whoever follows them has to look"


def test_settings_of_all_resources_together_are_bounded() -> None:
    """One byte beyond the limit is refused; changes that need no more space never are."""
    catalog = Catalog("c")
    each = RESOURCE_BYTES + 5 + CONFIGS_BYTES_MAX
    value = "x" * (CONFIGS_BYTES_MAX - 1)
    full = ALL_BYTES_MAX // each
    for number in range(full):
        change = ConfigChange(f"{number:5}", {"a": value})
        assert alter(catalog, (GROUP, change)) == [ErrorCode.NONE]
    rest = ALL_BYTES_MAX - full * each
    room = rest - RESOURCE_BYTES - len("last") - 1
    change = ConfigChange("last", {"a": "x" * (room + 1)})
    assert alter(catalog, (GROUP, change)) == [ErrorCode.POLICY_VIOLATION]
    change = ConfigChange("last", {"a": "x" * room})
    assert alter(catalog, (GROUP, change)) == [ErrorCode.NONE]
    again = Catalog("c")
    again.load(catalog.items())
    for one in (catalog, again):
        more = ConfigChange("last", {"a": "x" * (room + 1)})
        assert alter(one, (GROUP, more)) == [ErrorCode.POLICY_VIOLATION]
        same = ConfigChange("last", {"a": "y" * room})
        assert alter(one, (GROUP, same)) == [ErrorCode.NONE]
        assert alter(one, (GROUP, ConfigChange("    0", unset=["a"]))) == [ErrorCode.NONE]
        assert alter(one, (GROUP, more)) == [ErrorCode.NONE]
