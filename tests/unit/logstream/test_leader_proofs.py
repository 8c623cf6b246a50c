"""Time that a new leader is given until its peers acknowledge that it leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from vdl.logstream.options import TICK_NS, HostOptions
from vdl.logstream.peers.leader_proofs import LATE_TIMEOUTS, LeaderProofs

PATIENCE_NS = LATE_TIMEOUTS * HostOptions().election_ticks * TICK_NS
REPLICAS = tuple(server << 16 | 1 for server in (1, 2, 3))


class Led:
    """A group led here, which no peer has acknowledged; servers 2 and 3 are linked."""

    def __init__(self) -> None:
        self.age_ns = 0
        self.heard: list[int] = []
        self.state: Any = SimpleNamespace(
            options=HostOptions(),
            server_id=1,
            unheard=set(),
            alive={2: SimpleNamespace(directory_id=b"2"), 3: SimpleNamespace(directory_id=b"3")},
            dissenting={},
            catalog=SimpleNamespace(directory_of=lambda server: str(server).encode()),
            in_sync={7: SimpleNamespace(since_ns=0)},
            loop_time=SimpleNamespace(age_ns=lambda then_ns: self.age_ns),
        )
        liveness: Any = SimpleNamespace(is_peer_heard=lambda *_, **__: False)
        contradictions: Any = None
        self.proofs = LeaderProofs(self.state, liveness, contradictions)
        node = SimpleNamespace(own_term_committed=False, peer_heard=self.heard.append)
        self.group: Any = SimpleNamespace(group_id=7, listed=REPLICAS, node=node)

    def has_quorum(self) -> bool:
        self.heard.clear()
        return self.proofs.report_peers(self.group)


@pytest.fixture
def led() -> Led:
    return Led()


def test_new_leader_has_the_time_of_an_overloaded_one_until_it_is_acknowledged(led: Led) -> None:
    led.age_ns = PATIENCE_NS - 1
    assert led.has_quorum()
    assert led.heard == list(REPLICAS[1:])
    led.age_ns = PATIENCE_NS
    assert not led.has_quorum()
    assert led.heard == []


def test_leader_that_may_serve_needs_acknowledgements(led: Led) -> None:
    """Only a leader that has committed in its term answers clients."""
    led.group.node.own_term_committed = True
    assert not led.has_quorum()


def test_new_leader_that_hears_no_majority_is_given_no_time(led: Led) -> None:
    led.state.unheard.add(2)
    assert led.has_quorum()
    del led.state.alive[3]
    assert not led.has_quorum()
