"""A link's share of a turn, and the time for which its input stays unread."""

from __future__ import annotations

import pytest

from rpc.reader import CHUNK_BYTES
from rpc.turn_share import DELIVERY_NS, SAMPLE, TurnPace, TurnShare


def test_share_that_was_passed_is_taken_from_the_next() -> None:
    """A frame is handled completely, however many messages it holds."""
    share = TurnShare(100)
    share.left -= 250
    lefts = []
    for _ in range(4):
        share.refill(100)
        lefts.append(share.left)
    assert lefts == [-50, 50, 100, 100]


@pytest.mark.parametrize("unread", [0, 1_000])
def test_link_that_uses_up_its_part_in_each_turn_is_not_behind_if_it_keeps_up(unread: int) -> None:
    """Input arrived during each previous turn: nothing stays unread for long."""
    share = TurnShare(100)
    oldest = 0
    for turn in range(1_000):
        now_ns = turn * 10
        share.received_bytes += 1_000
        share.look(now_ns, unread_bytes=unread, is_held_up=False)
        if share.mark_ns >= 0:
            oldest = max(oldest, now_ns - share.mark_ns)
    assert oldest <= 10


def test_mark_grows_old_until_what_lay_before_it_is_handled() -> None:
    share = TurnShare(100)
    share.look(5, unread_bytes=10_000, is_held_up=True)
    for turn in range(1, 10):
        share.received_bytes += 1_000
        share.look(5 + turn, unread_bytes=10_000, is_held_up=False)
        assert share.mark_ns == 5
    share.received_bytes += 1_000
    share.look(20, unread_bytes=10_000, is_held_up=False)
    assert share.mark_ns == 20, "what has come since lies there as long as this"
    share.look(30, unread_bytes=0, is_held_up=False)
    assert share.mark_ns == -1, "all has been handled, whatever the count says"


def test_mark_is_not_passed_while_what_was_read_before_it_waits() -> None:
    share = TurnShare(100)
    share.received_bytes = 60_000
    for now_ns in range(100):
        share.look(now_ns, unread_bytes=0, is_held_up=True)
        assert share.mark_ns == 0
    share.received_bytes += CHUNK_BYTES
    share.look(100, unread_bytes=0, is_held_up=True)
    assert share.mark_ns == 100


def test_deliveries_that_take_long_are_fewer_and_grow_again_when_they_are_quick() -> None:
    pace = TurnPace(512)
    pace.delivered(512, DELIVERY_NS)
    assert pace.messages == 512
    pace.delivered(SAMPLE, DELIVERY_NS)
    assert pace.messages == SAMPLE
    pace.delivered(SAMPLE, 0)
    assert pace.messages == SAMPLE + SAMPLE // 4 + 1
    for _ in range(20):
        pace.delivered(SAMPLE, 0)
    assert pace.messages == 512


def test_one_message_that_takes_long_changes_little() -> None:
    pace = TurnPace(512)
    pace.delivered(1, DELIVERY_NS // 10)
    pace.delivered(SAMPLE - 2, 0)
    assert pace.messages == 512
    pace.delivered(1, DELIVERY_NS // 10)
    assert pace.messages == 5 * SAMPLE
