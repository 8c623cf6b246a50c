"""Numbers of requests to other servers, which are all that an answer refers to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from rpc.commands import decode_command
from rpc.peer import FrameType
from rpc.queries import decode_query
from tests.unit.logstream.conftest import make_state
from vdl.state.commands import CreateTopics, NewTopic
from vdl.state.partition import AdvanceLogStart, encode_command

NUMBERED = {
    FrameType.PROPOSE: lambda payload: decode_command(payload).request_id,
    FrameType.COMMAND: lambda payload: decode_command(payload).request_id,
    FrameType.QUERY: lambda payload: decode_query(payload)[0],
}


def test_every_process_begins_its_numbers_elsewhere() -> None:
    """They are so far apart that none reaches another's, and all fit the wire."""
    firsts = sorted(next(make_state(life=life).request_numbers) for life in range(100))
    assert min(b - a for a, b in pairwise(firsts)) > 1 << 32
    assert firsts[-1] + (1 << 40) < 1 << 64


def test_no_number_is_used_twice_by_whatever_a_server_asks_before_or_after_a_restart(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catalog commands, commands of groups and queries, all sent to server 1."""
    group_id = int(cluster.create_topic())
    host = cluster.nodes[1].host
    frame = host.frame
    numbers: list[tuple[FrameType, int]] = []

    def noted(server_id: int, kind: FrameType, payload: memoryview) -> None:
        if kind in NUMBERED and server_id == 2:
            numbers.append((kind, NUMBERED[kind](payload)))
        frame(server_id, kind, payload)

    monkeypatch.setattr(host, "frame", noted, raising=False)
    for life in range(2):
        asker = cluster.nodes[2].host
        for n in range(3):
            name = f"t{life}{n}"
            new = NewTopic(name, name.encode().ljust(16), assignments=[[1]])
            cluster.propose(CreateTopics([new]), via=2)
            asker.command_group(
                group_id,
                encode_command(AdvanceLogStart(1)),
                deadline_ns=cluster.deadline(),
                done=lambda _: None,
            )
            asker.describe_quorum(deadline_ns=cluster.deadline(), done=lambda _: None)
            cluster.run(100)
        cluster.nodes[2].crash()
        cluster.run(500)
        cluster.nodes[2].start()
        cluster.run(2_000)
    kinds = [kind for kind, _ in numbers]
    assert all(kinds.count(kind) >= 6 for kind in NUMBERED), kinds
    assert len({number for _, number in numbers}) == len(numbers)
