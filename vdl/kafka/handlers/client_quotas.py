"""DescribeClientQuotas (key 48), AlterClientQuotas (49): limits on clients' use of resources.

KIP-546, KIP-612. v1 of both is flexible. Changes are decided by the catalog, each entity
separately. Descriptions come from this server's own applied catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial

from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.answer import Gathering, InParts, Later, pages
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.topics import undecided
from vdl.kafka.wire.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryDataResponse,
)
from vdl.kafka.wire.alter_client_quotas import EntityData as ChangedEntity
from vdl.kafka.wire.alter_client_quotas import EntryData as Change
from vdl.kafka.wire.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import AlterQuotas, QuotaChange
from vdl.state.quotas import (
    CLIENT_ID,
    IP,
    USER,
    Entity,
    entity_complaint,
    entity_of,
    value_complaint,
)

_TIMEOUT_MS = 30_000
"""Timeout of these requests, which have none of their own."""
CHANGES_PER_COMMAND = 1_000
_EXACT, _DEFAULT, _ANY = 0, 1, 2


def handle_describe_client_quotas(
    ctx: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse | InParts:
    """Return the entities that match all components and, with `strict`, have no others."""
    try:
        exact, any_of = _filter(request)
    except KafkaError as error:
        return _failed(error.code, error.message)

    def found() -> Iterator[EntryData | None]:
        for entity, values in list(ctx.server.host.catalog.quotas.entities.items()):
            names = dict(entity)
            if (
                (not request.strict or len(names) == len(exact) + len(any_of))
                and all(kind in names and names[kind] == name for kind, name in exact.items())
                and any_of <= names.keys()
            ):
                yield EntryData(
                    [EntityData(kind, name) for kind, name in entity],
                    [ValueData(key, value) for key, value in sorted(values.items())],
                )
            else:
                yield None

    first = DescribeClientQuotasResponse(error_message=None, entries=[])
    return InParts(ctx, "entries", partial(pages, first, "entries", found()))


def fail_describe_client_quotas(
    _request: DescribeClientQuotasRequest, _version: int, code: ErrorCode
) -> DescribeClientQuotasResponse:
    """Return `code` for the request."""
    return _failed(code, "")


def _failed(code: ErrorCode, message: str) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(
        error_code=code, error_message=message or None, entries=None
    )


def _filter(request: DescribeClientQuotasRequest) -> tuple[dict[str, str | None], set[str]]:
    """Return names by kind that an entity must have, and kinds for which any name matches.

    Raises KafkaError.
    """
    exact: dict[str, str | None] = {}
    any_of: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in exact or kind in any_of:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter.",
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if component.match_type == _EXACT and component.match is not None:
            exact[kind] = component.match
        elif component.match_type == _DEFAULT and component.match is None:
            exact[kind] = None
        elif component.match_type == _ANY and component.match is None:
            any_of.add(kind)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the match does not fit the match type")
    kinds = exact.keys() | any_of
    if IP in kinds and len(kinds) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used "
            "with user or clientId filter component.",
        )
    return exact, any_of


def handle_alter_client_quotas(
    ctx: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse | Later:
    """Change quotas; each entity has its own answer. One that is named twice is not changed."""
    parts = Gathering(AlterClientQuotasResponse())
    times: Counter[Entity] = Counter(_entity(entry) for entry in request.entries)
    wanted: list[tuple[QuotaChange, EntryDataResponse]] = []
    for entry in request.entries:
        result = _result(entry, ErrorCode.NONE)
        parts.response.entries.append(result)
        try:
            if times[_entity(entry)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the entity is listed more than once")
            wanted.append((_change(entry), result))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
    if request.validate_only:
        wanted.clear()
    for start in range(0, len(wanted), CHANGES_PER_COMMAND):
        some = wanted[start : start + CHANGES_PER_COMMAND]
        parts.expect()
        ctx.server.host.propose_catalog(
            AlterQuotas([change for change, _ in some]),
            deadline_ns=ctx.deadline_ns(_TIMEOUT_MS),
            done=partial(_decided, parts, [result for _, result in some]),
        )
    return parts.result()


def fail_alter_client_quotas(
    request: AlterClientQuotasRequest, _version: int, code: ErrorCode
) -> AlterClientQuotasResponse:
    """Return `code` for each entity."""
    return AlterClientQuotasResponse(entries=[_result(entry, code) for entry in request.entries])


def _entity(entry: Change) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entry.entity)


def _result(entry: Change, code: ErrorCode) -> EntryDataResponse:
    names = [ChangedEntity(part.entity_type, part.entity_name) for part in entry.entity]
    return EntryDataResponse(code, None, names)


def _change(entry: Change) -> QuotaChange:
    """Return the change as in a command. Raises KafkaError for errors found without the catalog."""
    parts = [(part.entity_type, part.entity_name) for part in entry.entity]
    if complaint := entity_complaint(parts):
        raise KafkaError(ErrorCode.INVALID_REQUEST, complaint)
    values: dict[str, float] = {}
    unset: list[str] = []
    for change in entry.ops:
        if change.key in values or change.key in unset:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Duplicate quota key {change.key[:100]}")
        if change.remove:
            unset.append(change.key)
            continue
        if complaint := value_complaint(entity_of(parts), change.key, change.value):
            raise KafkaError(ErrorCode.INVALID_REQUEST, complaint)
        values[change.key] = change.value
    return QuotaChange(parts, values, unset)


def _decided(
    parts: Gathering[AlterClientQuotasResponse],
    results: list[EntryDataResponse],
    outcome: Outcome,
) -> None:
    def fill() -> None:
        if outcome.kind is OutcomeKind.APPLIED:
            for error, result in zip(outcome.result.errors, results, strict=True):
                result.error_code = error
                if error is ErrorCode.POLICY_VIOLATION:
                    result.error_message = (
                        "the quotas of the cluster have reached their maximum size; remove "
                        "some first"
                    )
        else:
            for result in results:
                result.error_code, result.error_message = undecided(outcome)
        parts.arrived()

    parts.later.run(fill)
