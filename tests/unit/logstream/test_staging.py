"""Writes of one group behind a large entry: in order, but votes wait for none."""

from dataclasses import replace

import pytest
from msgspec import structs

from ids import Index, NodeId, Term
from raft.messages import MsgAppResp, MsgStorageAppend, MsgStorageAppendResp, MsgVoteResp
from raft.types import LOCAL_APPEND_THREAD, Entry
from segments.api import HardState
from tests.storage_contract.conftest import SMALL, SimHarness, Writer
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.staging import Staging
from vdl.sim.clock import NodeClock, VirtualTime

LARGE = 1_000
OPTIONS = replace(
    SMALL, place_bytes_min=400, large_bytes_min=LARGE, segment_bytes=64 << 10,
    cache_bytes_max=64 << 10,
)  # fmt: skip


class World:
    """A store whose log has room for large entries, and the staging of its group."""

    def __init__(self):
        self.engine = SimHarness(OPTIONS)
        self.store = self.engine.start()
        self.log = self.engine.new_log()
        self.store.append(self.log, Writer(self.log).entries(1, size=20_000))
        self.settle()
        self.outbox = Outbox(NodeClock(VirtualTime()))
        self.outbox.is_closed = True  # no turn runs here
        self.released = []
        self.staging = Staging(
            self.store, self.log, install=None, wake=lambda outbox: None,
            after_append=lambda outbox, must_sync, responses: self.released.extend(responses),
        )  # fmt: skip

    def settle(self):
        self.store.set_hard_state(self.log, HardState(1, 1, self.log.last_index))
        self.engine.submit()
        self.engine.checkpoint()
        self.engine.submit()

    def give(self, *sizes, first=0, term=1, vote=1, commit=1, responses=()):
        """Give out entries of these sizes, in a message of the node to its storage."""
        first = first or self.last + 1
        self.last = first + len(sizes) - 1
        entries = [
            Entry(Term(term), Index(index), data=bytes([term]) * size, base_offset=index - 1,
                  records=1, timestamp=index)
            for index, size in enumerate(sizes, first)
        ]  # fmt: skip
        message = MsgStorageAppend(
            LOCAL_APPEND_THREAD, NodeId(1), Term(term), NodeId(vote), Index(commit), entries,
            responses=list(responses), must_sync=True,
        )  # fmt: skip
        self.staging.stage(message, self.outbox)

    last = 1


@pytest.fixture
def world():
    return World()


def terms_and_sizes(world):
    found = world.engine.all_entries(world.log)
    return [(term, len(data)) for term, _, data, *_ in found]


def test_later_entries_wait_for_a_large_one_and_are_staged_behind_it(world):
    """Small entries before it do not wait. Large ones behind it count as memory."""
    acks = [MsgAppResp(NodeId(2), NodeId(1), Term(1), Index(index)) for index in (4, 5, 6)]
    world.give(20, 5_000, 30, responses=acks[:1])
    world.give(6_000, responses=acks[1:2])
    world.give(40, responses=acks[2:])
    assert (world.log.last_index, world.staging.committed_max) == (2, 2)
    assert world.released == []
    assert world.outbox.large_behind_bytes == 6_000
    for _ in range(2):
        world.engine.pump()
        world.staging.go_on(world.outbox)
    assert not world.staging.is_held
    assert world.released == acks
    assert world.outbox.large_behind_bytes == 0
    world.settle()
    world.engine.power_cut()
    world.engine.start()
    sizes = [20_000, 20, 5_000, 30, 6_000, 40]
    assert terms_and_sizes(world) == [(1, size) for size in sizes]


def test_votes_wait_for_no_entry(world):
    """Neither does what the node has to know of its own. An acknowledgement does."""
    vote = MsgVoteResp(NodeId(2), NodeId(1), Term(2))
    ack = MsgAppResp(NodeId(3), NodeId(1), Term(1), Index(2))
    stable = MsgStorageAppendResp(
        NodeId(1), LOCAL_APPEND_THREAD, Term(2), index=Index(2), log_term=Term(1), vote=NodeId(2)
    )
    world.give(5_000, responses=[ack])
    world.give(term=2, vote=2, responses=[vote, stable])
    own = structs.replace(stable, index=Index(0), log_term=Term(0))
    assert world.released == [vote, own]
    assert world.log.hard_state == HardState(2, 2, 1)
    world.engine.pump()
    world.staging.go_on(world.outbox)
    assert world.released == [vote, own, ack, stable]
    assert world.log.hard_state == HardState(2, 2, 1)


def test_commit_index_stays_below_entries_that_are_to_be_replaced(world):
    """The log has other entries there until those before have been staged."""
    world.give(10, 20, 30)
    world.give(5_000)
    world.give(40, 50, 60, first=3, term=2, commit=4)
    assert world.log.last_index == 4
    assert world.staging.committed_max == world.log.commit_index == 2
    world.engine.pump()
    world.staging.go_on(world.outbox)
    assert world.log.commit_index == 4
    assert terms_and_sizes(world)[1:] == [(1, 10), (2, 40), (2, 50), (2, 60)]


def test_replica_out_of_service_holds_nothing(world):
    world.give(5_000)
    world.give(6_000)
    world.staging.stop()
    assert (world.staging.is_held, world.outbox.large_behind_bytes) == (False, 0)
