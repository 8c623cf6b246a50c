"""Which requests are done in parts, so that none holds the loop for long: the one table of it. A
row stands here for each API whose request has a list, and a test fails while one is missing.

A request may have 200,000 elements (`ELEMENTS_MAX`), each of which costs ten microseconds and more
to judge, to do and to answer: seconds, in which a server hears neither its clients nor its peers.
Kafka takes such requests, so they are taken; but what is done of one in a turn of the loop is at
most `PART_ELEMENTS`. The parts go one after the other through permission and handler, as requests
of their own, and their answers are joined (`vdl/kafka/connections/wide_request.py`). Rules and
handlers know nothing of it, but for what a request may do once as a whole: that is kept in its
`RequestContext`, which all parts share.

A row is

* `Parts`, by which of its lists a request may be cut. Of several rows the first counts whose list
  is not empty. What is named twice comes into the same part where an API says that to be wrong;
* `Page`, where an answer may be one page of several;
* or `Whole`: why the request cannot be cut. Then it is refused if it names more than is done at
  once. Such a request makes one command, or one look, and what it may name in good faith is far
  less: what there is in a set.

Must not know: connections, how handlers do their work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from vdl.errors import ErrorCode
from vdl.kafka.configs.options import KafkaOptions

if TYPE_CHECKING:
    from vdl.kafka.context import RequestContext

LOOP_ELEMENTS = 4_000
"""The most of a request that is decoded on the loop: some three milliseconds."""
PART_ELEMENTS = 250
"""Elements of all cut lists together that are done in a turn: 10 ms at the worst."""
PAGE_ELEMENTS = 1_000
"""Of an answer that may be one page of several: they cost less, and each page costs a request."""
WHOLE_ELEMENTS = 10_000
"""Elements of a request that is not cut: some 40 ms, and more than a server has partitions."""
REPLICAS_MAX = KafkaOptions().replicas_per_server_max
"""Of a server, unless its configuration says otherwise."""
TOPICS_TIMES = 3
"""Elements for each replica that a server may have where partitions may each be alone in a topic:
of a Fetch, and of a heartbeat, which also says what it subscribes to."""
REPLICAS_TIMES = 6
"""The same with the replicas of each, which are mere numbers: some milliseconds."""
FIRST = 1
TWO = 2


@dataclass(frozen=True, slots=True)
class Parts:
    """One list of a request, and the list of the response that answers it, element by element."""

    asked: str
    """The list, and the lists in its elements that are cut as well, each behind a dot."""
    answered: str
    """The same of the response."""
    held: tuple[str, ...] = ()
    """Other lists of an element, which are not cut: with one that has more than `WHOLE_ELEMENTS` in
    them the request is refused."""
    named: Callable[[Any], Hashable] | None = None
    """What an element is about. Those about the same are done in one part. None: it makes no
    difference what was named before."""
    kept: int = 0
    """Of elements about the same, so many are done: the others have no answer of their own. 0:
    all."""
    refusal: Callable[[RequestContext, Any], ErrorCode] | None = None
    """The error of a request that asks for too much as a whole. None of it is done."""
    join: Callable[[Any, Any], None] | None = None
    """Add to the joined answer what a part's answer has beside its elements."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to `PAGE_ELEMENTS` of the elements at most, and where the rest begins: the client
    asks again. Rules and handler see to that, of a list that is arranged for them."""

    arrange: Callable[[Any], None]
    """Any thread."""


@dataclass(frozen=True, slots=True)
class Whole:
    """What is done at once or not at all. A request with more than `at_once` elements is refused:
    INVALID_REQUEST wherever its answer has a place for it, a part of it in each turn."""

    why: str
    lists: tuple[Parts, ...]
    """All that is counted. With the list of the response that a refusal fills, element by element;
    empty where the answer has one error for all of them."""
    at_once: int = WHOLE_ELEMENTS
    times: int = 0
    """More may be named where a server may have so many replicas: so many times as many."""
    numbers: tuple[Parts, ...] = ()
    """Lists of mere numbers in those lists, which cost less. With all of `lists` they may be
    `REPLICAS_TIMES` as many as a server may have replicas."""

    def most(self, replicas_max: int) -> int:
        """Return how many elements are done at once by a server of so many replicas at most."""
        return max(self.at_once, self.times * replicas_max)


def _sort_topics(request: Any) -> None:
    """By name, once each, from the one at which the page begins."""
    by_name = {topic.name: topic for topic in request.topics}
    cursor = request.cursor
    first = cursor.topic_name if cursor is not None and cursor.topic_name in by_name else ""
    request.topics = [by_name[name] for name in sorted(by_name) if name >= first]


def names_of_page(request: Any) -> list[str]:
    """Return the names that a page of topics may tell of, sorted, and the one behind them. A list
    that is longer is arranged."""
    return sorted({topic.name for topic in request.topics[: PAGE_ELEMENTS + 1]})


def _join_metadata(joined: Any, answer: Any) -> None:
    """A server may be in the answer of a part because it leads a partition there."""
    told = {broker.node_id for broker in joined.brokers}
    joined.brokers += [broker for broker in answer.brokers if broker.node_id not in told]


def _join_endpoints(joined: Any, answer: Any) -> None:
    """Where the leaders are of what another server leads."""
    told = {endpoint.node_id for endpoint in joined.node_endpoints}
    joined.node_endpoints += [one for one in answer.node_endpoints if one.node_id not in told]


def _entity(entry: Any) -> Hashable:
    return frozenset((part.entity_type, part.entity_name) for part in entry.entity)


def _too_many_partitions(ctx: RequestContext, request: Any) -> ErrorCode:
    """As in `handle_create_topics`, of all parts together."""
    options = ctx.server.config
    partitions = sum(
        len(topic.assignments)
        or (options.num_partitions if topic.num_partitions < 0 else topic.num_partitions)
        for topic in request.topics
    )
    is_too_much = partitions > options.partitions_per_request_max
    return ErrorCode.POLICY_VIOLATION if is_too_much else ErrorCode.NONE


def _too_many_added(ctx: RequestContext, request: Any) -> ErrorCode:
    """As in `handle_create_partitions`, of all parts together."""
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
    """Lists whose elements are not answered one by one when all are refused."""
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
            "topics",
            named=attrgetter("name", "topic_id"),
            kept=FIRST,
            join=_join_metadata,
        ),
    ),
    8: (Parts("topics.partitions", "topics.partitions"),),
    9: (
        Parts("groups.topics.partition_indexes", "groups.topics.partitions"),
        Parts("topics.partition_indexes", "topics.partitions"),
    ),
    10: (Parts("coordinator_keys", "coordinators"),),
    11: _whole(_ONE_COMMAND, "protocols"),
    13: (Parts("members", "members"),),
    14: _whole(_ONE_COMMAND, "assignments"),
    15: (Parts("groups", "groups"),),
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
    32: (Parts("resources", "results", ("configuration_keys",), _RESOURCE, kept=FIRST),),
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
        at_once=LOOP_ELEMENTS,
    ),
    55: _whole("there is one topic to ask for", "topics.partitions"),
    57: _whole("all features are changed by one command, or none", "feature_updates"),
    61: (Parts("topics.partition_indexes", "topics.partitions"),),
    65: (Parts("transactional_ids", "transaction_states"),),
    66: _whole(_FILTER, "state_filters", "producer_id_filters"),
    68: _whole(
        _ONE_COMMAND,
        "subscribed_topic_names",
        "topic_partitions.partitions",
        times=TOPICS_TIMES,
    ),
    69: (Parts("group_ids", "groups"),),
    74: _whole(_FILTER, "resource_types"),
    75: Page(_sort_topics),
    76: _whole(_ONE_COMMAND, "subscribed_topic_names"),
    77: (Parts("group_ids", "groups"),),
    78: _whole(
        _ONE_LOOK,
        "topics.partitions.acknowledgement_batches.acknowledge_types",
        "forgotten_topics_data.partitions",
    ),
    79: _whole(
        "its partitions are those of a session, which are few",
        "topics.partitions.acknowledgement_batches.acknowledge_types",
    ),
    90: (Parts("groups", "groups"),),
    91: _whole(_ONE_COMMAND, "topics.partitions"),
    92: _whole(_ONE_COMMAND, "topics"),
}
"""API key → its row."""
