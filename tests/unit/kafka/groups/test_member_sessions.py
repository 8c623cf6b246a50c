"""Member sessions: only a member silent for its session timeout expires."""

from __future__ import annotations

from vdl.clock import MS
from vdl.kafka.groups.member_sessions import ENDED_MAX, RETRY_NS, STALL_NS, MemberSessions
from vdl.sim.clock import NodeClock, VirtualTime


class Watch:
    def __init__(self) -> None:
        self.time = VirtualTime()
        self.over: list[tuple[int, str, list[str]]] = []
        self.clock = NodeClock(self.time)
        self.sessions = MemberSessions(self.clock, self.ended)

    def ended(self, group: str, members: list[str]) -> None:
        self.over.append((self.time.now_ns // MS, group, members))

    def advance(self, ms: int) -> None:
        until = self.time.now_ns + ms * MS
        while self.time.step(until):
            pass
        self.time.run_until(until)


def test_silent_member_is_over_and_said_so_again() -> None:
    """Expiry is reported again until the session ends, since the command may have been lost."""
    watch = Watch()
    watch.sessions.renew("g", "a", 100)
    watch.sessions.renew("g", "b", 1_000)
    watch.advance(50)
    watch.sessions.renew("g", "a", 100)
    watch.advance(149)
    assert watch.over == [(150, "g", ["a"])]
    watch.advance(RETRY_NS // MS)
    assert watch.over[1:] == [(150 + RETRY_NS // MS, "g", ["a"])]
    watch.sessions.end("g", "a")
    watch.advance(RETRY_NS // MS)
    assert [members for _, _, members in watch.over[2:]] == [["b"]]
    watch.sessions.close()
    watch.advance(10_000)
    assert len(watch.over) == 3


def test_shorter_period_counts_at_once() -> None:
    """A member that returns with a shorter timeout is held to it at once."""
    watch = Watch()
    watch.sessions.renew("g", "a", 10_000)
    watch.sessions.renew("g", "a", 100)
    watch.advance(100)
    assert watch.over == [(100, "g", ["a"])]


def test_others_of_a_group_are_ended_together() -> None:
    """Only members of that group are included."""
    watch = Watch()
    for group in ("g", "h"):
        for member in ("a", "b"):
            watch.sessions.renew(group, member, 100)
    watch.sessions.end_others("g", {"b"})
    assert [key in watch.sessions for key in (("g", "a"), ("g", "b"), ("h", "a"))] == [
        False, True, True,
    ]  # fmt: skip
    assert len(watch.sessions) == 3


def test_stall_of_the_server_costs_nobody_a_session() -> None:
    """A late timer means that the server stalled, so every member gets a whole timeout again."""
    watch = Watch()
    watch.sessions.renew("g", "a", 100)
    watch.clock.pause()
    watch.advance(STALL_NS // MS + 200)
    watch.clock.resume()
    watch.advance(1)
    assert watch.over == []
    watch.advance(100)
    assert [members for _, _, members in watch.over] == [["a"]]


def test_members_that_come_and_go_leave_nothing() -> None:
    """The period is the client's rebalance timeout, which may be the largest number."""
    watch = Watch()
    watch.sessions.renew("g", "other", 1_000)
    for number in range(1_000):
        watch.sessions.renew("g", f"m{number % 3}", (1 << 31) - 1)
        watch.sessions.end("g", f"m{number % 3}")
        watch.sessions.renew("g", "other", 1_000)
        watch.advance(500)
    assert len(watch.sessions._queue) <= ENDED_MAX + 2
    assert not watch.over
    watch.advance(500)
    assert watch.over == [(500_500, "g", ["other"])]
