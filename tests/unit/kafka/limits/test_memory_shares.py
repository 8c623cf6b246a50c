"""Freed room for requests is offered to every principal that has a share left."""

from __future__ import annotations

from vdl.kafka.limits.memory import RequestMemory

MIB = 1 << 20


def test_freed_room_is_offered_while_the_reserve_is_in_use() -> None:
    memory = RequestMemory(512 * MIB, 100 * MIB)
    limit = memory.shares.limit
    memory.take("a", int(limit * 0.74))  # `a` has its share
    x, y = object(), object()
    assert not memory.has_room_for(100 * MIB, "a")
    assert memory.may_have(x, 100 * MIB, "a", is_alone=True)  # owns the reserve
    memory.take("a", 100 * MIB)
    memory.take("c", limit - memory.shares.used + 100 * MIB)  # the rest is c's
    woken: list[object] = []
    assert not memory.may_have(y, 10 * MIB, "b", is_alone=True)
    memory.wait(y, lambda: woken.append(y), "b")
    memory.take("c", -50 * MIB)  # c frees some
    assert memory.has_room_for(10 * MIB, "b")
    assert woken, "there is room for b, and nobody tells it"


def test_a_freed_moderate_reserve_is_offered_to_each_principal() -> None:
    memory = RequestMemory(512 * MIB, 100 * MIB)
    memory.take("c", memory.shares.limit)  # no other room
    first = object()
    assert memory.may_have(first, 100 * MIB, "c", is_alone=True)
    memory.take("c", 100 * MIB)
    assert memory.moderate_reserve == 32 * MIB
    for _ in range(6):
        assert memory.take_moderate(4 * MIB, "h")  # three quarters
    assert not memory.take_moderate(4 * MIB, "h")
    assert memory.take_moderate(4 * MIB, "d")
    assert memory.take_moderate(3 * MIB, "e")
    woken: list[object] = []
    for n in range(4):
        memory.wait_to_start(("h", n), lambda n=n: woken.append(("h", n)), 4 * MIB, "h")
    assert not memory.take_moderate(4 * MIB, "b")
    memory.wait_to_start("b", lambda: woken.append("b"), 4 * MIB, "b")
    memory.return_moderate(4 * MIB, "d")
    memory.take("d", 0)
    assert not memory.take_moderate(4 * MIB, "h"), "the ones that are woken"
    assert "b" in woken, woken


def test_the_reserve_counts_what_is_held() -> None:
    """The owner's first request is answered; it is still first, and takes the reserve again."""
    memory = RequestMemory(512 * MIB, 100 * MIB)
    memory.take("a", memory.shares.limit)
    x = object()
    for _ in range(3):
        assert memory.may_have(x, 100 * MIB, "a", is_alone=True)
        memory.take("a", 100 * MIB)
        memory.take("a", -100 * MIB + (1 << 17))  # answered, the next one has begun: not `finished`
        if memory.has_room_for(90 * MIB, "b"):
            memory.take("b", 90 * MIB)
    assert memory.may_have(x, 100 * MIB, "a", is_alone=True)
    memory.take("a", 100 * MIB)
    assert memory.used <= memory.limit, memory.used / MIB
