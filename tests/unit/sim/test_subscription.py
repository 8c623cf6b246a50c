"""A consumer's subscription: the three kinds exclude each other; positions follow their rules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vdl.sim.subscription import (
    NotAssigned,
    ResetStrategy,
    SubscriptionConflict,
    SubscriptionState,
    SubscriptionType,
    TopicPartition,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_topics_pattern_and_partitions_exclude_each_other() -> None:
    """Only `unsubscribe` allows another kind."""
    ways: dict[SubscriptionType, Callable[[SubscriptionState], None]] = {
        SubscriptionType.AUTO_TOPICS: lambda s: s.subscribe(["a"]),
        SubscriptionType.AUTO_PATTERN: lambda s: s.subscribe_pattern("a.*"),
        SubscriptionType.USER_ASSIGNED: lambda s: s.assign([A0]),
    }
    for first, subscribe in ways.items():
        for second, again in ways.items():
            state = SubscriptionState()
            subscribe(state)
            assert state.type is first
            if first is second:
                again(state)
                continue
            with pytest.raises(SubscriptionConflict):
                again(state)
            state.unsubscribe()
            again(state)
            assert state.type is second


def test_pattern_subscribes_topics_that_appear_later() -> None:
    """A changed match requires a new assignment by the group; an unchanged one does not."""
    state = SubscriptionState()
    state.subscribe_pattern("a.*")
    assert state.match(["a1", "b"])
    state.assign_from_group([TopicPartition("a1", 0)])
    assert not state.match(["a1", "b", "c"])
    before = state.needs_assignment
    assert state.match(["a1", "a2"])
    assert (before, state.needs_assignment) == (False, True)
    assert state.subscription == {"a1", "a2"}


def test_assign_keeps_the_state_of_partitions_kept() -> None:
    """Assigning again neither drops nor invents a position."""
    state = SubscriptionState()
    state.assign([A0, A1])
    state.seek(A0, 7)
    state.assign([A0, B0])
    assert state.state(A0).position == 7
    assert state.state(B0).position == -1
    with pytest.raises(NotAssigned):
        state.state(A1)


def test_group_assignment_starts_from_committed_offsets() -> None:
    """Another member may have consumed meanwhile: positions are fetched again."""
    state = SubscriptionState()
    state.subscribe(["a"])
    state.assign_from_group([A0])
    state.seek(A0, 7)
    state.assign_from_group([A0, A1])
    assert state.needing_committed() == [A0, A1]


def test_paused_partition_is_not_fetched_and_keeps_its_position() -> None:
    """pause and resume affect nothing but fetching."""
    state = SubscriptionState()
    state.assign([A0, A1])
    for tp in (A0, A1):
        state.seek(tp, 3)
    state.pause(A0)
    assert state.fetchable() == [A1]
    state.resume(A0)
    assert state.fetchable() == [A0, A1]
    assert state.consumed_positions() == {A0: 3, A1: 3}


def test_reset_takes_the_default_strategy_unless_told() -> None:
    """auto.offset.reset, or seekToBeginning and seekToEnd."""
    state = SubscriptionState(ResetStrategy.EARLIEST)
    state.assign([A0])
    state.need_reset(A0)
    assert state.state(A0).reset is ResetStrategy.EARLIEST
    state.need_reset(A0, ResetStrategy.LATEST)
    assert state.needing_reset() == [A0]
    assert state.state(A0).reset is ResetStrategy.LATEST


def test_seek_makes_answers_sent_before_it_stale() -> None:
    """The incarnation shows a fetch in flight that its position was overruled."""
    state = SubscriptionState()
    state.assign([A0])
    state.seek(A0, 3)
    before = state.state(A0).incarnation
    state.seek(A0, 3)
    assert state.state(A0).incarnation != before
