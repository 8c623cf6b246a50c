"""Forwarding of catalog commands to the catalog's leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.logstream.conftest import make_state
from vdl.logstream.group.state_group import NOT_APPENDED, Outcome
from vdl.logstream.peers import forwarding
from vdl.logstream.peers.contradictions import Contradictions
from vdl.logstream.peers.forwarding import Forwarding
from vdl.logstream.peers.liveness import Liveness


class FollowingCatalog:
    """A catalog replica that does not lead."""

    is_running = True
    serving = False

    def __init__(self) -> None:
        self.leader_server = 0
        self.expected: dict[int, Callable[[Outcome], None]] = {}
        self._seq = 0

    def envelope(self, command: Any) -> tuple[int, bytes]:
        self._seq += 1
        return self._seq, command

    def expect(self, seq: int, _deadline_ns: int, done: Callable[[Outcome], None]) -> None:
        self.expected[seq] = done


class Wire:
    """A transport that takes every frame."""

    def send(self, _server_id: int, _frame_type: Any, _buffers: Any) -> bool:
        return True


@pytest.mark.parametrize("leader", [0, 2], ids=["waiting", "sent"])
def test_commands_beyond_the_limit_are_refused(
    monkeypatch: pytest.MonkeyPatch, leader: int
) -> None:
    """Both commands that wait for a leader and those that wait for its answer count.

    Each that ends makes room for one.
    """
    monkeypatch.setattr(forwarding, "WAITING_MAX", 3)
    catalog: Any = FollowingCatalog()
    catalog.leader_server = leader
    wire: Any = Wire()
    state = make_state(transport=wire)
    commands = Forwarding(state, Liveness(state, Contradictions(state)))
    commands._catalog = catalog
    outcomes: list[Outcome] = []

    def propose() -> None:
        commands.propose(b"x", deadline_ns=50, done=outcomes.append)

    for _ in range(3):
        propose()
    assert outcomes == []
    propose()
    assert outcomes == [NOT_APPENDED]
    if leader:
        catalog.expected[2](NOT_APPENDED)
    else:
        commands.retry(50)
    before = len(outcomes)
    propose()
    assert len(outcomes) == before
