"""Quota on changes of topics: partitions that are created or deleted (KIP-599).

Newer versions of a request are strict: a topic for which the client's quota is used up is refused
with THROTTLING_QUOTA_EXCEEDED, and the topics before it are changed. Older versions have no such
error: all topics are changed, and the connection is throttled.

Only actual changes count, as in Kafka, whose controller counts after validation. Here the catalog
validates, behind a round of Raft. A change that looks valid from here is counted when it is
requested, and given back if the answer says that it was not made. A change that is certainly
invalid is neither counted nor refused: its client gets the actual error. A request that is only
validated is not counted, either; Kafka's controller counts it, its ZooKeeper mode did not.

Does not depend on what happens to a request that passes.
"""

from __future__ import annotations

from collections import Counter
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
"""API key → first version whose client gets the quota's error for each topic."""
_DELETE_STATES_FROM = 6
_MESSAGE = "The throttling quota has been exceeded."


_UNDONE_UNKNOWN = frozenset(
    {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR}
)
"""Errors of changes that were made, or may have been."""


def take(
    quotas: ClientQuotas, api: Api, ctx: RequestContext, request: Any
) -> tuple[int, Finish | Refused | None]:
    """Count a request's changes, and remove from it those beyond the quota.

    Return the throttle time of the connection (ms), and the filter of the answer or its refusal.
    """
    user, client_id, now_ns = ctx.principal.name, ctx.client_id, ctx.server.clock.now_ns()
    asked = _list_of(api.key, ctx.api_version)
    items = getattr(request, asked)
    is_strict = ctx.api_version >= STRICT_FROM[api.key]
    counts = _counts(ctx, api.key, request, items)
    allowed: list[Any] = []
    refused: list[Any] = []
    taken: dict[str | bytes, int] = {}
    wait_ms = 0
    for item, count in zip(items, counts, strict=True):
        waits_ms = 0
        if count and is_strict:
            waits_ms = quotas.wait_ms(Quota.MUTATION, user, client_id, now_ns)
        if waits_ms:
            wait_ms = waits_ms
            refused.append(item)
            continue
        allowed.append(item)
        if count:
            taken[_name_of(item)] = count
            quotas.use(Quota.MUTATION, user, client_id, count, now_ns)
    answered = _ANSWERED[api.key]
    failure = None
    if refused:
        failure = api.failure(
            replace(request, **{asked: refused}),
            ctx.api_version,
            ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )
        for result in getattr(failure, answered):
            result.error_message = _MESSAGE
        if not allowed:
            return wait_ms, Refused(failure)
        setattr(request, asked, allowed)
    elif not taken:
        return 0, None

    def finish(answer: Any) -> Any:
        now_ns = ctx.server.clock.now_ns()
        undone = 0
        for result in getattr(answer, answered):
            if result.error_code not in _UNDONE_UNKNOWN:
                undone += taken.pop(result.name, 0) or taken.pop(bytes(_id_of(result)), 0)
        quotas.give_back(Quota.MUTATION, user, client_id, undone, now_ns)
        if taken and not is_strict:
            waits_ms = quotas.wait_ms(Quota.MUTATION, user, client_id, now_ns)
            answer.throttle_time_ms = max(answer.throttle_time_ms, waits_ms)
        if failure is not None:
            getattr(answer, answered).extend(getattr(failure, answered))
        return answer

    return wait_ms, finish


class Creation:
    """Topics that are created because a Metadata request named them.

    As with Kafka, whose brokers request them from the controller in the client's name, a topic
    beyond the client's quota is not created: its client gets an unknown topic, and retries.
    """

    def __init__(self, ctx: RequestContext, names: list[str]) -> None:
        self.names: list[str] = []
        """Topics that may be created; their partitions are counted."""
        self.wait_ms = 0
        """Throttle time of the connection."""
        self._ctx = ctx
        self._each = ctx.server.config.num_partitions
        quotas, now_ns = ctx.server.quotas, ctx.server.clock.now_ns()
        who = ctx.principal.name, ctx.client_id
        for name in names:
            if quotas is not None:
                self.wait_ms = quotas.wait_ms(Quota.MUTATION, *who, now_ns)
                if self.wait_ms:
                    break
                quotas.use(Quota.MUTATION, *who, self._each, now_ns)
            self.names.append(name)

    def not_made(self, count: int) -> None:
        """Give back the quota of `count` topics that were not created."""
        ctx = self._ctx
        quotas = ctx.server.quotas
        if quotas is not None:
            now_ns = ctx.server.clock.now_ns()
            amount = count * self._each
            quotas.give_back(Quota.MUTATION, ctx.principal.name, ctx.client_id, amount, now_ns)


def _list_of(key: int, version: int) -> str:
    return "topic_names" if key == _DELETE and version < _DELETE_STATES_FROM else "topics"


_ANSWERED: Mapping[int, str] = {_CREATE: "topics", _DELETE: "responses", _GROW: "results"}


def _name_of(item: Any) -> str | bytes:
    """Return a topic's name in a request, or its id if it has no name."""
    name: str | None = item if isinstance(item, str) else item.name
    return bytes(item.topic_id) if name is None else name


def _id_of(result: Any) -> bytes:
    """Return the id of a result that has no name. Only a deletion's has an id from the request."""
    found: bytes = getattr(result, "topic_id", b"")
    return found


def _counts(ctx: RequestContext, key: int, request: Any, items: list[Any]) -> list[int]:
    """Return the number of partitions that each item changes; 0 if it is known to change none."""
    if getattr(request, "validate_only", False):
        return [0] * len(items)
    times = Counter(map(_name_of, items))
    count = _COUNT[key]
    return [0 if times[_name_of(item)] > 1 else count(ctx, item) for item in items]


def _created(ctx: RequestContext, topic: Any) -> int:
    if find_topic(ctx, topic.name) is not None:
        return 0
    if topic.assignments:
        return len(topic.assignments)
    count: int = topic.num_partitions
    return ctx.server.config.num_partitions if count == -1 else max(0, count)


def _deleted(ctx: RequestContext, topic: Any) -> int:
    found = find_topic(ctx, _name_of(topic))
    return 0 if found is None else len(found.partitions)


def _grown(ctx: RequestContext, topic: Any) -> int:
    found = find_topic(ctx, topic.name)
    return 0 if found is None else max(0, topic.count - len(found.partitions))


_COUNT: Mapping[int, Callable[[RequestContext, Any], int]] = {
    _CREATE: _created,
    _DELETE: _deleted,
    _GROW: _grown,
}
