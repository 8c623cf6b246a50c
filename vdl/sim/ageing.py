"""Records and offsets with a retention of a week, which a wrong clock would delete or keep.

In worlds whose clocks go wrong by days and decades a client writes records and commits offsets of
groups without members. It knows their ages by the world's true time. At the end, acknowledged data
younger than a week must exist, and older data must be gone. Young data is lost if a server trusts a
clock that is ahead, or stamps with one that is behind. Old data stays if the servers' time does not
catch up. In one case records may be kept longer (docs/operate.md): while a server is away and the
clocks of the others disagree, the later clock may stamp.

Every other commit carries a retention time of a week, as of clients before OffsetCommit v5. The
others are kept for `OFFSETS_KEPT_MINUTES`, and so are those of the group whose members the world
watches: the group must not expire, because a new one of the same name would count generations anew.

Partition 0 of `aged` holds records a month old, written before any fault, partition 1 young ones;
`stamped` has the servers' timestamps (LogAppendTime).

Does not depend on faults or on how servers determine the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from vdl.clock import MS
from vdl.kafka.wire import create_topics, find_coordinator, offset_commit
from vdl.logstream.host import Host
from vdl.sim.client import Failure, Message
from vdl.sim.machine import Machine
from vdl.sim.producer import Delivery, Fate, Producer, ProducerOptions
from vdl.sim.recorder import make_record
from vdl.sim.subscription import TopicPartition
from vdl.sim.workload import GROUP, Env
from vdl.state.coordinator import Coordinator

DAY_MS = 86_400_000
KEPT_MS = 7 * DAY_MS
MARGIN_MS = DAY_MS
"""Tolerance: clocks that count as right are off by hours after many small jumps."""

AGED = "aged"
STAMPED = "stamped"
OLD = TopicPartition(AGED, 0)
YOUNG = TopicPartition(AGED, 1)
BY_SERVER = TopicPartition(STAMPED, 0)
OLD_BATCHES = 3

OFFSETS_KEPT_MINUTES = 40 * 365 * 1_440
"""Less than the error of clocks that are decades behind."""

OLD_COMMIT = {offset_commit.API_KEY: 4}
"""The newest OffsetCommit with a retention time."""


@dataclass(slots=True)
class Written:
    """An acknowledged batch, or an acknowledged commit of group `name`.

    `from_ms` and `to_ms`: earliest and latest possible timestamp.
    """

    name: str
    offset: int
    from_ms: int
    to_ms: int
    kept_ms: int = KEPT_MS


class Ageing:
    """Client of the data described in the module.

    `true_ms` returns the world's time in ms since 1970, `latest_ms` the latest time that servers
    may stamp with now.
    """

    def __init__(
        self,
        env: Env,
        host: str,
        rng: Random,
        true_ms: Callable[[], int],
        latest_ms: Callable[[], int],
    ) -> None:
        self._env = env
        self._rng = rng
        self._true_ms = true_ms
        self._latest_ms = latest_ms
        self._client = env.client("ageing", host, rng, {})
        self._old_client = env.client("ageing-old", host, rng, OLD_COMMIT)
        self._client.want([AGED, STAMPED])
        self._producer = Producer(self._client, ProducerOptions(idempotent=False, in_flight_max=1))
        self._records: dict[TopicPartition, list[Written]] = {OLD: [], YOUNG: [], BY_SERVER: []}
        self._commits: list[Written] = []
        self._groups = 0
        self._created: set[str] = set()
        self._working = True
        self._create(AGED, 2, {"retention.ms": str(KEPT_MS)})
        by_server = {"retention.ms": str(KEPT_MS), "message.timestamp.type": "LogAppendTime"}
        self._create(STAMPED, 1, by_server)

    # --- before any fault ------------------------------------------------------------------------
    @property
    def is_ready(self) -> bool:
        """True once the topics, the old records and the watched group exist."""
        is_written = len(self._records[OLD]) >= OLD_BATCHES
        return is_written and any(one.name == GROUP for one in self._commits)

    def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        def build(_version: int) -> create_topics.CreateTopicsRequest:
            rows = [create_topics.CreatableTopicConfig(k, v) for k, v in configs.items()]
            topic = create_topics.CreatableTopic(name, partitions, -1, configs=rows)
            return create_topics.CreateTopicsRequest([topic], timeout_ms=2_000)

        def answered(response: Message | Failure) -> None:
            error = -1 if isinstance(response, Failure) else response.topics[0].error_code
            if error not in {0, 36}:
                self._client.backoff(3, lambda: self._create(name, partitions, configs))
                return
            self._created.add(name)
            if len(self._created) == 2:
                self._client.refresh()
                self._write_old()
                self._commit_first()

        self._client.call_any(create_topics, build, answered)

    def _commit_first(self) -> None:
        if not any(one.name == GROUP for one in self._commits):
            self._commit(GROUP, kept_ms=-1)
            self._client.backoff(3, self._commit_first)

    def _write_old(self) -> None:
        if len(self._records[OLD]) < OLD_BATCHES:
            self._write(OLD, self._true_ms() - 30 * DAY_MS, self._write_old)

    # --- while faults happen ---------------------------------------------------------------------
    def start(self) -> None:
        """Begin to write the data that must stay."""
        self._act()

    def stop(self) -> None:
        self._working = False

    def _act(self) -> None:
        if not self._working:
            return
        self._client.clock.call_later(self._rng.randint(100, 500) * MS, self._act)
        choice = self._rng.random()
        if choice < 0.5:
            self._groups += 1
            self._commit(f"idle-{self._groups}", kept_ms=KEPT_MS if choice < 0.25 else -1)
        elif choice < 0.75:
            self._write(YOUNG, self._true_ms() - self._rng.randint(0, 3 * DAY_MS))
        else:
            self._write(BY_SERVER, self._true_ms())

    def _write(
        self, tp: TopicPartition, timestamp: int, then: Callable[[], None] = lambda: None
    ) -> None:
        asked_ms, latest_ms = self._true_ms(), self._latest_ms()

        def done(delivery: Delivery) -> None:
            if delivery.fate is Fate.DELIVERED and delivery.offset >= 0:
                first, last = timestamp, timestamp
                if tp == BY_SERVER:
                    first, last = asked_ms, max(latest_ms, self._latest_ms())
                self._records[tp].append(Written(str(tp), delivery.offset, first, last))
            then()

        record = make_record(0, self._rng, bytes_max=100, timestamp=timestamp)
        self._producer.send(tp, [record], done)

    def _commit(self, group: str, *, kept_ms: int) -> None:
        """Commit an offset of a group without members; -1: kept as long as the servers do.

        A commit without a successful answer is not checked.
        """
        asked_ms, latest_ms = self._true_ms(), self._latest_ms()
        client = self._client if kept_ms < 0 else self._old_client
        expected_ms = OFFSETS_KEPT_MINUTES * 60_000 if kept_ms < 0 else kept_ms

        def find(version: int) -> find_coordinator.FindCoordinatorRequest:
            if version >= 4:
                return find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
            return find_coordinator.FindCoordinatorRequest(key=group)

        def found(response: Message | Failure) -> None:
            if isinstance(response, Failure):
                return
            row = response.coordinators[0] if response.coordinators else response
            if not row.error_code:
                client.call(row.node_id, offset_commit, commit, committed)

        def commit(_version: int) -> offset_commit.OffsetCommitRequest:
            rows = [offset_commit.OffsetCommitRequestPartition(0, 1)]
            topic = offset_commit.OffsetCommitRequestTopic(AGED)
            topic.partitions = rows
            return offset_commit.OffsetCommitRequest(
                group_id=group, retention_time_ms=kept_ms, topics=[topic]
            )

        def committed(response: Message | Failure) -> None:
            if isinstance(response, Failure):
                return
            if not response.topics[0].partitions[0].error_code:
                to_ms = max(latest_ms, self._latest_ms())
                self._commits.append(Written(group, 1, asked_ms, to_ms, expected_ms))

        client.call_any(find_coordinator, find, found)

    # --- once all clocks are right again ---------------------------------------------------------
    def kept_too_long(self, machines: list[Machine]) -> str:
        """Describe data older than its retention that still exists; empty if there is none."""
        now_ms = self._true_ms()
        for tp, written in self._records.items():
            if all(one.to_ms + KEPT_MS + MARGIN_MS < now_ms for one in written) and written:
                start, last = log_start(machines, tp), max(one.offset for one in written)
                if start <= last:
                    return f"{tp} from {start}, all its records up to {last} are old"
        for one in self._commits:
            if one.to_ms + one.kept_ms + MARGIN_MS < now_ms and has_offset(machines, one.name):
                return f"offset of {one.name}, committed {(now_ms - one.to_ms) / DAY_MS} days ago"
        return ""

    def deleted_early(self, machines: list[Machine]) -> list[str]:
        """Describe all data younger than its retention that is gone."""
        now_ms = self._true_ms()
        found: list[str] = []
        for tp, written in self._records.items():
            start = log_start(machines, tp)
            for one in written:
                if one.from_ms + KEPT_MS - MARGIN_MS > now_ms and one.offset < start:
                    age = (now_ms - one.from_ms) / DAY_MS
                    found.append(f"{tp} from {start}, {one.offset} is {age:.1f} days old")
                    break
        for one in self._commits:
            if one.from_ms + one.kept_ms - MARGIN_MS > now_ms and not has_offset(
                machines, one.name
            ):
                age = (now_ms - one.from_ms) / DAY_MS
                found.append(f"offset of {one.name}, committed {age:.1f} days ago")
        return found


def _hosts(machines: list[Machine]) -> list[Host]:
    servers = [machine.server for machine in machines]
    return [s.host for s in servers if s is not None and s.host is not None]


def log_start(machines: list[Machine], tp: TopicPartition) -> int:
    """Return the partition's log start on the replica that has deleted most."""
    start = 0
    for host in _hosts(machines):
        for group_id in host.groups:
            stream = host.stream(group_id)
            if stream is not None and (stream.topic, stream.partition) == tp:
                start = max(start, stream.log_start_offset)
    return start


def has_offset(machines: list[Machine], group: str) -> bool:
    """Return True if the group has an offset on the coordinator replica that has applied most.

    The leader may be in transfer from one server to another.
    """
    most, found = -1, False
    for host in _hosts(machines):
        number = host.coordinator_group(group)
        state_group = host.state_group(number)
        if state_group is not None and host.groups[number].applied > most:
            assert isinstance(state_group.machine, Coordinator), state_group.machine
            most = host.groups[number].applied
            found = bool(state_group.machine.offsets.of(group))
    return found
