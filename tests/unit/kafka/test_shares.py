"""Shared budgets: no holder has more than a multiple of what it leaves free."""

from __future__ import annotations

import random

import pytest

from vdl.kafka.shares import Shares

LIMIT = 1_200


def filled(names: list[str], step: int, times: int = 1) -> Shares:
    """Return shares of which each name takes all it may, in turns."""
    shares = Shares(LIMIT, times)
    went_on = True
    while went_on:
        went_on = False
        for name in names:
            if shares.may_take(name, step):
                shares.change(name, step)
                went_on = True
    return shares


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_principals_that_want_all_get_equal_shares_and_leave_one(count: int) -> None:
    """Covers the limit and one past it: n of them get 1/(n+1) each."""
    names = [f"User:u{number}" for number in range(count)]
    shares = filled(names, 1)
    assert [shares.held(name) for name in names] == [LIMIT // (count + 1)] * count
    assert not any(shares.may_take(name, 1) for name in names)
    assert shares.may_take("User:late", 1)


def test_one_may_hold_several_times_what_it_leaves_free() -> None:
    """With a multiple of three: alone three quarters, each of two three sevenths, within one."""
    assert filled(["a"], 1, 3).used == LIMIT * 3 // 4
    shares = filled(["a", "b"], 1, 3)
    assert all(abs(shares.held(name) - LIMIT * 3 / 7) <= 3 for name in "ab")
    assert shares.has_share("a") or shares.may_take("a", 1) is False
    assert shares.may_take("late", 1)


def test_whoever_comes_late_finds_room_however_many_took_theirs_before() -> None:
    """Each in its turn takes all it may."""
    shares = Shares(1 << 20)
    for number in range(10):
        name = f"User:u{number}"
        assert shares.may_take(name, 512)
        while shares.may_take(name, 512):
            shares.change(name, 512)


def test_the_greediest_gives_way_to_one_that_holds_less_and_not_back() -> None:
    """So places do not alternate between two that hold the same amount."""
    shares = Shares(4)
    shares.change("eve", 3)
    shares.change("bob", 1)
    assert shares.yields("bob", 1) == "eve"
    shares.change("eve", -1)
    shares.change("bob", 1)
    assert shares.yields("eve", 1) is None
    assert shares.yields("bob", 1) is None
    assert shares.yields("alice", 1) == "eve"
    assert Shares(1).yields("alice", 1) is None


def test_what_is_held_adds_up() -> None:
    """Holds for any takes and returns; empty holders are not kept."""
    rng = random.Random(7)
    shares, expected = Shares(100), dict.fromkeys("abcd", 0)
    for _ in range(2_000):
        name = rng.choice("abcd")
        delta = rng.randint(-expected[name], 9)
        shares.change(name, delta)
        expected[name] += delta
        assert shares.used == sum(expected.values())
        assert len(shares) == sum(1 for held in expected.values() if held)
    assert [shares.held(name) for name in "abcd"] == list(expected.values())
