"""UpdateFeatures, and what ApiVersions says of features and of misdirected clients."""

from __future__ import annotations

import pytest

from tests.unit.kafka.fake_host import LISTENER, World
from vdl.errors import ErrorCode
from vdl.kafka.wire.api_versions import ApiVersionsRequest
from vdl.kafka.wire.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from vdl.logstream.group.state_group import OutcomeKind
from vdl.state import commands
from vdl.state.features import METADATA_VERSION, STREAMS_VERSION, SUPPORTED

API_VERSIONS, UPDATE_FEATURES = 18, 57
GROUP_VERSION = "group.version"


def world(levels: dict[str, tuple[int, int, int]]) -> World:
    """World whose servers support these feature levels."""
    made = World()
    for server_id in (1, 2, 3):
        made.host.apply(
            commands.RegisterServer(
                server_id,
                bytes([server_id]) * 16,
                f"rack{server_id}",
                {LISTENER: (f"host{server_id}", 9090 + server_id)},
                True,
                levels,
            )
        )
    return made


@pytest.mark.parametrize("version", [3, 4, 5])
def test_api_versions_lists_features(version: int) -> None:
    """Lists supported and finalized features; earlier versions have no field for them.

    Clients of v3 refuse a feature that begins at level 0, so it is omitted for them, as in Kafka.
    """
    asked = world(dict(SUPPORTED))
    asked.host.catalog.features.levels = {METADATA_VERSION: 33}
    asked.host.catalog.features.epoch = 7
    answer = asked.client().ask(API_VERSIONS, version, ApiVersionsRequest("fake", "1.0"))
    supported = {row.name: (row.min_version, row.max_version) for row in answer.supported_features}
    assert supported[METADATA_VERSION] == (33, 33)
    if version == 3:
        assert supported.keys() == {METADATA_VERSION}
    else:
        assert supported[GROUP_VERSION] == (0, 1)
        assert supported[STREAMS_VERSION] == (0, 0), "known, and not to be had"
        assert supported.keys() == SUPPORTED.keys()
    (finalised,) = answer.finalized_features
    assert (finalised.name, finalised.min_version_level, finalised.max_version_level) == (
        METADATA_VERSION, 33, 33,
    )  # fmt: skip
    assert answer.finalized_features_epoch == 7


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "error"),
    [
        (None, -1, ErrorCode.NONE),
        ("fake", 1, ErrorCode.NONE),
        ("fake", -1, ErrorCode.NONE),
        ("fake", 2, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("other", 1, ErrorCode.REBOOTSTRAP_REQUIRED),
        (None, 2, ErrorCode.REBOOTSTRAP_REQUIRED),
    ],
)
def test_client_that_meant_another_server_is_told_so(
    cluster_id: str | None, node_id: int, error: ErrorCode
) -> None:
    """Addresses are reassigned to other servers while clients cache them (KIP-1242)."""
    client = World().client()
    asked = ApiVersionsRequest("fake", "1.0", cluster_id, node_id)
    answer = client.ask(API_VERSIONS, 5, asked)
    assert answer.error_code == error
    assert bool(answer.api_keys) is (error is ErrorCode.NONE)
    assert not client.closed


@pytest.mark.parametrize("version", range(3))
def test_level_is_finalised_for_the_cluster(version: int) -> None:
    """Levels go up, and down if allowed; until v1 each feature has its own response too."""
    asked = world({GROUP_VERSION: (0, 1, 1)})
    client = asked.client()
    for level, down in ((1, False), (0, True)):
        update = FeatureUpdateKey(GROUP_VERSION, level)
        if version:
            update.upgrade_type = 2 if down else 1
        else:
            update.allow_downgrade = down
        answer = client.ask(UPDATE_FEATURES, version, UpdateFeaturesRequest(1_000, [update]))
        assert answer.error_code == ErrorCode.NONE
        names = [(result.feature, result.error_code) for result in answer.results]
        assert names == ([] if version == 2 else [(GROUP_VERSION, ErrorCode.NONE)])
        assert asked.host.catalog.features.levels.get(GROUP_VERSION, 0) == level


@pytest.mark.parametrize("version", range(3))
def test_level_that_cannot_be_finalised_is_refused_by_name(version: int) -> None:
    """The error is for the whole request: nothing has changed."""
    asked = world({GROUP_VERSION: (0, 1, 1)})
    updates = [FeatureUpdateKey(GROUP_VERSION, 1), FeatureUpdateKey("kraft.version", 1)]
    request = UpdateFeaturesRequest(1_000, updates)
    answer = asked.client().ask(UPDATE_FEATURES, version, request)
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "kraft.version" in answer.error_message
    assert asked.host.catalog.features.levels == {}


def test_feature_that_is_named_twice_is_refused() -> None:
    """Otherwise the order would decide the level."""
    asked = world({GROUP_VERSION: (0, 1, 1)})
    updates = [FeatureUpdateKey(GROUP_VERSION, 1), FeatureUpdateKey(GROUP_VERSION, 0)]
    answer = asked.client().ask(UPDATE_FEATURES, 2, UpdateFeaturesRequest(1_000, updates))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (OutcomeKind.NOT_APPENDED, ErrorCode.NOT_CONTROLLER),
        (OutcomeKind.UNKNOWN, ErrorCode.REQUEST_TIMED_OUT),
    ],
)
def test_update_whose_fate_is_open_is_no_success(outcome: OutcomeKind, error: ErrorCode) -> None:
    """NOT_CONTROLLER is returned only if nothing was changed."""
    asked = world({GROUP_VERSION: (0, 1, 1)})
    asked.host.catalog_outcome = outcome
    request = UpdateFeaturesRequest(1_000, [FeatureUpdateKey(GROUP_VERSION, 1)])
    assert asked.client().ask(UPDATE_FEATURES, 2, request).error_code == error
