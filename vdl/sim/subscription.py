"""A consumer's subscription, assignment and positions: the core state of a Kafka consumer.

A consumer subscribes in one of three ways that exclude each other: by topic names, by a pattern, or
by partitions it names itself. Changing from one to another is an error until `unsubscribe`. However
a partition was assigned, its `PartitionState` holds where the next fetch starts, the last committed
offset, the paused flag, and how to find a position when there is none.

The design follows Kafka's own Java consumer, so its properties hold here too. Does not depend on
requests, time, or how partitions are divided among a group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """A partition's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SubscriptionType(Enum):
    """Way in which the consumer gets its partitions."""

    NONE = "none"
    AUTO_TOPICS = "topics"
    AUTO_PATTERN = "pattern"
    USER_ASSIGNED = "assigned"


class ResetStrategy(Enum):
    """Start position when there is none to continue from."""

    EARLIEST = -2
    LATEST = -1
    NONE = 0
    """No reset: report it."""


class SubscriptionConflict(ValueError):
    """Topics, pattern and partitions exclude each other."""

    def __init__(self, current: SubscriptionType, wanted: SubscriptionType) -> None:
        super().__init__(f"subscribed by {current.value}, not by {wanted.value}")
        self.current = current
        self.wanted = wanted


class NotAssigned(KeyError):
    """The partition is not assigned to this consumer."""


@dataclass(slots=True)
class PartitionState:
    """Progress in one assigned partition.

    Use: `position` is the next offset to fetch, -1 while unknown; `reset` is how to find it, or
    None if it must come from the committed offset first. `epoch` is the leader epoch of the last
    record consumed (KIP-320). `incarnation` changes whenever the position is set from outside, so
    that answers to earlier requests are recognised as stale.
    """

    position: int = -1
    committed: int = -1
    paused: bool = False
    reset: ResetStrategy | None = None
    epoch: int = -1
    incarnation: int = 0

    @property
    def fetchable(self) -> bool:
        return self.position >= 0 and not self.paused


class SubscriptionState:
    """One consumer's subscription, assignment and positions."""

    def __init__(self, default_reset: ResetStrategy = ResetStrategy.LATEST) -> None:
        self.default_reset = default_reset
        self.type = SubscriptionType.NONE
        self.subscription: set[str] = set()
        """Topics subscribed by name, or that match the pattern."""
        self.group_subscription: set[str] = set()
        """Topics that the whole group subscribes; a leader assigns these."""
        self.pattern: re.Pattern[str] | None = None
        self.user_assignment: set[TopicPartition] = set()
        self.assignment: dict[TopicPartition, PartitionState] = {}
        self.needs_assignment = False
        """True if the group must assign partitions (again)."""
        self._incarnations = 0

    # --- subscribing ----------------------------------------------------------------------------
    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe by topic names. Raises SubscriptionConflict."""
        self._set_type(SubscriptionType.AUTO_TOPICS)
        self.change_subscription(topics)

    def subscribe_pattern(self, pattern: str) -> None:
        """Subscribe by pattern; `match` finds the topics in metadata.

        Raises SubscriptionConflict.
        """
        self._set_type(SubscriptionType.AUTO_PATTERN)
        self.pattern = re.compile(pattern)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign exactly these partitions. Those already held keep their state."""
        self._set_type(SubscriptionType.USER_ASSIGNED)
        self.user_assignment = set(partitions)
        self._take(self.user_assignment)

    def unsubscribe(self) -> None:
        self.type = SubscriptionType.NONE
        self.subscription.clear()
        self.group_subscription.clear()
        self.user_assignment.clear()
        self.assignment.clear()
        self.pattern = None
        self.needs_assignment = False

    def match(self, topics: Iterable[str]) -> bool:
        """Subscribe to the topics that match the pattern. Return True if that changed something."""
        assert self.pattern is not None, "no pattern is subscribed"
        return self.change_subscription(t for t in topics if self.pattern.fullmatch(t))

    def change_subscription(self, topics: Iterable[str]) -> bool:
        """Subscribe to exactly these topics. Return True if that changed something."""
        wanted = set(topics)
        if wanted == self.subscription:
            return False
        self.subscription = wanted
        self.group_subscription |= wanted
        self.needs_assignment = True
        return True

    def group_subscribe(self, topics: Iterable[str]) -> None:
        """Add topics that the group's members subscribe, as the group's leader."""
        self.group_subscription = self.subscription | set(topics)

    # --- assignment -----------------------------------------------------------------------------
    def assign_from_group(self, partitions: Iterable[TopicPartition]) -> None:
        """Take partitions assigned by the group. All positions start from the committed offsets."""
        assert self.is_auto, self.type
        self.assignment.clear()
        self._take(set(partitions))
        self.needs_assignment = False

    @property
    def is_auto(self) -> bool:
        """True if a group assigns the partitions."""
        return self.type in {SubscriptionType.AUTO_TOPICS, SubscriptionType.AUTO_PATTERN}

    def state(self, partition: TopicPartition) -> PartitionState:
        """Return the partition's state. Raises NotAssigned."""
        try:
            return self.assignment[partition]
        except KeyError:
            raise NotAssigned(partition) from None

    # --- positions ------------------------------------------------------------------------------
    def seek(self, partition: TopicPartition, offset: int, epoch: int = -1) -> None:
        """Continue from `offset`, whatever was in progress. Raises NotAssigned."""
        state = self.state(partition)
        state.position = offset
        state.epoch = epoch
        state.reset = None
        self._stamp(state)

    def need_reset(self, partition: TopicPartition, strategy: ResetStrategy | None = None) -> None:
        """Drop the position, to be found anew. Raises NotAssigned."""
        state = self.state(partition)
        state.position = -1
        state.reset = strategy if strategy is not None else self.default_reset
        self._stamp(state)

    def consumed(self, partition: TopicPartition, next_offset: int, epoch: int) -> None:
        """Advance the position: records below `next_offset` were handed out."""
        state = self.state(partition)
        assert next_offset >= state.position, (partition, next_offset, state.position)
        state.position = next_offset
        state.epoch = max(state.epoch, epoch)

    def pause(self, partition: TopicPartition) -> None:
        self.state(partition).paused = True

    def resume(self, partition: TopicPartition) -> None:
        self.state(partition).paused = False

    def fetchable(self) -> list[TopicPartition]:
        """Return the partitions that a fetch may include, in order."""
        return sorted(tp for tp, state in self.assignment.items() if state.fetchable)

    def needing_committed(self) -> list[TopicPartition]:
        """Return the partitions whose position must come from the committed offset, in order."""
        return sorted(
            tp for tp, state in self.assignment.items() if state.position < 0 and not state.reset
        )

    def needing_reset(self) -> list[TopicPartition]:
        """Return the partitions whose position must be listed, in order."""
        return sorted(
            tp for tp, state in self.assignment.items() if state.position < 0 and state.reset
        )

    def consumed_positions(self) -> dict[TopicPartition, int]:
        """Return the offsets that a commit of everything handed out contains."""
        return {
            tp: state.position
            for tp, state in sorted(self.assignment.items())
            if state.position >= 0
        }

    def _set_type(self, wanted: SubscriptionType) -> None:
        if self.type is not SubscriptionType.NONE and self.type is not wanted:
            raise SubscriptionConflict(self.type, wanted)
        self.type = wanted

    def _take(self, partitions: set[TopicPartition]) -> None:
        for tp in [tp for tp in self.assignment if tp not in partitions]:
            del self.assignment[tp]
        for tp in sorted(partitions):
            if tp not in self.assignment:
                self.assignment[tp] = state = PartitionState()
                self._stamp(state)

    def _stamp(self, state: PartitionState) -> None:
        self._incarnations += 1
        state.incarnation = self._incarnations
