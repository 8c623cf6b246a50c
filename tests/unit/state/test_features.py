"""Finalised features: only levels that all servers support (KIP-584, KIP-778)."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.commands import FeatureUpdate

Ranges = dict[str, tuple[int, int, int]]
OLD: Ranges = {"a.version": (1, 1, 1), "b.version": (0, 1, 0)}
NEW: Ranges = {"a.version": (1, 2, 2), "b.version": (0, 2, 1)}
UPGRADE, SAFE, UNSAFE = 1, 2, 3


def register(catalog: Catalog, server_id: int, features: Ranges) -> Any:
    directory = bytes([server_id]) * 16
    command = commands.RegisterServer(server_id, directory, "", {}, True, features)
    return catalog.apply(command, 0, 1)


def update(
    catalog: Catalog, *updates: tuple[str, int] | tuple[str, int, int], validate: bool = False
) -> ErrorCode:
    command = commands.UpdateFeatures([FeatureUpdate(*one) for one in updates], validate)
    error: ErrorCode = catalog.apply(command, 0, 1).error
    return error


def three(*features: Ranges) -> Catalog:
    """Return a cluster of three initial voters, registered in turn."""
    catalog = Catalog("c", initial_voters={server: bytes([server]) * 16 for server in (1, 2, 3)})
    for server_id, levels in enumerate(features, 1):
        register(catalog, server_id, levels)
    return catalog


def test_new_cluster_begins_with_what_all_its_initial_voters_understand() -> None:
    """Features are finalised once the last initial voter has reported its levels.

    Level 0 means absent.
    """
    catalog = three(NEW, OLD)
    assert (catalog.features.epoch, catalog.features.levels) == (0, {})
    register(catalog, 3, NEW)
    assert (catalog.features.epoch, catalog.features.levels) == (1, {"a.version": 1})


def test_servers_without_features_begin_none() -> None:
    """No feature is finalised with servers that report none.

    They would stop at commands that a level permits.
    """
    catalog = three(NEW, {}, NEW)
    assert catalog.features.epoch == 0
    register(catalog, 2, NEW)
    assert catalog.features.levels == {"a.version": 2, "b.version": 1}


def test_restart_with_more_levels_finalises_nothing() -> None:
    """A level cannot be lowered safely, so it is raised on request only."""
    catalog = three(OLD, OLD, OLD)
    for server_id in (1, 2, 3):
        register(catalog, server_id, NEW)
    assert (catalog.features.epoch, catalog.features.levels) == (1, {"a.version": 1})
    assert update(catalog, ("a.version", 2), ("b.version", 1)) is ErrorCode.NONE
    assert catalog.features.levels == {"a.version": 2, "b.version": 1}
    assert catalog.features.epoch == 2


def test_level_one_server_does_not_understand_is_refused() -> None:
    """The other updates of the command are refused along with it."""
    catalog = three(NEW, OLD, NEW)
    before = catalog.items()
    assert update(catalog, ("b.version", 1), ("a.version", 2)) is ErrorCode.INVALID_UPDATE_VERSION
    assert catalog.items() == before


def test_server_that_does_not_understand_a_finalised_level_cannot_join() -> None:
    """A server without support for a finalised level is refused.

    It may have been a member before, and return with an older version.
    """
    catalog = three(NEW, NEW, NEW)
    for server_id, features in ((4, OLD), (2, OLD), (5, {})):
        answer = register(catalog, server_id, features)
        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        assert "a.version" in answer.message
    assert sorted(catalog.servers) == [1, 2, 3]
    assert catalog.servers[2].features == NEW


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (("a.version", 1), ErrorCode.INVALID_UPDATE_VERSION),
        (("a.version", 1, SAFE), ErrorCode.NONE),
        (("a.version", 1, UNSAFE), ErrorCode.NONE),
        (("a.version", 2, UPGRADE), ErrorCode.NONE),
        (("a.version", 2, SAFE), ErrorCode.NONE),
        (("b.version", 2, SAFE), ErrorCode.INVALID_UPDATE_VERSION),
        (("b.version", 2, 0), ErrorCode.INVALID_UPDATE_VERSION),
        (("b.version", 3), ErrorCode.INVALID_UPDATE_VERSION),
        (("b.version", -1, UNSAFE), ErrorCode.INVALID_UPDATE_VERSION),
        (("a.version", 0, SAFE), ErrorCode.INVALID_UPDATE_VERSION),
        (("b.version", 0, SAFE), ErrorCode.NONE),
        (("c.version", 1), ErrorCode.INVALID_UPDATE_VERSION),
    ],
)
def test_update_goes_the_way_its_type_says(asked: Any, error: ErrorCode) -> None:
    """Validation returns the same result, and changes nothing."""
    catalog = three(NEW, NEW, NEW)
    before = catalog.items()
    assert update(catalog, asked, validate=True) is error
    assert catalog.items() == before
    assert update(catalog, asked) is error
    level = asked[1] if error is ErrorCode.NONE else {"a.version": 2, "b.version": 1}.get(asked[0])
    assert catalog.features.levels.get(asked[0], 0) == (level or 0)


def test_epoch_grows_with_changes_only() -> None:
    """Clients keep the levels of the greatest epoch that they have seen."""
    catalog = three(NEW, NEW, NEW)
    for asked, epoch in (
        (("b.version", 2), 2),
        (("b.version", 2), 2),
        (("b.version", 0, SAFE), 3),
        (("b.version", 9), 3),
    ):
        update(catalog, asked)
        assert catalog.features.epoch == epoch


def test_features_are_stored_and_restored() -> None:
    """Features are stored by checkpoints, which take changes, and by snapshots."""
    catalog = three(NEW, NEW, NEW)
    stored: dict[bytes, bytes | None] = dict(catalog.take_dirty())
    update(catalog, ("b.version", 0, SAFE), ("a.version", 1, SAFE))
    stored.update(catalog.take_dirty())
    kept = sorted((key, value) for key, value in stored.items() if value is not None)
    assert kept == catalog.items()
    assert len(kept) == catalog.item_count
    again = three()
    again.load(kept)
    assert again.items() == catalog.items()
    assert (again.features.epoch, again.features.levels) == (2, {"a.version": 1})
