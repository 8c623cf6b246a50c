"""The quota on changes of topics: partitions that are made or deleted (KIP-599).

Newer versions of a request are strict: a topic for which the client has nothing left is refused
with THROTTLING_QUOTA_EXCEEDED, and those before it are done. Older ones have no place for that: all
is done, and the connection waits.

Must not know: what becomes of a request that is let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from vdl.errors import ErrorCode
from vdl.kafka.api import Api
from vdl.kafka.context import RequestContext
from vdl.kafka.limits.client_quotas import ClientQuotas, Quota
from vdl.kafka.lookup import find_topic
from vdl.kafka.permissions.rules import Finish, Refused

_CREATE, _DELETE, _GROW = 19, 20, 37
STRICT_FROM: Mapping[int, int] = {_CREATE: 6, _DELETE: 5, _GROW: 3}
"""API key → the version from which its client is told of the quota topic by topic."""
_DELETE_STATES_FROM = 6
_MESSAGE = "The throttling quota has been exceeded."


def take(
    quotas: ClientQuotas, api: Api, ctx: RequestContext, request: Any
) -> tuple[int, Finish | Refused | None]:
    """Count a request's changes, and take out of it what is too much. For how many milliseconds the
    connection is to wait, and what becomes of the answer."""
    user, client_id, now_ns = ctx.principal.name, ctx.client_id, ctx.server.clock.now_ns()
    asked = _list_of(api.key, ctx.api_version)
    count = _COUNT[api.key]
    is_strict = ctx.api_version >= STRICT_FROM[api.key]
    allowed: list[Any] = []
    refused: list[Any] = []
    wait_ms = 0
    for item in getattr(request, asked):
        waits_ms = quotas.wait_ms(Quota.MUTATION, user, client_id, now_ns) if is_strict else 0
        if waits_ms:
            wait_ms = waits_ms
            refused.append(item)
            continue
        allowed.append(item)
        waits_ms = quotas.use(Quota.MUTATION, user, client_id, count(ctx, item), now_ns)
        if not is_strict:
            wait_ms = waits_ms
    if not refused:
        return wait_ms, None
    answered = "results" if api.key == _GROW else "responses" if api.key == _DELETE else "topics"
    failure = api.failure(
        replace(request, **{asked: refused}), ctx.api_version, ErrorCode.THROTTLING_QUOTA_EXCEEDED
    )
    for result in getattr(failure, answered):
        result.error_message = _MESSAGE
    if not allowed:
        return wait_ms, Refused(failure)
    setattr(request, asked, allowed)

    def finish(answer: Any) -> Any:
        getattr(answer, answered).extend(getattr(failure, answered))
        return answer

    return wait_ms, finish


def _list_of(key: int, version: int) -> str:
    return "topic_names" if key == _DELETE and version < _DELETE_STATES_FROM else "topics"


def _created(ctx: RequestContext, topic: Any) -> int:
    if topic.assignments:
        return len(topic.assignments)
    count: int = topic.num_partitions
    return ctx.server.config.num_partitions if count < 0 else count


def _deleted(ctx: RequestContext, topic: Any) -> int:
    key = topic if isinstance(topic, str) else topic.name
    found = find_topic(ctx, bytes(topic.topic_id) if key is None else key)
    return 0 if found is None else len(found.partitions)


def _grown(ctx: RequestContext, topic: Any) -> int:
    found = find_topic(ctx, topic.name)
    return 0 if found is None else max(0, topic.count - len(found.partitions))


_COUNT: Mapping[int, Callable[[RequestContext, Any], int]] = {
    _CREATE: _created,
    _DELETE: _deleted,
    _GROW: _grown,
}
