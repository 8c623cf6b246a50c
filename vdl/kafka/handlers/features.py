"""UpdateFeatures (key 57) v0–2: levels of features, decided by the catalog (KIP-584, KIP-778).

v1 types of upgrades and validate_only; v2 has one answer for the request, because all levels change
or none. Failures are answered so in every version, as in Kafka: clients look there first.

Does not depend on the meaning of levels.
"""

from __future__ import annotations

from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.wire.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import FeatureUpdate, UpdateFeatures
from vdl.state.features import UpgradeType

_TYPES_FROM = 1
_ONE_ANSWER_FROM = 2


def handle_update_features(
    ctx: RequestContext, request: UpdateFeaturesRequest
) -> UpdateFeaturesResponse | Later:
    """Finalise the requested levels, all or none."""
    names = [update.feature for update in request.feature_updates]
    if len(set(names)) < len(names):
        return UpdateFeaturesResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message="a feature is listed more than once",
        )
    later = Later()

    def decided(outcome: Outcome) -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            code, message = outcome.result.error, outcome.result.message or None
        else:
            code, message = undecided(outcome)
        response = UpdateFeaturesResponse(error_code=code, error_message=message)
        if code is ErrorCode.NONE and ctx.api_version < _ONE_ANSWER_FROM:
            response.results = [UpdatableFeatureResult(name, code, None) for name in names]
        later.complete(response)

    ctx.server.host.propose_catalog(
        UpdateFeatures(
            [
                FeatureUpdate(
                    update.feature, update.max_version_level, _upgrade_type(update, ctx.api_version)
                )
                for update in request.feature_updates
            ],
            request.validate_only,
        ),
        deadline_ns=ctx.deadline_ns(request.timeout_ms),
        done=lambda outcome: later.run(lambda: decided(outcome)),
    )
    return later


def _upgrade_type(update: FeatureUpdateKey, version: int) -> int:
    if version >= _TYPES_FROM:
        return update.upgrade_type
    return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
