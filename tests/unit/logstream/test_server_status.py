"""Status of a server that it sends to its peers, and their handling of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from rpc.condition import Condition, decode_condition
from rpc.hello import Hello
from rpc.peer import FrameType
from rpc.reader import Buffer
from tests.unit.logstream.conftest import make_state
from vdl.logstream.peers.server_status import ServerStatus


class Wire:
    """A transport that keeps the frames."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}

    def send(self, server_id: int, frame_type: FrameType, buffers: Sequence[Buffer]) -> bool:
        assert frame_type is FrameType.CONDITION
        self.sent[server_id] = b"".join(buffers)
        return True


def test_servers_of_older_versions_are_told_the_flags_alone() -> None:
    """They take one byte and refuse more: their links would end repeatedly."""
    wire: Any = Wire()
    store: Any = SimpleNamespace(accepts_appends=True)
    alive = {
        version: Hello(server_id=version, directory_id=bytes(16), incarnation=1, version=version)
        for version in (3, 4, 5)
    }
    state = make_state(store=store, transport=wire)
    state.alive.update(alive)
    status = ServerStatus(state)
    status.note_damage([7], [8])
    status.stopping()
    assert wire.sent[3] == wire.sent[4] == b"\x02"
    told = Condition(unavailable=True, incomplete=(7,), damaged=(8,))
    assert decode_condition(memoryview(wire.sent[5])) == told
    wire.sent.clear()
    status.link_up(3)
    assert wire.sent == {3: b"\x02"}
