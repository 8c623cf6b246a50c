"""Share sessions: bounded in all, and for each principal where clients authenticate."""

from __future__ import annotations

from vdl.errors import ErrorCode
from vdl.kafka.share.sessions import Place, ShareSession, ShareSessions


def opened(sessions: ShareSessions, name: str, asker: str) -> ShareSession | ErrorCode:
    return sessions.open(("g", name), 1, asker)


def places(count: int, first: int = 0) -> list[Place]:
    return [(bytes(16), first + index) for index in range(count)]


def test_nobody_has_all_sessions() -> None:
    """One principal gets three quarters and another finds room. Closed sessions free theirs."""
    sessions = ShareSessions(sessions_max=100)
    eve = [opened(sessions, f"e{n}", "User:eve") for n in range(100)]
    assert sum(isinstance(one, ShareSession) for one in eve) == 75
    assert eve[-1] is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    bob = [opened(sessions, f"b{n}", "User:bob") for n in range(100)]
    assert sum(isinstance(one, ShareSession) for one in bob) == 18
    assert sessions.refused == 107
    for n in range(75):
        sessions.close(("g", f"e{n}"))
    assert len(sessions) == 18
    assert isinstance(opened(sessions, "b99", "User:bob"), ShareSession)


def test_nobody_has_all_partitions_of_sessions() -> None:
    """Sessions that grow are bounded too. Forgotten partitions free their place."""
    sessions = ShareSessions(partitions_max=100)
    eve = opened(sessions, "e", "User:eve")
    bob = opened(sessions, "b", "User:bob")
    assert isinstance(eve, ShareSession)
    assert isinstance(bob, ShareSession)
    assert not sessions.add(eve, places(76))
    assert sessions.add(eve, places(75))
    assert not sessions.add(eve, places(1, 75))
    assert sessions.add(eve, places(75)), "it reads them already"
    assert sessions.add(bob, places(18))
    assert sessions.forget(eve, places(10)) == places(10)
    assert sessions.partitions == 83
    assert sessions.add(bob, places(5, 18))
    sessions.close(("g", "e"))
    sessions.close(("g", "b"))
    assert sessions.partitions == 0


def test_where_nobody_shows_who_they_are_all_is_for_all() -> None:
    """Without authentication all clients share the bound, up to the last session."""
    sessions = ShareSessions(sessions_max=3, partitions_max=5)
    found = [opened(sessions, str(n), "") for n in range(4)]
    assert [isinstance(one, ShareSession) for one in found] == [True, True, True, False]
    (first, *_) = found
    assert isinstance(first, ShareSession)
    assert sessions.add(first, places(5))
    assert not sessions.add(first, places(6))
