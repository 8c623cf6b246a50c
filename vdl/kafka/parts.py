"""Table of the requests that are processed in parts, so that none blocks the loop for long. Each
API whose request has a list has a row here; a test fails if one is missing.

A request may have 200,000 elements (`ELEMENTS_MAX`), each of which costs ten microseconds or more
to authorize, process and answer: seconds, in which a server would not serve its clients and peers.
Kafka accepts such requests, so they are accepted; but at most `PART_ELEMENTS` of one are processed
in a turn of the loop. The parts go one after the other through permission and handler, as requests
of their own, and their answers are joined (`vdl/kafka/connections/wide_request.py`). Rules and
handlers do not see this, except for bounds of the request as a whole: these are kept in its
`RequestContext`, which all parts share.

A row is one of

* `Parts`: the list by which a request may be cut. The first of several rows whose list is not
  empty counts. Duplicates are put into the same part if the API treats them as an error;
* `Page`: the answer may be one page of several;
* `Whole`: the reason why the request cannot be cut. It is refused if it names more than is
  processed at once. Such a request makes one command, or one look-up, and a legitimate one names
  far less: only what exists in a set.

Does not depend on connections, or on the work of handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions

if TYPE_CHECKING:
    from vdl.kafka.context import RequestContext

LOOP_ELEMENTS = 500
"""Most elements of a request that is decoded on the loop: some 0.4 ms."""
PART_ELEMENTS = 250
"""Most elements of all cut lists together that are processed in a turn: at most 10 ms. A request
with no more is not cut."""
FIRST_ELEMENTS = 32
"""Elements of the first part of one that is cut. Further parts have as many as take `PART_NS`."""
PART_NS = MS // 8
"""Time of the loop that a part should take."""
PAGE_ELEMENTS = 1_000
"""Elements of an answer that may be one page of several: they cost less, and each page costs a
request."""
WHOLE_ELEMENTS = 10_000
"""Elements of a request that is not cut: some 40 ms, and more than a server has partitions."""
REPLICAS_MAX = KafkaOptions().replicas_per_server_max
"""Replicas of a server, unless its configuration changes it."""
TOPICS_TIMES = 3
"""Elements for each replica that a server may have, if each partition may be alone in a topic: of a
Fetch, and of a heartbeat, which also contains subscriptions."""
REPLICAS_TIMES = 6
"""The same including the replicas of each, which are only numbers: some milliseconds."""
FIRST = 1
TWO = 2


class PartSize:
    """Number of elements of the next part."""

    __slots__ = ("elements",)

    def __init__(self, elements: int) -> None:
        self.elements = elements

    def took(self, part_ns: int, fits_ns: int = PART_NS) -> None:
        """Adapt the size, because a part took `part_ns` of the loop, where `fits_ns` fit."""
        fits = self.elements * fits_ns // max(part_ns, 1)
        self.elements = max(1, min(fits, 2 * self.elements, PART_ELEMENTS))


@dataclass(frozen=True, slots=True)
class Parts:
    """One list of a request, and the list of the response that answers it, element by element."""

    asked: str
    """The list, and the lists in its elements that are cut as well, each behind a dot."""
    answered: str
    """The same of the response."""
    held: tuple[str, ...] = ()
    """Other lists of an element, which are not cut: if they have more than `WHOLE_ELEMENTS`, the
    request is refused."""
    named: Callable[[Any], Hashable] | None = None
    """Key of an element. Elements with the same key are processed in one part. None: duplicates
    make no difference."""
    kept: int = 0
    """Number of elements with the same key that are processed: further ones have no answer of their
    own. 0: all."""
    refusal: Callable[[RequestContext, Any], ErrorCode] | None = None
    """Returns the error of a request that is too large as a whole. Then none of it is processed."""
    join: Callable[[Any, Any], None] | None = None
    """Adds the fields of a part's answer beside its elements to the joined answer."""
    is_large: bool = False
    """True if an element may cost much more than others, or have an answer of thousands of
    elements: a group, a transaction. Then several are not processed at once, and the first part has
    one."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer for at most `PAGE_ELEMENTS` elements, with the start of the rest, which the client
    requests next. Rules and handler keep the bound, for a list that is arranged for them."""

    arrange: Callable[[Any], None]
    """Sorts the list. Runs in any thread."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A request that is processed at once or not at all. One with more than `at_once` elements is
    refused: INVALID_REQUEST at each place in its answer for an error, filled in parts."""

    why: str
    lists: tuple[Parts, ...]
    """All lists that are counted. With the list of the response that a refusal fills, element by
    element; empty if the answer has one error for all of them."""
    at_once: int = WHOLE_ELEMENTS
    times: int = 0
    """More may be named if a server may have many replicas: up to this multiple of them."""
    numbers: tuple[Parts, ...] = ()
    """Lists of numbers in those lists, which cost less. Together with `lists` they may have up to
    `REPLICAS_TIMES` times the replicas that a server may have."""

    def most(self, replicas_max: int) -> int:
        """Return how many elements are processed at once by a server of up to `replicas_max`
        replicas."""
        return max(self.at_once, self.times * replicas_max)


def _sort_topics(request: Any) -> None:
    """Sort topics by name, without duplicates, from the one at which the page begins."""
    by_name = {topic.name: topic for topic in request.topics}
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None and cursor.topic_name in by_name else ""
    request.topics = [by_name[name] for name in sorted(by_name) if name >= first]


def names_of_page(request: Any) -> list[str]:
    """Return the names that a page of topics may contain, sorted, and the one behind them. A longer
    list is already arranged."""
    return sorted({topic.name for topic in request.topics[: PAGE_ELEMENTS + 1]})


def _join_metadata(joined: Any, answer: Any) -> None:
    """Add brokers: the answer of a part contains the leaders of its partitions."""
    told = {broker.node_id for broker in joined.brokers}
    joined.brokers += [broker for broker in answer.brokers if broker.node_id not in told]


def _join_endpoints(joined: Any, answer: Any) -> None:
    """Add endpoints: those of leaders on other servers."""
    told = {endpoint.node_id for endpoint in joined.node_endpoints}
    joined.node_endpoints += [one for one in answer.node_endpoints if one.node_id not in told]


def _entity(entry: Any) -> Hashable:
    return frozenset((part.entity_type, part.entity_name) for part in entry.entity)


def _too_many_partitions(ctx: RequestContext, request: Any) -> ErrorCode:
    """Apply the bound of `handle_create_topics` to all parts together."""
    options = ctx.server.config
    partitions = sum(
        len(topic.assignments)
        or (options.num_partitions if topic.num_partitions < 0 else topic.num_partitions)
        for topic in request.topics
    )
    is_too_much = partitions > options.partitions_per_request_max
    return ErrorCode.POLICY_VIOLATION if is_too_much else ErrorCode.NONE


def _too_many_added(ctx: RequestContext, request: Any) -> ErrorCode:
    """Apply the bound of `handle_create_partitions` to all parts together."""
    known = ctx.server.host.catalog.topics
    added = sum(
        max(0, topic.count - len(known[topic.name].partitions))
        for topic in request.topics
        if topic.name in known
    )
    is_too_much = added > ctx.server.config.partitions_per_request_max
    return ErrorCode.POLICY_VIOLATION if is_too_much else ErrorCode.NONE


_PARTITIONS = Parts("topics.partitions", "topics.partitions", named=attrgetter("name"))
_RESOURCE = attrgetter("resource_type", "resource_name")

_ONE_COMMAND = "one command of its coordinator: all of it is done, or nothing"
_FILTER = "a filter: each element costs a comparison, and none is judged or answered"
_ONE_LOOK = "one look at all partitions, which may wait for any of them"


def _whole(why: str, *lists: str, times: int = 0) -> Whole:
    """Return a `Whole` of lists whose elements are not answered one by one if it is refused."""
    return Whole(why, tuple(Parts(asked, "") for asked in lists), times=times)


PARTS: Mapping[int, tuple[Parts | Whole, ...] | Page | Whole] = {
    0: (
        Parts(
            "topic_data.partition_data",
            "responses.partition_responses",
            join=_join_endpoints,
        ),
    ),
    1: Whole(
        _ONE_LOOK,
        (
            Parts("topics.partitions", "responses.partitions"),
            Parts("forgotten_topics_data.partitions", ""),
        ),
        times=TOPICS_TIMES,
    ),
    2: (_PARTITIONS,),
    3: (
        Parts(
            "topics",
            "topics.partitions",
            named=attrgetter("name", "topic_id"),
            kept=FIRST,
            join=_join_metadata,
        ),
    ),
    8: (Parts("topics.partitions", "topics.partitions"),),
    9: (
        Parts("groups.topics.partition_indexes", "groups.topics.partitions", is_large=True),
        Parts("topics.partition_indexes", "topics.partitions"),
    ),
    10: (Parts("coordinator_keys", "coordinators"),),
    11: _whole(_ONE_COMMAND, "protocols"),
    13: (Parts("members", "members"),),
    14: _whole(_ONE_COMMAND, "assignments"),
    15: (Parts("groups", "groups.members", is_large=True),),
    16: _whole(_FILTER, "states_filter", "types_filter"),
    19: (
        Parts(
            "topics",
            "topics",
            ("assignments.broker_ids", "configs"),
            attrgetter("name"),
            kept=TWO,
            refusal=_too_many_partitions,
        ),
    ),
    20: (
        Parts("topics", "responses", named=attrgetter("name", "topic_id"), kept=TWO),
        Parts("topic_names", "responses", named=str, kept=TWO),
    ),
    21: (_PARTITIONS,),
    23: (Parts("topics.partitions", "topics.partitions"),),
    24: (
        Whole(
            "all partitions are added to the transaction, or none",
            (
                Parts(
                    "v3_and_below_topics.partitions",
                    "results_by_topic_v3_and_below.results_by_partition",
                ),
            ),
        ),
        Whole(
            "of brokers, which are none here: each transaction is a command, all or nothing",
            (Parts("transactions.topics.partitions", ""),),
            at_once=WHOLE_ELEMENTS // 5,
        ),
    ),
    27: (Parts("markers.topics.partition_indexes", "markers.topics.partitions"),),
    28: (Parts("topics.partitions", "topics.partitions"),),
    30: (Parts("creations", "results"),),
    31: (Parts("filters", "filter_results"),),
    32: (
        Parts(
            "resources",
            "results",
            ("configuration_keys",),
            _RESOURCE,
            kept=FIRST,
            is_large=True,
        ),
    ),
    33: (Parts("resources", "responses", ("configs",), _RESOURCE, kept=TWO),),
    34: Whole(
        "there is one directory, and what is named twice has one answer",
        (Parts("dirs.topics.partitions", "results.partitions"),),
    ),
    35: _whole(_FILTER, "topics.partitions"),
    37: (
        Parts(
            "topics",
            "results",
            ("assignments.broker_ids",),
            attrgetter("name"),
            kept=TWO,
            refusal=_too_many_added,
        ),
    ),
    38: _whole("one token: those who may renew it are a field of it", "renewers"),
    41: _whole(_FILTER, "owners"),
    42: (Parts("groups_names", "results"),),
    43: (Parts("topic_partitions.partitions", "replica_election_results.partition_result"),),
    44: (Parts("resources", "responses", ("configs",), _RESOURCE, kept=TWO),),
    45: Whole(
        "an error of the catalog is one for all of it",
        (Parts("topics.partitions", ""),),
        numbers=(Parts("topics.partitions.replicas", ""),),
    ),
    46: _whole(_FILTER, "topics.partition_indexes"),
    47: (Parts("topics.partitions", "topics.partitions"),),
    48: _whole(_FILTER, "components"),
    49: (Parts("entries", "entries", ("entity", "ops"), _entity),),
    50: (Parts("users", "results", named=attrgetter("name"), kept=TWO),),
    51: Whole(
        "all credentials are changed by one command",
        (Parts("deletions", "results"), Parts("upsertions", "results")),
        at_once=WHOLE_ELEMENTS * 2 // 5,
    ),
    55: _whole("there is one topic to ask for", "topics.partitions"),
    57: _whole("all features are changed by one command, or none", "feature_updates"),
    61: (Parts("topics.partition_indexes", "topics.partitions"),),
    65: (Parts("transactional_ids", "transaction_states", is_large=True),),
    66: _whole(_FILTER, "state_filters", "producer_id_filters"),
    68: _whole(
        _ONE_COMMAND,
        "subscribed_topic_names",
        "topic_partitions.partitions",
        times=TOPICS_TIMES,
    ),
    69: (Parts("group_ids", "groups.members", is_large=True),),
    74: _whole(_FILTER, "resource_types"),
    75: Page(_sort_topics),
    76: _whole(_ONE_COMMAND, "subscribed_topic_names"),
    77: (Parts("group_ids", "groups.members", is_large=True),),
    78: _whole(
        _ONE_LOOK,
        "topics.partitions.acknowledgement_batches.acknowledge_types",
        "forgotten_topics_data.partitions",
    ),
    79: _whole(
        "its partitions are those of a session, which are few",
        "topics.partitions.acknowledgement_batches.acknowledge_types",
    ),
    90: (Parts("groups", "groups", is_large=True),),
    91: _whole(_ONE_COMMAND, "topics.partitions"),
    92: _whole(_ONE_COMMAND, "topics"),
}
"""API key → its row."""
LARGE_ELEMENTS = frozenset(
    key
    for key, rows in PARTS.items()
    if isinstance(rows, tuple) and any(isinstance(row, Parts) and row.is_large for row in rows)
)
"""APIs of which also a short request may be cut."""
