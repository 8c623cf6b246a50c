"""The quota on changes of topics: partitions that are made or deleted (KIP-599).

Newer versions of a request are strict: a topic for which the client has nothing left is refused
with THROTTLING_QUOTA_EXCEEDED, and those before it are done. Older ones have no place for that: all
is done, and the connection waits.

Only what is changed counts, as in Kafka, whose controller counts once it has found nothing wrong.
Here the catalog decides that, behind a round of Raft: what looks right from here is counted when it
is asked for, and given back if the answer says that it was not done. What is certainly wrong is
neither counted nor refused: its client is told what is wrong. Nor is what is only to be validated;
Kafka's controller counts that, its ZooKeeper mode did not.

Must not know: what becomes of a request that is let through.
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
"""API key → the version from which its client is told of the quota topic by topic."""
_DELETE_STATES_FROM = 6
_MESSAGE = "The throttling quota has been exceeded."


_UNDONE_UNKNOWN = frozenset(
    {ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_SERVER_ERROR}
)
"""Answers of what was done, or may have been."""


def take(
    quotas: ClientQuotas, api: Api, ctx: RequestContext, request: Any
) -> tuple[int, Finish | Refused | None]:
    """Count a request's changes, and take out of it what is too much. For how many milliseconds the
    connection is to wait, and what becomes of the answer."""
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
    """Topics that are made because a client asked for them (Metadata). As with Kafka, whose brokers
    ask the controller for them in the client's name, one for which the client has nothing left is
    not made: its client is told that there is none, and asks again."""

    def __init__(self, ctx: RequestContext, names: list[str]) -> None:
        self.names: list[str] = []
        """Those that may be made; their partitions are counted."""
        self.wait_ms = 0
        """For how long the connection is to wait."""
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
        """So many of them were not made after all."""
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
    """What a topic is called in a request: by name, or by id."""
    name: str | None = item if isinstance(item, str) else item.name
    return bytes(item.topic_id) if name is None else name


def _id_of(result: Any) -> bytes:
    """What it is called in the answer, if not by name. Only a deletion's has an id that was asked
    for."""
    found: bytes = getattr(result, "topic_id", b"")
    return found


def _counts(ctx: RequestContext, key: int, request: Any, items: list[Any]) -> list[int]:
    """How many partitions each item changes; 0: none, as is known already."""
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
