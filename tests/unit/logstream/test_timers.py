"""Timers of groups that have a turn in each tick."""

from __future__ import annotations

from typing import Any

import pytest

from vdl.clock import MS
from vdl.logstream.options import TICK_NS


def test_leader_under_steady_load_still_asks_who_is_silent(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come once a tick, just before its end, and are acknowledged in the next one.

    So one follower is out of step whenever a tick has passed, and in step at the end of each turn.
    The other one was silent for long, so heartbeats to it are rare.
    """
    group_id = cluster.create_topic()
    cluster.run(3_000)
    stream = cluster.leader(group_id)
    silent = next(n for n in cluster.nodes.values() if n.id != stream.leader_server)
    step = type(silent.host._inbox).step

    def deaf(inbox: Any, group: int, *message: Any) -> None:
        if group != group_id or inbox is not silent.host._inbox:
            step(inbox, group, *message)

    monkeypatch.setattr(type(silent.host._inbox), "step", deaf)
    just_before = TICK_NS - 10_000
    cluster.run((just_before - cluster.time.now_ns % TICK_NS) % TICK_NS / MS)
    raft = stream.group.node.raft
    for _ in range(100):
        cluster.append(stream)
        cluster.run(TICK_NS / MS)
    rounds, now_ns = raft.heartbeat_rounds, cluster.time.now_ns
    for _ in range(100):
        cluster.append(stream)
        cluster.run(TICK_NS / MS)
    ticks = (cluster.time.now_ns - now_ns) // TICK_NS
    assert raft.heartbeat_rounds - rounds == ticks // raft.heartbeat_ticks
    monkeypatch.undo()
    cluster.run(2_000)
    assert silent.host.stream(group_id).group.commit == stream.group.commit
