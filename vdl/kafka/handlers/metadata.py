"""Metadata (key 3) and DescribeTopicPartitions (key 75): servers, topics, and leaders.

* v0: no topic means all topics; from v1 on null means all and none means none.
* v4: the client may forbid creation. v5: offline replicas. v7: leader epochs (KIP-320).
  v10: topic ids in the answer, v12: in the request (KIP-516). v13: an error of its own (KIP-1102).

All data comes from this server's applied catalog, and from the leader lists of its links, which are
fresh without a write anywhere. The set of in-sync replicas is the one last reported by the
partition's leader (`vdl/logstream/group/in_sync_replicas.py`). A replica is offline if this server
has no link to its server. The handlers list all operations as allowed; with access control, the
rules of `permissions.topic_rules` correct that in the answer.

An unknown topic is created if client and server allow it. The answer then waits a moment for its
leaders; if they take longer, the client gets LEADER_NOT_AVAILABLE and retries, as with Kafka. Any
answer waits as long for the leaders of partitions of which this server has just learned: another
server may know of them already, and have answered the creation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from ids import NO_LEADER, GroupId, ServerId
from vdl.clock import MS, NEVER
from vdl.errors import ErrorCode
from vdl.kafka.answer import InParts, Later, Place, Unbuilt, pages_of_lists
from vdl.kafka.context import RequestContext
from vdl.kafka.handlers.leaders import when_led
from vdl.kafka.host import Host
from vdl.kafka.lookup import (
    INTERNAL_IDS,
    INTERNAL_NAMES,
    NO_TOPIC_ID,
    Topic,
    all_topics,
    endpoint,
    find_topic,
)
from vdl.kafka.parts import PAGE_ELEMENTS, PART_ELEMENTS, names_of_page
from vdl.kafka.permissions.mutation_quota import Creation
from vdl.kafka.wire import describe_topic_partitions as described
from vdl.kafka.wire.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.state.commands import CreateTopics, NewTopic
from vdl.state.topic_names import topic_name_complaint

CATALOG_GROUP: Final = GroupId(0)
_NULL_IS_ALL_FROM = 1
_CREATION_CHOICE_FROM = 4
_LISTENER_ERROR_FROM = 6
_IDS_IN_REQUEST_FROM = 12
_CREATE_TIMEOUT_MS = 5_000
_SUCCESSOR_NS_MAX = 150 * MS
"""Time that an answer waits for successors of leaders. The requests behind it on the
connection wait, too, so it is not much more than an election takes."""
NOT_ASKED = -(1 << 31)
"""Value of the allowed operations if the request does not include them."""


def _operations(*numbers: int) -> int:
    return sum(1 << number for number in numbers)


TOPIC_OPERATIONS = _operations(3, 4, 5, 6, 7, 8, 10, 11)
"""All operations on a topic, as a bit field of Kafka's AclOperation (KIP-430)."""
CLUSTER_OPERATIONS = _operations(5, 7, 8, 9, 10, 11, 12)
"""All operations on a cluster."""
_PARTITION_BYTES = 50
"""Size of a partition in an answer, with three replicas."""
_PARTITIONS_DESCRIBED_MAX = 500
"""Partitions of one page, which is made in one turn: 5 ms. A client requests the next one with the
cursor that it is given. (`max.request.partition.size.limit` of Kafka is 2,000.)"""


class View:
    """Cluster as one request sees it: leaders, reachable servers, addresses."""

    __slots__ = (
        "_reports_loss", "_unreachable", "alive", "ctx", "is_cut_off", "is_heard", "leaderless",
        "leaders", "lost_ns", "replaced",
    )  # fmt: skip

    def __init__(self, ctx: RequestContext, *, is_heard: bool = True) -> None:
        """`is_heard`: a majority of the catalog's voters has just answered this server."""
        self.ctx = ctx
        self.is_heard = is_heard
        self.leaderless = 0
        """Partitions in the answer without a known leader."""
        host = ctx.server.host
        voters = host.catalog.voters
        self.alive = set(host.alive_servers())
        self.is_cut_off = 2 * len(self.alive.intersection(voters)) <= len(voters)
        """True if this server is linked to no majority of the catalog's voters, so the set of
        running servers is unknown. Then all servers are listed: clients that receive only this
        server (sarama, kafka-python, Java) forget the others and never contact them."""
        self.leaders: set[int] = set()
        self.lost_ns = 0
        """Time of the latest leader failure that this answer reports (monotonic ns)."""
        self._reports_loss = host.leader_lost_ns > ctx.loss_reported_ns
        """True if leaders may have failed since the last failure that was reported to this
        client."""
        self._unreachable: set[ServerId] = set()
        """Leaders that clients of this listener cannot reach."""
        self.replaced: set[ServerId] = set()
        """Failed servers whose successors this answer reports to the client."""

    def may_be_alive(self, server_id: ServerId) -> bool:
        """Return True if this server is linked to that one, or to too few to know."""
        return self.is_cut_off or server_id in self.alive

    def controller_id(self) -> int:
        """Return the id of the catalog's leader, or of this server while no leader is known.

        Every server forwards commands (KIP-590), and a client without a controller may wait for one
        without asking again.
        """
        leader, _term = self.ctx.server.host.leader_of(CATALOG_GROUP)
        return leader if leader >= 0 else self.ctx.server.host.server_id

    def partition(self, group_id: GroupId, index: int) -> MetadataResponsePartition:
        """Return one partition. A leader that clients of this listener cannot reach is left out."""
        host = self.ctx.server.host
        leader, term = led = host.leader_of(group_id)
        moving = host.catalog.reassignment(group_id)
        if moving is None:
            replicas = [replica.server_id for replica in host.catalog.replicas(group_id)]
        else:
            replicas = moving.replicas  # including those that are being removed (KIP-455)
        error = ErrorCode.NONE
        if self._reports_loss:
            self._report_loss(group_id, is_led=leader >= 0)
        if leader < 0:
            self.leaderless += 1
            error = ErrorCode.LEADER_NOT_AVAILABLE
        elif leader not in self.leaders and not self._reaches(leader):
            leader = NO_LEADER[0]
            error = ErrorCode.LEADER_NOT_AVAILABLE
            if self.ctx.api_version >= _LISTENER_ERROR_FROM:
                error = ErrorCode.LISTENER_NOT_FOUND
        else:
            self.leaders.add(leader)
        in_sync = host.in_sync_under(group_id, led)
        alive = self.alive
        return MetadataResponsePartition(
            error,
            index,
            leader,
            term,
            [*replicas],
            [server for server in replicas if server in in_sync],
            [] if self.is_cut_off else [server for server in replicas if server not in alive],
        )

    def _reaches(self, leader: ServerId) -> bool:
        """Return True if clients of this listener reach the leader; looked up once for each
        leader."""
        if leader not in self._unreachable and endpoint(self.ctx, leader) is None:
            self._unreachable.add(leader)
        return leader not in self._unreachable

    def _report_loss(self, group_id: GroupId, *, is_led: bool) -> None:
        """Report once to this client that the leader failed with its server.

        If one answer has the new leader and lacks the old server, librdkafka loses the partition
        for a second: it assigns the partition to the new leader, and then removes that assignment
        as the old server disappears. So the old server stays in the first answer with the new
        leader.
        """
        lost_ns, server_id = self.ctx.server.host.lost_leader(group_id)
        self.lost_ns = max(self.lost_ns, lost_ns)
        if is_led and lost_ns > self.ctx.loss_reported_ns:
            self.replaced.add(server_id)

    def partitions(self, topic: Topic) -> Iterator[MetadataResponsePartition]:
        """Yield all partitions of a topic."""
        for index, group_id in enumerate(topic.partitions):
            yield self.partition(group_id, index)

    def brokers(self) -> list[MetadataResponseBroker]:
        """Return the servers to which clients may connect.

        Those are the servers linked to this one, the leaders in the answer, and failed servers that
        are listed for the last time.
        """
        found = []
        for server_id, server in sorted(self.ctx.server.host.catalog.servers.items()):
            address = server.listeners.get(self.ctx.connection.listener)
            if (
                address is not None
                and not self._is_left_out(server_id)
                and (
                    self.may_be_alive(server_id)
                    or server_id in self.leaders
                    or server_id in self.replaced
                )
            ):
                host, port = address
                found.append(MetadataResponseBroker(server_id, host, port, server.rack or None))
        return found

    def _is_left_out(self, server_id: ServerId) -> bool:
        """Return True if this server should be left out of its own answer.

        That is the case if it knows no leader of some partition, no majority answered it, and other
        servers may be alive. librdkafka keeps querying any server that it is connected to. A server
        whose peers are all certainly gone stays in: clients have no other server.
        """
        host = self.ctx.server.host
        return (
            server_id == host.server_id
            and not self.is_heard
            and self.leaderless > 0
            and server_id not in self.leaders
            and any(
                other != server_id and endpoint(self.ctx, other) is not None
                for other in self.alive | host.silent_servers()
            )
        )


Told = tuple[MetadataResponseTopic, Topic | None]
"""A topic in the answer, without its partitions; and the topic, unless it is unknown."""


def handle_metadata(ctx: RequestContext, request: MetadataRequest) -> MetadataResponse | Later:
    """Return servers and topics; create missing topics if requested."""
    asked = request.topics
    if asked is None or _asks_for_all(ctx, request):
        return _confirmed(ctx, request, None, lambda: _everything(ctx, request))
    if ctx.api_version < _IDS_IN_REQUEST_FROM and any(
        topic.name is None or topic.topic_id != NO_TOPIC_ID for topic in asked
    ):
        return fail_metadata(request, ctx.api_version, ErrorCode.INVALID_REQUEST)
    may_create = ctx.server.config.auto_create_topics and (
        ctx.api_version < _CREATION_CHOICE_FROM or request.allow_auto_topic_creation
    )
    if may_create:
        known = ctx.server.host.catalog.topics
        missing = sorted(
            {
                topic.name
                for topic in asked
                if topic.name is not None
                and topic.topic_id == NO_TOPIC_ID
                and topic.name not in known
                and topic.name not in INTERNAL_NAMES
                and not topic_name_complaint(topic.name)
                and not ctx.server.host.catalog.names.colliding(topic.name)
            }
        )
        if missing:
            # Topics beyond one command are treated as unknown, and the client retries.
            options = ctx.server.config
            fit = max(1, options.partitions_per_request_max // options.num_partitions)
            return _create(ctx, request, asked, Creation(ctx, missing[:fit]))
    return _confirmed(
        ctx, request, lambda: _found(ctx, asked), lambda: _some(ctx, request, asked, {})
    )


def _asks_for_all(ctx: RequestContext, request: MetadataRequest) -> bool:
    asked = request.topics
    return asked is None or (not asked and ctx.api_version < _NULL_IS_ALL_FROM)


def fail_metadata(request: MetadataRequest, version: int, code: ErrorCode) -> MetadataResponse:
    """Return `code` for the whole request, for each topic before v13."""
    if version >= 13:
        return MetadataResponse(error_code=code)
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id)
            for topic in request.topics or ()
        ]
    )


def _confirmed(
    ctx: RequestContext,
    request: MetadataRequest,
    topics: Callable[[], Iterable[Topic]] | None,
    told: Callable[[], Iterator[Told]],
) -> Later:
    """Answer once new partitions have leaders, the set of running servers is certain, and leaders
    that are lost or give way have successors.

    Clients send Metadata when they lose their connection to a leader. An answer with that leader,
    or with none, costs them up to a second. In Kafka a leadership moves in one step, but here there
    is none during the election. `topics`: those in the answer; None for all.
    """
    later = Later()
    server = ctx.server

    def confirmed(is_heard: bool) -> None:
        def answer_now() -> None:
            later.complete(_answer(ctx, request, told, is_heard=is_heard))

        if later.cancelled:
            return
        host, now_ns = server.host, server.clock.now_ns()
        is_electing = host.unled_ns and now_ns - host.unled_ns < _SUCCESSOR_NS_MAX
        if not is_electing and host.leader_lost_ns <= ctx.loss_reported_ns:
            answer_now()
            return
        shown = all_topics(ctx) if topics is None else topics()
        if is_electing:
            groups = _electing(host, (group for topic in shown for group in topic.partitions))
        else:
            groups = _lost_unreported(ctx, shown)
        deadline_ns = now_ns + _SUCCESSOR_NS_MAX
        when_led(server, groups, deadline_ns=deadline_ns, later=later, done=answer_now)

    def all_led() -> None:
        server.host.confirm_links(confirmed)

    _when_new_are_led(ctx, topics, later=later, done=all_led)
    return later


def _when_new_are_led(
    ctx: RequestContext,
    topics: Callable[[], Iterable[Topic]] | None,
    *,
    later: Later,
    done: Callable[[], None],
) -> None:
    """Run `done` once the new partitions of these topics have leaders, as far as they can.

    `topics`: None for all. The wait is bounded from now on, not from the creation, so that requests
    that wait in vain do not all end in one turn.
    """
    server = ctx.server
    now_ns, within_ns = server.clock.now_ns(), server.config.topic_create_wait_ms * MS
    first = server.new_partitions.first(now_ns - within_ns)
    if first == NEVER:
        done()
        return
    groups: Iterable[GroupId]
    if topics is None:
        # Not over the topics, whose list would stay in memory meanwhile.
        groups = map(GroupId, range(first, server.host.catalog.next_group_id))
    else:
        groups = (
            group
            for topic in topics()
            if topic.partitions and topic.partitions[-1] >= first
            for group in topic.partitions
            if group >= first
        )
    wanted = _electing(server.host, groups)
    when_led(server, wanted, deadline_ns=now_ns + within_ns, later=later, done=done)


def _electing(host: Host, groups: Iterable[GroupId]) -> Iterator[GroupId]:
    """Yield the groups without a known leader that can elect one.

    Nothing waits for a partition whose majority is down. Otherwise a client that creates partitions
    on lost servers would delay all who list topics.
    """
    alive = frozenset(host.alive_servers())
    for group_id in groups:
        if host.leader_of(group_id)[0] < 0:
            replicas = host.catalog.replicas(group_id)
            if 2 * sum(one.server_id in alive for one in replicas) > len(replicas):
                yield group_id


def _lost_unreported(ctx: RequestContext, topics: Iterable[Topic]) -> Iterator[GroupId]:
    """Yield groups whose leader failed without this client having received a report of it."""
    reported_ns = ctx.loss_reported_ns
    for topic in topics:
        for group_id in topic.partitions:
            if ctx.server.host.lost_leader(group_id)[0] > reported_ns:
                yield group_id


def _wanted(asked: list[MetadataRequestTopic]) -> Iterable[tuple[str | None, bytes]]:
    """Return the requested topics, once each, as (name, null id) or (None, id)."""
    return dict.fromkeys(
        (wanted.name if wanted.topic_id == NO_TOPIC_ID else None, wanted.topic_id)
        for wanted in asked
    )


def _found(ctx: RequestContext, asked: list[MetadataRequestTopic]) -> Iterator[Topic]:
    """Yield the requested topics that exist."""
    for name, topic_id in _wanted(asked):
        key = name if topic_id == NO_TOPIC_ID else topic_id
        topic = None if key is None else find_topic(ctx, key)
        if topic is not None:
            yield topic


def _everything(ctx: RequestContext, request: MetadataRequest) -> Iterator[Told]:
    """Yield all topics."""
    for topic in all_topics(ctx):
        yield _topic(request, topic), topic


def _some(
    ctx: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    creating: Mapping[str, ErrorCode],
) -> Iterator[Told]:
    """Yield the requested topics, once each. `creating`: errors of those that are not unknown."""
    for name, topic_id in _wanted(asked):
        key = name if topic_id == NO_TOPIC_ID else topic_id
        topic = None if key is None else find_topic(ctx, key)
        if topic_id != NO_TOPIC_ID:
            missing = ErrorCode.UNKNOWN_TOPIC_ID
        else:
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if topic is None and topic_name_complaint(name or ""):
                missing = ErrorCode.INVALID_TOPIC_EXCEPTION
            else:
                missing = creating.get(name or "", missing)
        if topic is not None:
            yield _topic(request, topic), topic
        else:
            yield MetadataResponseTopic(error_code=missing, name=name, topic_id=topic_id), None


def _topic(request: MetadataRequest, topic: Topic) -> MetadataResponseTopic:
    """Return a topic without its partitions; with the allowed operations if requested."""
    operations = request.include_topic_authorized_operations
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.topic_id in INTERNAL_IDS,
        topic_authorized_operations=TOPIC_OPERATIONS if operations else NOT_ASKED,
    )


def _answer(
    ctx: RequestContext,
    request: MetadataRequest,
    told: Callable[[], Iterator[Told]],
    *,
    is_heard: bool = True,
    wait_ms: int = 0,
) -> Unbuilt:
    """Return the answer with the topics that `told` yields; in parts if they have many partitions.

    Does not look at the topics yet: one confirmation of the links may complete many answers.
    `is_heard`: see `View`. `wait_ms`: throttle time.
    """

    def build() -> MetadataResponse | InParts:
        elements = _elements(ctx, request, told)
        if elements > PART_ELEMENTS:
            pages = partial(_pages, ctx, request, told, is_heard, wait_ms)
            return InParts(ctx, "topics.partitions", pages, _PARTITION_BYTES * elements)
        view = View(ctx, is_heard=is_heard)
        topics = []
        for answer, topic in told():
            if topic is not None:
                answer.partitions = list(view.partitions(topic))
            topics.append(answer)
        return _response(view, request, topics, wait_ms)

    return Unbuilt(build)


def _elements(
    ctx: RequestContext, request: MetadataRequest, told: Callable[[], Iterator[Told]]
) -> int:
    """Return the number of topics and partitions in the answer; without a look at each if all are
    requested."""
    if _asks_for_all(ctx, request):
        catalog = ctx.server.host.catalog
        internal = len(INTERNAL_NAMES) * (1 + catalog.coordinator_groups)
        return internal + len(catalog.topics) + len(catalog.groups)
    return sum(1 + (0 if topic is None else len(topic.partitions)) for _, topic in told())


def _pages(
    ctx: RequestContext,
    request: MetadataRequest,
    told: Callable[[], Iterator[Told]],
    is_heard: bool,
    wait_ms: int,
    size: Callable[[], int],
) -> Iterator[tuple[Place, MetadataResponse]]:
    """Yield an answer in parts. The brokers, among them all leaders, are in the last one."""
    view = View(ctx, is_heard=is_heard)
    first = _response(view, request, [], wait_ms)
    first.brokers = []
    yield (), first
    items = ((answer, () if topic is None else view.partitions(topic)) for answer, topic in told())
    yield from pages_of_lists(
        lambda topics: MetadataResponse(topics=topics), "partitions", items, size
    )
    yield (), _response(view, request, [], wait_ms)


def _response(
    view: View, request: MetadataRequest, topics: list[MetadataResponseTopic], wait_ms: int
) -> MetadataResponse:
    connection = view.ctx.connection
    connection.loss_reported_ns = max(connection.loss_reported_ns, view.lost_ns)
    return MetadataResponse(
        throttle_time_ms=wait_ms,
        brokers=view.brokers(),
        cluster_id=view.ctx.server.host.cluster_id,
        controller_id=view.controller_id(),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )


def _create(
    ctx: RequestContext,
    request: MetadataRequest,
    asked: list[MetadataRequestTopic],
    creation: Creation,
) -> Later:
    """Propose the creation of topics, wait for leaders, then answer."""
    server = ctx.server
    later = Later()
    missing = creation.names
    creating = dict.fromkeys(missing, ErrorCode.LEADER_NOT_AVAILABLE)
    command = CreateTopics(
        topics=[NewTopic(name, server.random_bytes(16)) for name in missing],
        default_partitions=server.config.num_partitions,
        default_replication_factor=server.config.default_replication_factor,
        alive=sorted(server.host.alive_servers()),
        replicas_per_server_max=server.config.replicas_per_server_max,
        counts_each_server=True,
    )

    def answer() -> None:
        told = partial(_some, ctx, request, asked, creating)
        later.complete(_answer(ctx, request, told, wait_ms=creation.wait_ms))

    def created(outcome: Outcome) -> None:
        if outcome.kind is not OutcomeKind.APPLIED:
            if outcome.kind is OutcomeKind.NOT_APPENDED:
                creation.not_made(len(missing))
            answer()
            return
        creation.not_made(sum(topic.error is not ErrorCode.NONE for topic in outcome.result.topics))
        for topic in outcome.result.topics:
            # Not being created: without this error a client would retry for ever.
            if topic.error is ErrorCode.POLICY_VIOLATION:
                creating[topic.name] = topic.error
                server.topics_refused += 1
        topics = server.host.catalog.topics
        groups = [group for name in missing if name in topics for group in topics[name].partitions]
        deadline_ns = server.clock.now_ns() + server.config.topic_create_wait_ms * MS
        when_led(server, groups, deadline_ns=deadline_ns, later=later, done=answer)

    if not missing:
        answer()
        return later
    server.host.propose_catalog(
        command,
        deadline_ns=ctx.deadline_ns(_CREATE_TIMEOUT_MS),
        done=lambda outcome: later.run(lambda: created(outcome)),
    )
    return later


def handle_describe_topic_partitions(
    ctx: RequestContext, request: described.DescribeTopicPartitionsRequest
) -> Later:
    """Return topics in name order, a page of partitions and topics at a time (KIP-966)."""
    later = Later()
    names = names_of_page(request)

    def topics() -> Iterable[Topic]:
        return filter(None, (find_topic(ctx, name) for name in names))

    def answer() -> None:
        later.complete(Unbuilt(lambda: _description(ctx, request)))

    _when_new_are_led(ctx, topics if names else None, later=later, done=answer)
    return later


def _description(
    ctx: RequestContext, request: described.DescribeTopicPartitionsRequest
) -> described.DescribeTopicPartitionsResponse:
    view = View(ctx)
    names = names_of_page(request)
    names = names or [topic.name for topic in all_topics(ctx)]
    first = 0
    if request.cursor is not None:
        start = request.cursor.topic_name
        is_among = not request.topics or start in names
        if request.cursor.partition_index < 0 or not is_among:
            return fail_describe_topic_partitions(
                replace(request, topics=request.topics[:PAGE_ELEMENTS]),
                ctx.api_version,
                ErrorCode.INVALID_REQUEST,
            )
        names = [name for name in names if name >= start]
        first = request.cursor.partition_index if names and names[0] == start else 0
    left = max(1, min(request.response_partition_limit, _PARTITIONS_DESCRIBED_MAX))
    response = described.DescribeTopicPartitionsResponse()
    for name in names:
        topic = find_topic(ctx, name)
        if len(response.topics) == PAGE_ELEMENTS or (topic is not None and not left):
            response.next_cursor = described.Cursor(name, first)
            return response
        answer = described.DescribeTopicPartitionsResponseTopic(
            name=name, topic_authorized_operations=TOPIC_OPERATIONS
        )
        response.topics.append(answer)
        if topic is None:
            invalid = topic_name_complaint(name)
            answer.error_code = (
                ErrorCode.INVALID_TOPIC_EXCEPTION
                if invalid
                else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
            continue
        answer.topic_id = topic.topic_id
        answer.is_internal = topic.topic_id in INTERNAL_IDS
        for index in range(first, len(topic.partitions)):
            if not left:
                response.next_cursor = described.Cursor(name, index)
                return response
            left -= 1
            answer.partitions.append(_described(view.partition(topic.partitions[index], index)))
        first = 0
    return response


def fail_describe_topic_partitions(
    request: described.DescribeTopicPartitionsRequest, _version: int, code: ErrorCode
) -> described.DescribeTopicPartitionsResponse:
    """Return `code` for each topic."""
    return described.DescribeTopicPartitionsResponse(
        topics=[
            described.DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name)
            for topic in request.topics
        ]
    )


def _described(
    partition: MetadataResponsePartition,
) -> described.DescribeTopicPartitionsResponsePartition:
    return described.DescribeTopicPartitionsResponsePartition(
        error_code=partition.error_code,
        partition_index=partition.partition_index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replica_nodes,
        isr_nodes=partition.isr_nodes,
        # The schema allows null, but Kafka's own admin client cannot read it.
        eligible_leader_replicas=[],
        last_known_elr=[],
        offline_replicas=partition.offline_replicas,
    )
