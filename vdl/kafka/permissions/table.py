"""Table of the permissions that each API needs.

It has a row for each API of `vdl/kafka/api.py`; a test fails if one is missing. A row is a list of
rules (`rules.py`), which a request passes in order before its handler. So handlers do not check
permissions, except for what is not in their request: the partitions of a fetch session are checked
where they are read (`may_read`).

The rules are Kafka's (KafkaApis, ControllerApis, AclApis of 4.3).

Does not depend on how a decision is made (`authorizer.py`), or on connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from vdl.kafka.permissions.group_rules import (
    assigned_topics,
    coordinator_need,
    fetched_offsets,
    group_operations,
    listed_groups,
    offset_delete_refusals,
    one_coordinator,
    subscribed_topics,
)
from vdl.kafka.permissions.rules import (
    Check,
    Each,
    Finish,
    Needs,
    Refused,
    Rule,
    each_group,
    each_topic,
    each_transactional_id,
    needs_group,
    needs_transactional_id,
    of_topics,
    text_of,
)
from vdl.kafka.permissions.share_rules import (
    altered_refusals,
    deleted_refusals,
    described_group,
    described_share_topics,
    each_share_topic,
)
from vdl.kafka.permissions.token_rules import created_token, described_tokens, own_token
from vdl.kafka.permissions.topic_rules import (
    creatable_topics,
    created_topics,
    deleted_topics,
    described_cluster,
    described_topics,
    each_config,
    fetched_partitions,
    metadata,
    producer_id,
    transactional_batches,
)
from vdl.kafka.permissions.transaction_rules import (
    added_partitions,
    described_transactions,
    listed_transactions,
    written_markers,
)
from vdl.state.acls import AclOperation

if TYPE_CHECKING:
    from vdl.kafka.api import Api
    from vdl.kafka.context import RequestContext
    from vdl.kafka.security.authorizer import Authorizer

_O = AclOperation

OPEN: tuple[Rule, ...] = ()
"""Rules of an API that every connected client may use."""

PERMISSIONS: Mapping[int, tuple[Rule, ...]] = {
    0: (
        transactional_batches,
        Each("WRITE on each topic", "topic_data", "responses", of_topics(_O.WRITE)),
    ),
    1: (fetched_partitions,),
    2: (each_topic(_O.DESCRIBE),),
    3: (metadata,),
    8: (needs_group(_O.READ), each_topic(_O.READ)),
    9: (fetched_offsets,),
    10: (
        one_coordinator,
        Each("the same for each of several", "coordinator_keys", "coordinators", coordinator_need),
    ),
    11: (needs_group(_O.READ),),
    12: (needs_group(_O.READ),),
    13: (needs_group(_O.READ),),
    14: (needs_group(_O.READ),),
    15: (
        each_group(_O.DESCRIBE, "groups", "groups"),
        group_operations,
    ),
    16: (listed_groups,),
    17: OPEN,
    18: OPEN,
    19: (creatable_topics, created_topics),
    20: (deleted_topics,),
    21: (each_topic(_O.DELETE),),
    22: (producer_id,),
    23: (
        Each(
            "DESCRIBE on each topic",
            "topics",
            "topics",
            of_topics(_O.DESCRIBE, "topic"),
            unless=_O.CLUSTER_ACTION,
        ),
    ),
    24: (added_partitions,),
    25: (needs_transactional_id(), needs_group(_O.READ)),
    26: (needs_transactional_id(),),
    27: (written_markers,),
    28: (needs_transactional_id(), needs_group(_O.READ), each_topic(_O.READ)),
    29: (Needs(_O.DESCRIBE),),
    30: (Needs(_O.ALTER),),
    31: (Needs(_O.ALTER),),
    32: (each_config(_O.DESCRIBE_CONFIGS, "results"),),
    33: (each_config(_O.ALTER_CONFIGS, "responses"),),
    34: (Needs(_O.ALTER),),
    35: (Needs(_O.DESCRIBE),),
    36: OPEN,
    37: (each_topic(_O.ALTER, "results"),),
    38: (created_token,),
    39: (own_token,),
    40: (own_token,),
    41: (described_tokens,),
    42: (each_group(_O.DELETE, "groups_names", "results"),),
    43: (Needs(_O.ALTER),),
    44: (each_config(_O.ALTER_CONFIGS, "responses"),),
    45: (Needs(_O.ALTER),),
    46: (Needs(_O.DESCRIBE),),
    47: (needs_group(_O.DELETE), each_topic(_O.READ, refusals=offset_delete_refusals)),
    48: (Needs(_O.DESCRIBE_CONFIGS),),
    49: (Needs(_O.ALTER_CONFIGS),),
    50: (Needs(_O.DESCRIBE),),
    51: (Needs(_O.ALTER),),
    55: (Needs(_O.DESCRIBE),),
    57: (Needs(_O.ALTER),),
    60: (described_cluster,),
    61: (each_topic(_O.READ),),
    64: (Needs(_O.ALTER),),
    65: (
        each_transactional_id(_O.DESCRIBE, "transactional_ids", "transaction_states"),
        described_transactions,
    ),
    66: (listed_transactions,),
    68: (needs_group(_O.READ), subscribed_topics),
    69: (each_group(_O.DESCRIBE, "group_ids", "groups"), assigned_topics, group_operations),
    71: OPEN,
    72: OPEN,
    74: (Needs(_O.DESCRIBE_CONFIGS),),
    75: (described_topics,),
    76: (needs_group(_O.READ), subscribed_topics),
    77: (each_group(_O.DESCRIBE, "group_ids", "groups"), assigned_topics, group_operations),
    78: (needs_group(_O.READ), fetched_partitions),
    79: (needs_group(_O.READ), fetched_partitions),
    90: (
        Each("DESCRIBE on each group", "groups", "groups", described_group),
        described_share_topics,
    ),
    91: (needs_group(_O.READ), each_share_topic(altered_refusals)),
    92: (needs_group(_O.DELETE), each_share_topic(deleted_refusals)),
}
"""Rules by API key."""

CHANGES = frozenset(
    {19, 20, 21, 29, 30, 31, 33, 34, 37, 38, 39, 40, 42, 43, 44, 45, 47, 49, 51, 57, 64, 91, 92}
)
"""APIs of which each use is noted in the audit log; of the others, a connection's first use is."""


def described() -> Iterator[tuple[int, str]]:
    """Yield (API key, description of what it needs), for docs/secure.md."""
    for key, rules in sorted(PERMISSIONS.items()):
        texts = [text for rule in rules if (text := text_of(rule))]
        yield key, "; ".join(texts) or "nothing"


def check_request(
    authorizer: Authorizer, api: Api, ctx: RequestContext, request: Any
) -> tuple[Finish, ...] | Refused:
    """Pass a request through the rules of its API.

    Remove from it what the client may not have. Return the filters that the answer must pass, last
    one first.
    """
    finishes: list[Finish] = []
    check = Check(authorizer, api, ctx, request, is_change=api.key in CHANGES)
    for rule in PERMISSIONS[api.key]:
        outcome = rule(check)
        if isinstance(outcome, Refused):
            answer = finished(outcome.answer, finishes)
            check.note()
            return Refused(answer)
        if outcome is not None:
            finishes.append(outcome)
    check.note()
    if finishes and ctx.server.audit is not None:
        finishes.insert(0, partial(_noted, check))
    return tuple(finishes)


def _noted(check: Check, answer: Any) -> Any:
    """Log the decisions about the answer, after all other filters."""
    check.note()
    return answer


def finished(answer: Any, finishes: Iterable[Finish]) -> Any:
    """Return the answer that is sent: `answer` after all filters."""
    for finish in reversed(list(finishes)):
        answer = finish(answer)
    return answer
