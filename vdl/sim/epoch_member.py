"""A member of a group whose coordinator assigns (KIP-848): heartbeats and epochs.

It joins with epoch 0, reads the partitions assigned by an answer, and reports its partitions in
each heartbeat. A revoked partition is known to be free after the next heartbeat, which it sends at
once. After a lost answer it sends its full state again. When it is fenced it releases everything
and rejoins.

Commits carry its epoch. Observers receive assignments and revocations as from a classic member, and
each accepted heartbeat with the partitions it reported. Does not depend on what is consumed.
"""

from __future__ import annotations

from uuid import UUID

from vdl.clock import MS
from vdl.errors import ErrorCode
from vdl.kafka.wire import consumer_group_heartbeat as wire
from vdl.sim.client import Failure, KafkaClient, Message
from vdl.sim.consumer import Consumer
from vdl.sim.member import LOST_COORDINATOR, GroupMember, MemberOptions, MemberState
from vdl.sim.subscription import TopicPartition

_FENCED = frozenset(
    (
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    )
)
JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2


class EpochMember(GroupMember):
    """Member of a group with the newer protocol.

    `generation` is its epoch, -1 while it has none.
    """

    def __init__(
        self,
        client: KafkaClient,
        consumer: Consumer,
        group: str,
        options: MemberOptions | None = None,
        *,
        pattern: str = "",
    ) -> None:
        """Create a member.

        `pattern`: its subscription, in the coordinator's syntax; if empty, the topics that the
        consumer subscribes to.
        """
        super().__init__(client, consumer, group, options)
        self.member_id = str(UUID(int=client.rng.getrandbits(128), version=4))
        self._pattern = pattern
        self._owned: set[TopicPartition] = set()
        self._ids: dict[str, bytes] = {}
        """Topic → id, from assignments."""
        self._says_all = True
        self._is_asking = False

    def _step(self) -> None:
        if self.state is MemberState.LEFT or self._is_asking:
            return
        if self._coordinator < 0:
            self._find()
        else:
            self._beat()

    def _metadata_changed(self) -> None:
        """Do nothing: the coordinator follows topics, and heartbeats retry unknown ids."""

    def _coordinator_lost(self) -> None:
        super()._coordinator_lost()
        self._says_all = True

    def _beat(self) -> None:
        self._is_asking = True
        epoch = max(self.generation, JOINING)
        said = sorted(self._owned)
        by_topic: dict[str, list[int]] = {}
        for tp in said:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        request = wire.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.options.group_instance_id,
            topic_partitions=[
                wire.TopicPartitions(self._ids[topic], some) for topic, some in by_topic.items()
            ],
        )
        if self._says_all or epoch == JOINING:
            request.rebalance_timeout_ms = self.options.rebalance_timeout_ms
            if self._pattern:
                request.subscribed_topic_regex = self._pattern
            else:
                request.subscribed_topic_names = sorted(self.consumer.subscription.subscription)
        sent_ns = self.client.clock.now_ns()

        def answered(response: Message | Failure) -> None:
            self._is_asking = False
            if self.state is not MemberState.LEFT:
                self._take(response, said, sent_ns)

        self._ask(wire, lambda _version: request, answered)

    def _take(self, response: Message | Failure, said: list[TopicPartition], sent_ns: int) -> None:
        if isinstance(response, Failure) or response.error_code in LOST_COORDINATOR:
            self._coordinator_lost()
            self._later(self._step)
            return
        if response.error_code == ErrorCode.FENCED_INSTANCE_ID:
            # Another process has its instance id.
            self._give_up()
            self.crash()
            return
        if response.error_code:
            if response.error_code in _FENCED:
                self._give_up()
            self._later(self._step)
            return
        self._failures = 0
        self._says_all = False
        self.state = MemberState.STABLE
        self.generation = response.member_epoch
        self.on_accepted(self.generation, said, sent_ns)
        if response.assignment is None:
            self._beat_later(response.heartbeat_interval_ms)
            return
        wanted = self._named(response.assignment)
        if wanted is None:
            # This client does not know the topic yet: refresh, and send the full state again.
            self._says_all = True
            self.client.refresh()
            self._later(self._step)
            return
        if wanted == self._owned:
            self._beat_later(response.heartbeat_interval_ms)
            return
        if self._owned - wanted:
            self.on_revoked()
        self._owned = wanted
        partitions = sorted(wanted)
        self.client.want(sorted({tp.topic for tp in partitions}))
        self.on_assigned(self.generation, partitions, sent_ns)
        self.consumer.subscription.assign_from_group(partitions)
        self.consumer.wake()
        self._step()

    def _named(self, assignment: wire.Assignment) -> set[TopicPartition] | None:
        names = self.client.metadata.names
        found: set[TopicPartition] = set()
        for topic in assignment.topic_partitions:
            name = names.get(topic.topic_id)
            if name is None:
                return None
            self._ids[name] = topic.topic_id
            found.update(TopicPartition(name, index) for index in topic.partitions)
        return found

    def _beat_later(self, interval_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.client.clock.call_later(interval_ms * MS, self._step)

    def _give_up(self) -> None:
        """Release all partitions after being fenced."""
        if self._owned:
            self._revoke()
        self._owned = set()
        self.generation = -1
        self.state = MemberState.UNJOINED

    def leave(self) -> None:
        """Leave the group; a static member's partitions are kept for its next process."""
        if self._owned:
            self._revoke()
        was_in, self.state = self.generation > JOINING, MemberState.LEFT
        self._owned = set()
        if self._timer is not None:
            self._timer.cancel()
        if was_in and self._coordinator >= 0:
            instance_id = self.options.group_instance_id
            request = wire.ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=LEAVING if instance_id is None else LEAVING_FOR_NOW,
                instance_id=instance_id,
            )
            self._ask(wire, lambda _version: request, _ignore_answer)


def _ignore_answer(answer: Message | Failure) -> None:
    """Ignore the answer: the member has left in any case."""
