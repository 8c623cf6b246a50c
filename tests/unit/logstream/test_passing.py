"""Entries of other groups on a link that carries a large one: they arrive before it."""

from typing import Any

import pytest

from raft.messages import MsgApp
from raft.types import Entry
from rpc.frames import decode_messages, encode_messages
from rpc.peer import FrameType

LARGE_GROUP, LARGE = 1_000, 30 << 20
KIB = 1 << 10


def append_of(group_id: int, size: int) -> tuple[int, MsgApp]:
    return group_id, MsgApp(1, 2, 1, 1, 5, [Entry(1, 6, data=bytes(size))], 5)


class Pair:
    """Servers 1 and 2, which step no messages of the groups that exist for this test only."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.sender = cluster.nodes[1]
        self.arrived: list[tuple[int, int]] = []
        """(group, bytes) of each message, in order."""
        receiver = cluster.nodes[2].host
        handle = receiver.frame

        def frame(server_id: int, frame_type: FrameType, payload: memoryview) -> None:
            if frame_type is FrameType.RAFT:
                messages = decode_messages(payload)
                for group_id, message in messages:
                    if group_id >= LARGE_GROUP:
                        assert isinstance(message, MsgApp)
                        self.arrived.append((group_id, len(message.entries[0].data)))
                rest = [item for item in messages if item[0] < LARGE_GROUP]
                payload = memoryview(bytearray(b"".join(encode_messages(rest))))
            handle(server_id, frame_type, payload)

        receiver.frame = frame

    def send(self, *messages: tuple[int, MsgApp]) -> None:
        """Send these in one turn of the host."""
        self.sender.host._outbox.out.setdefault(2, []).extend(messages)
        self.sender.host._send()

    def order(self) -> list[tuple[int, int]]:
        self.cluster.run(3_000)
        return self.arrived

    @property
    def engine(self) -> Any:
        return self.sender.links._open[2].engine


@pytest.fixture
def pair(cluster: Any) -> Pair:
    made = Pair(cluster)
    made.engine.piece_bytes = 128 * KIB  # as a link begins
    return made


@pytest.mark.parametrize(
    ("count", "size"), [(40, 20 * KIB), (4, 200 * KIB), (10, 100), (1, 1_000 * KIB)]
)
@pytest.mark.parametrize("is_same_turn", [False, True])
def test_entries_of_other_groups_pass_a_large_one(
    pair: Pair, count: int, size: int, is_same_turn: bool
) -> None:
    """Also such as share the turn with another message of its group, which stays behind it."""
    large, next_one = append_of(LARGE_GROUP, LARGE), append_of(LARGE_GROUP, 1)
    others = [append_of(LARGE_GROUP + number, size) for number in range(1, count + 1)]
    if is_same_turn:
        pair.send(large, *others[:1], next_one, *others[1:])
    else:
        pair.send(large)
        pair.send(next_one, *others)
    found = pair.order()
    assert {group_id for group_id, _ in found[:count]} == {group_id for group_id, _ in others}
    assert found[count:] == [(LARGE_GROUP, LARGE), (LARGE_GROUP, 1)]


def test_group_passes_again_once_its_own_large_one_has_left(pair: Pair) -> None:
    """It does not wait for the large ones of others that follow."""
    second = LARGE_GROUP + 1
    pair.send(append_of(LARGE_GROUP, 2_000 * KIB), append_of(second, LARGE))
    while LARGE_GROUP in pair.engine.behind:
        pair.cluster.run(0.05)
    pair.send(append_of(LARGE_GROUP, 100))
    assert [group_id for group_id, _ in pair.order()] == [LARGE_GROUP, LARGE_GROUP, second]
    assert not pair.engine.behind
