"""Answers to requests of an ended process: they arrive, and are not taken for other answers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from ids import GroupId, ServerId
from raft.messages import MsgCommit, MsgHeartbeat, MsgVote
from rpc.frames import decode_messages, encode_messages
from rpc.peer import FrameType
from vdl.clock import MS
from vdl.logstream.state import HostState
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.frame_faults import FrameFaults, FrameWeather
from vdl.sim.late_answers import KILLS, LateAnswers
from vdl.sim.options import Options
from vdl.sim.world import World

S = 1_000 * MS
MANY = Options(
    partitions=1, idempotent_producers=1, plain_producers=0, readers=0, members=0,
    transactional_producers=6, transactional_partitions=6, late_answers=1,
)  # fmt: skip


def test_answers_come_late_and_nothing_is_violated(monkeypatch: pytest.MonkeyPatch) -> None:
    """They reach the process that runs by then, which waits for other answers."""
    late: list[bool] = []
    reach = HostState.answers_reach

    def noted(state: HostState, asker: Any) -> bool:
        late.append(not reach(state, asker))
        return not late[-1]

    monkeypatch.setattr(HostState, "answers_reach", noted)
    world = World(1, MANY)
    crashes: list[int] = []

    def story() -> None:
        world.run_for(4 * S)
        fault = LateAnswers()
        assert world.wait(4 * S, lambda: fault.begin(world, Random(1)))
        assert world.wait(4 * S, fault.is_over)
        crashes.append(world.crashes)
        fault.end(world)
        assert not world.frames.still
        assert not world.frames.reserved
        world.run_for(1 * S)

    outcome = world.live(story)
    assert outcome.violations == []
    assert crashes == [KILLS]
    assert any(late)


def test_where_nobody_else_can_answer_nothing_happens() -> None:
    """It takes a server that sends requests, a paused group, and another server to answer."""
    world = World(1, Options(servers=1, partitions=1))
    assert not LateAnswers().begin(world, Random(1))


def test_of_a_group_that_stands_still_no_message_arrives() -> None:
    """Messages of other groups in the same frame arrive."""
    frames: list[memoryview] = []

    class Sink:
        def frame(self, _server_id: int, _kind: FrameType, payload: memoryview) -> None:
            frames.append(payload)

    weather = FrameWeather(stillness=True)
    handler: Any = Sink()
    faults = FrameFaults(handler, weather, NodeClock(VirtualTime()), Random(1), lambda: False)
    messages = [
        (GroupId(7), MsgHeartbeat(1 << 16 | 1, 2 << 16 | 1, 3, 4)),
        (GroupId(8), MsgCommit(1 << 16 | 1, 2 << 16 | 1, 3, 4)),
    ]
    payload = memoryview(b"".join(encode_messages(messages)))
    arrived = []
    for still in (set(), {GroupId(7)}, {GroupId(7), GroupId(8)}):
        weather.still = still
        faults.frame(2, FrameType.RAFT, payload)
        arrived.append([group for frame in frames for group, _ in decode_messages(frame)])
        frames.clear()
    assert arrived == [[7, 8], [8], []]


def test_for_a_reserved_group_only_one_server_gets_votes() -> None:
    """Only its vote requests arrive; other messages of all servers do, too."""
    arrived: list[tuple[int, type]] = []

    class Sink:
        def frame(self, server_id: int, _kind: FrameType, payload: memoryview) -> None:
            arrived.extend((server_id, type(m)) for _, m in decode_messages(payload))

    weather = FrameWeather(stillness=True, reserved={GroupId(7): ServerId(2)})
    handler: Any = Sink()
    faults = FrameFaults(handler, weather, NodeClock(VirtualTime()), Random(1), lambda: False)
    for server_id in (2, 3):
        messages = [
            (GroupId(7), MsgVote(1 << 16 | 1, server_id << 16 | 1, 3, 4, 2)),
            (GroupId(7), MsgCommit(1 << 16 | 1, server_id << 16 | 1, 3, 4)),
        ]
        payload = memoryview(b"".join(encode_messages(messages)))
        faults.frame(ServerId(server_id), FrameType.RAFT, payload)
    assert arrived == [(2, MsgVote), (2, MsgCommit), (3, MsgCommit)]
