"""Many members of one KIP-848 group, each a thread, and their observations.

A member reads nothing. For each partition that it owns it commits the position after the one that
it found committed when it got the partition. So positions count successive owners, and two
simultaneous owners would collide.
"""

from __future__ import annotations

import threading
import time
from typing import Any
from uuid import uuid4

from tests.wire import AnyApiClient
from vdl.errors import ErrorCode
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import consumer_group_heartbeat as heartbeat_wire
from vdl.kafka.wire import find_coordinator as find_wire
from vdl.kafka.wire import offset_commit as commit_wire
from vdl.kafka.wire import offset_fetch as fetch_wire

COMMIT, FETCH, FIND, HEARTBEAT = 8, 9, 10, 68
PAUSE_SECONDS = 0.1
TIMEOUT_SECONDS = 10.0
LEAVE_SECONDS_MAX = 30.0
_AGAIN = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
_FENCED = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
)

Partition = tuple[bytes, int]
"""(topic id, index)."""


class Sightings:
    """Observations of all members together, and the problems in them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.problems: list[str] = []
        self.owners: dict[tuple[Partition, int], str] = {}
        """(partition, member epoch) -> owner in that epoch."""
        self.committed: dict[Partition, int] = {}
        """Last acknowledged position."""
        self.commits = 0
        self.fenced = 0
        self.changed_at = time.monotonic()
        """Time of the last change of any member's assignment."""

    def assigned(self, member: str, epoch: int, partitions: set[Partition]) -> None:
        with self._lock:
            for partition in partitions:
                owner = self.owners.setdefault((partition, epoch), member)
                if owner != member:
                    self.problems.append(
                        f"{partition[1]} was {owner}'s and {member}'s in epoch {epoch}"
                    )

    def changed(self) -> None:
        with self._lock:
            self.changed_at = time.monotonic()

    def found(self, partition: Partition, offset: int) -> None:
        """Record the committed position that a member found in a new partition."""
        with self._lock:
            last = self.committed.get(partition, -1)
            if offset < last:
                self.problems.append(f"{partition[1]} was committed at {last}, is at {offset}")

    def acknowledged(self, partition: Partition, offset: int) -> None:
        with self._lock:
            last = self.committed.get(partition, -1)
            if offset <= last:
                self.problems.append(f"{partition[1]} was committed at {last}, then at {offset}")
            self.committed[partition] = offset
            self.commits += 1

    def was_fenced(self) -> None:
        with self._lock:
            self.fenced += 1


class ConsumerThread:
    """One member; `stop` makes it leave the group."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, sightings: Sightings, number: int
    ) -> None:
        self.addresses = [
            (host, int(port))
            for host, _, port in (one.rpartition(":") for one in bootstrap.split(","))
        ]
        self.group, self.topic = group, topic
        self.member_id = f"{number}-{uuid4()}"
        self.sightings = sightings
        self.epoch = 0
        self.owned: set[Partition] = set()
        self.positions: dict[Partition, int] = {}
        self.is_stopping = threading.Event()
        self.has_left = False
        self._thread = threading.Thread(target=self._run, name=f"consumer-{number}", daemon=True)
        self._number = number
        self._says_all = True

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.is_stopping.set()

    def join(self) -> None:
        self._thread.join(timeout=60)

    # --- the thread ----------------------------------------------------------------------------
    def _run(self) -> None:
        """Run until the member has left.

        One that ends without leaving keeps its partitions for a session.
        """
        leaves_until = 0.0
        while not self.has_left:
            try:
                self._live(self._coordinator())
            except (Unreachable, _TryAgain):
                self._says_all = True
                if self.is_stopping.is_set():
                    leaves_until = leaves_until or time.monotonic() + LEAVE_SECONDS_MAX
                    if time.monotonic() > leaves_until:
                        return
                time.sleep(PAUSE_SECONDS)

    def _coordinator(self) -> tuple[str, int]:
        host, port = self.addresses[self._number % len(self.addresses)]
        self._number += 1
        with AnyApiClient(host, port, timeout_seconds=TIMEOUT_SECONDS) as client:
            request = find_wire.FindCoordinatorRequest(coordinator_keys=[self.group])
            (found,) = client.request(FIND, request).coordinators
        if found.error_code:
            raise _TryAgain
        return found.host, found.port

    def _live(self, address: tuple[str, int]) -> None:
        """Use one coordinator until another one is responsible, or the member is to leave."""
        with AnyApiClient(*address, timeout_seconds=TIMEOUT_SECONDS) as client:
            while not self.is_stopping.is_set():
                interval = self._heartbeat(client)
                until = time.monotonic() + interval
                while time.monotonic() < until and not self.is_stopping.is_set():
                    self._commit(client)
                    self.is_stopping.wait(min(0.5, max(0.0, until - time.monotonic())))
            if self._send(client, -1).error_code in _AGAIN:
                raise _TryAgain
            self.has_left = True

    def _send(self, client: KafkaClient, epoch: int) -> Any:
        request = heartbeat_wire.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=epoch
        )
        if epoch >= 0 and (self._says_all or not epoch):
            request.rebalance_timeout_ms = 30_000
            request.subscribed_topic_names = [self.topic]
        if epoch >= 0:
            by_topic: dict[bytes, list[int]] = {}
            for topic_id, index in sorted(self.owned):
                by_topic.setdefault(topic_id, []).append(index)
            request.topic_partitions = [
                heartbeat_wire.TopicPartitions(*one) for one in by_topic.items()
            ]
        return client.request(HEARTBEAT, request)

    def _heartbeat(self, client: KafkaClient) -> float:
        """Send a heartbeat and follow the answer; return the interval until the next one."""
        answer = self._send(client, self.epoch)
        error = ErrorCode(answer.error_code)
        if error in _AGAIN:
            raise _TryAgain
        if error in _FENCED:
            self._lose()
            return PAUSE_SECONDS
        if error is not ErrorCode.NONE:
            self.sightings.problems.append(f"heartbeat: {error.name} {answer.error_message}")
            raise _TryAgain
        self._says_all = False
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return float(answer.heartbeat_interval_ms) / 1_000
        wanted = {
            (topic.topic_id, index)
            for topic in answer.assignment.topic_partitions
            for index in topic.partitions
        }
        self.sightings.assigned(self.member_id, self.epoch, wanted)
        if wanted == self.owned:
            return float(answer.heartbeat_interval_ms) / 1_000
        self.sightings.changed()
        gone, new = self.owned - wanted, wanted - self.owned
        self.owned = wanted
        for partition in gone:
            self.positions.pop(partition, None)
        self._find_positions(client, new)
        # Changes are reported at once.
        return 0.0

    def _lose(self) -> None:
        self.sightings.was_fenced()
        self.sightings.changed()
        self.epoch, self.owned, self.positions = 0, set(), {}

    def _find_positions(self, client: KafkaClient, partitions: set[Partition]) -> None:
        if not partitions:
            return
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, index in sorted(partitions):
            by_topic.setdefault(topic_id, []).append(index)
        request = fetch_wire.OffsetFetchRequest(
            groups=[
                fetch_wire.OffsetFetchRequestGroup(
                    group_id=self.group,
                    member_id=self.member_id,
                    member_epoch=self.epoch,
                    topics=[
                        fetch_wire.OffsetFetchRequestTopics(
                            topic_id=topic_id, partition_indexes=indexes
                        )
                        for topic_id, indexes in by_topic.items()
                    ],
                )
            ]
        )
        (group,) = client.request(FETCH, request).groups
        if group.error_code in _FENCED:
            return
        if group.error_code:
            raise _TryAgain
        for topic in group.topics:
            for one in topic.partitions:
                if one.error_code:
                    raise _TryAgain
                partition = topic.topic_id, one.partition_index
                self.sightings.found(partition, one.committed_offset)
                self.positions[partition] = max(0, one.committed_offset)

    def _commit(self, client: KafkaClient) -> None:
        if missing := self.owned - self.positions.keys():
            self._find_positions(client, missing)
        if not self.positions:
            return
        by_topic: dict[bytes, list[commit_wire.OffsetCommitRequestPartition]] = {}
        for (topic_id, index), position in sorted(self.positions.items()):
            by_topic.setdefault(topic_id, []).append(
                commit_wire.OffsetCommitRequestPartition(
                    partition_index=index, committed_offset=position + 1, committed_metadata=""
                )
            )
        request = commit_wire.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.epoch,
            member_id=self.member_id,
            topics=[
                commit_wire.OffsetCommitRequestTopic(topic_id=topic_id, partitions=some)
                for topic_id, some in by_topic.items()
            ],
        )
        for topic in client.request(COMMIT, request).topics:
            for one in topic.partitions:
                error = ErrorCode(one.error_code)
                if error in _AGAIN:
                    # The outcome is unknown: the committed position has to be read again.
                    self.positions.clear()
                    raise _TryAgain
                if error in _FENCED:
                    self.positions.clear()
                    return
                if error is not ErrorCode.NONE:
                    self.sightings.problems.append(f"commit: {error.name}")
                    return
                partition = topic.topic_id, one.partition_index
                self.positions[partition] += 1
                self.sightings.acknowledged(partition, self.positions[partition])


class _TryAgain(Exception):
    """Raised when another server may coordinate the group now."""
