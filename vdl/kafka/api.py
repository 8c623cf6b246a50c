"""The one table of what this server speaks: API key → versions, ordering, handler.

ApiVersions answers from it, the dispatcher routes by it, tests walk it. A version stands in it only
when its semantics hold. Handlers and wire modules are named as text: a server loads them all in a
thread some seconds after it began to serve (`load`); a request that comes before loads its own.

A handler is a plain function `(RequestContext, request) -> answer`. The answer is the response
message, or

* `Later`, when it is not known yet: whoever learns it calls `complete`;
* `Encoded`, when the same bytes answer several requests;
* `Unbuilt`, when it may be large and takes no memory before there is room for it;
* `Reply.NONE` or `Reply.CLOSE`, for the requests whose protocol is silence.

Must not know: connections, sockets, how handlers do their work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vdl.kafka.context import RequestContext


class Reply(Enum):
    """Answers that send nothing."""

    NONE = "none"
    """The request has no answer: Produce with acks=0."""
    CLOSE = "close"
    """The request has no answer that could carry its error: close the connection."""


class Encoded:
    """A response body that is encoded already, without its header."""

    __slots__ = ("buffers",)

    def __init__(self, buffers: list[Any]) -> None:
        self.buffers = buffers


class Unbuilt:
    """A large answer that is built in its turn, when there is room for it. `build` may raise."""

    __slots__ = ("build",)

    def __init__(self, build: Callable[[], Any]) -> None:
        self.build = build


class Later:
    """An answer that is not known yet.

    The handler returns it and keeps a reference where the answer will come from. `complete` may be
    called before the handler returns, and exactly once. When the client goes away first,
    `cancelled` becomes true, `on_cancel` runs if it was set, and a later `complete` is ignored.

    `hurry`: set by who may answer with what there is before its time is over.

    `holding`: it has not taken its place in the log yet, so that nothing may start behind it until
    `let_go` is called.
    """

    __slots__ = ("_notify", "cancelled", "done", "holding", "hurry", "on_cancel", "response")

    def __init__(self) -> None:
        self.response: Any = None
        self.done = False
        self.cancelled = False
        self.holding = False
        self.hurry: Callable[[], None] | None = None
        self.on_cancel: Callable[[], None] | None = None
        self._notify: Callable[[Later], None] | None = None

    def complete(self, response: Any) -> None:
        """The answer: a response, `Encoded`, `Unbuilt`, a `Reply`, or the exception that prevented
        it. The connection sends it when its turn comes."""
        if self.cancelled:
            return
        assert not self.done, "an answer was given twice"
        self.response = response
        self.done = True
        self.on_cancel = self.hurry = None
        notify = self._notify
        if notify is not None:
            self._notify = None
            notify(self)

    def let_go(self) -> None:
        """What is behind it may start."""
        self.holding = False
        if self._notify is not None:
            self._notify(self)

    def run(self, step: Callable[[], None]) -> None:
        """One step towards the answer, called from outside the handler: if it raises, that is the
        answer, and whoever called goes on. After the answer, and for nobody, it does not run."""
        if self.done or self.cancelled:
            return
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the connection edge: a request never ends a server
            if not self.done:
                self.complete(error)

    def cancel(self) -> None:
        """Nobody waits any more."""
        if self.done or self.cancelled:
            return
        self.cancelled = True
        self._notify = self.hurry = None
        on_cancel, self.on_cancel = self.on_cancel, None
        if on_cancel is not None:
            on_cancel()

    def go_on(self, ended: Callable[[], None]) -> None:
        """Nobody waits any more, but what was begun cannot be taken back: `ended` when it is over.
        Only while not done, in place of `cancel`."""
        assert not self.done, "ask `done` first"
        self._notify = lambda later: ended() if later.done else None

    def when_done(self, notify: Callable[[Later], None]) -> None:
        """For the front end: have `notify` called at `complete`. Only while not done."""
        assert not self.done, "ask `done` first"
        assert self._notify is None, "one connection waits for one answer"
        self._notify = notify


class Api:
    """One row. `min_version`..`max_version` is what is advertised and accepted, inclusive."""

    __slots__ = ("_handler", "_wire", "key", "max_version", "min_version", "name", "pipelined")

    def __init__(
        self,
        key: int,
        name: str,
        min_version: int,
        max_version: int,
        wire: str,
        handler: str,
        *,
        pipelined: bool = False,
    ) -> None:
        self.key = key
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.pipelined = pipelined
        """May start while earlier pipelined requests of its connection wait for their answer.
        True for Produce alone: it takes its place in the log when it starts. Anything else starts
        when all before it are answered, as in Kafka."""
        self._wire: str | Any = wire
        self._handler: str | Callable[[RequestContext, Any], Any] = handler

    @property
    def wire(self) -> Any:
        """The generated module of this API, loaded at first use."""
        wire = self._wire
        if type(wire) is str:
            wire = self._wire = import_module(f"vdl.kafka.wire.{wire}")
        return wire

    @property
    def handler(self) -> Callable[[RequestContext, Any], Any]:
        """The handler, loaded at first use."""
        handler = self._handler
        if type(handler) is str:
            module, _, function = handler.partition(":")
            handler = getattr(import_module(f"vdl.kafka.handlers.{module}"), function)
            self._handler = handler
        assert callable(handler), handler
        return handler

    def load(self) -> None:
        """Load both."""
        _ = self.wire, self.handler


ROWS = (
    Api(0, "Produce", 0, 13, "produce", "produce:handle_produce", pipelined=True),
    Api(1, "Fetch", 4, 18, "fetch", "fetch:handle_fetch"),
    Api(2, "ListOffsets", 1, 6, "list_offsets", "list_offsets:handle_list_offsets"),
    Api(3, "Metadata", 0, 13, "metadata", "metadata:handle_metadata"),
    Api(8, "OffsetCommit", 2, 9, "offset_commit", "offsets:handle_offset_commit"),
    Api(9, "OffsetFetch", 1, 9, "offset_fetch", "offsets:handle_offset_fetch"),
    Api(10, "FindCoordinator", 0, 6, "find_coordinator", "groups:handle_find_coordinator"),
    Api(11, "JoinGroup", 0, 9, "join_group", "groups:handle_join_group"),
    Api(12, "Heartbeat", 0, 4, "heartbeat", "groups:handle_heartbeat"),
    Api(13, "LeaveGroup", 0, 5, "leave_group", "groups:handle_leave_group"),
    Api(14, "SyncGroup", 0, 5, "sync_group", "groups:handle_sync_group"),
    Api(15, "DescribeGroups", 0, 6, "describe_groups", "groups:handle_describe_groups"),
    Api(16, "ListGroups", 0, 5, "list_groups", "groups:handle_list_groups"),
    Api(18, "ApiVersions", 0, 4, "api_versions", "api_versions:handle_api_versions"),
    Api(19, "CreateTopics", 2, 7, "create_topics", "topics:handle_create_topics"),
    Api(20, "DeleteTopics", 1, 6, "delete_topics", "topics:handle_delete_topics"),
    Api(21, "DeleteRecords", 0, 2, "delete_records", "records:handle_delete_records"),
    Api(22, "InitProducerId", 0, 5, "init_producer_id", "producer_ids:handle_init_producer_id"),
    Api(
        23,
        "OffsetForLeaderEpoch",
        2,
        4,
        "offset_for_leader_epoch",
        "list_offsets:handle_offset_for_leader_epoch",
    ),
    Api(32, "DescribeConfigs", 1, 4, "describe_configs", "configs:handle_describe_configs"),
    Api(33, "AlterConfigs", 0, 2, "alter_configs", "alter_configs:handle_alter_configs"),
    Api(42, "DeleteGroups", 0, 2, "delete_groups", "groups:handle_delete_groups"),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        "incremental_alter_configs",
        "alter_configs:handle_incremental_alter_configs",
    ),
    Api(60, "DescribeCluster", 0, 2, "describe_cluster", "cluster:handle_describe_cluster"),
    Api(
        75,
        "DescribeTopicPartitions",
        0,
        0,
        "describe_topic_partitions",
        "metadata:handle_describe_topic_partitions",
    ),
)

API: dict[int, Api] = {row.key: row for row in ROWS}


def load() -> None:
    """Load what requests of every kind need. To load the modules of one kind takes tens of
    milliseconds, in which nothing else is done where its first request loads them. Any thread."""
    for row in ROWS:
        row.load()


def advertised() -> Iterator[tuple[int, int, int]]:
    """(key, lowest, highest version) of every API, by key."""
    for key in sorted(API):
        row = API[key]
        yield key, row.min_version, row.max_version
