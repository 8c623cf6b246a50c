"""Requests for damaged entries, and answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from raft.types import Entry, EntryKind
from rpc.hello import VERSION_OF_COMPACTED_COPIES, Hello
from rpc.ranges import (
    RangeAnswer,
    RangeRequest,
    decode_answer,
    decode_range,
    encode_answer,
    encode_range,
)
from segments.api import (
    Compacted,
    Compaction,
    CorruptRecord,
    NotInMemory,
    StoredEntry,
    WriteRefused,
)
from tests.unit.logstream.conftest import make_state
from vdl.logstream.group.log_stream import LogStream
from vdl.logstream.group.outbox import Outbox
from vdl.logstream.group.replica_ids import replica_id_of
from vdl.logstream.options import HostOptions
from vdl.logstream.peers.entry_repair import HOPELESS_REFUSALS, PATIENCE_NS, EntryRepair
from vdl.logstream.peers.server_status import ServerStatus
from vdl.logstream.time.loop_gap import LoopGaps
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.state.partition import PartitionState

GROUP = 7


class Log:
    """Entries 3 to 9 in memory; an invalid range is an error of the caller."""

    damaged: Sequence[tuple[int, int]] = ()
    compaction = Compaction()
    first_index = 3
    last_index = 9

    def entries(self, first: int, end: int, _bytes_max: int) -> list[StoredEntry]:
        assert first < end, (first, end)
        if first < 3:
            raise Compacted(f"index {first} is below 3")
        return [StoredEntry(1, n, EntryKind.NORMAL, b"x", n, 1, 0) for n in range(first, end)]


@dataclass
class Replica:
    """A group that has applied entries up to `applied`."""

    applied: int = 6
    log: Log = field(default_factory=Log)
    group_id: int = GROUP
    owner: Any = None
    members: Sequence[int] = (replica_id_of(1, 1), replica_id_of(2, 1), replica_id_of(3, 1))
    is_whole: bool = True
    dirty: bool = False

    @property
    def holders(self) -> set[int]:
        return set(self.members)

    def retry_apply(self, _outbox: Any) -> None:
        """Do nothing: no entries wait to be applied."""


@dataclass
class Wire:
    """Sent frames, and their receivers."""

    frames: list[bytes] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)

    def send(self, server_id: int, _frame_type: Any, buffers: Sequence[Any]) -> bool:
        self.frames.append(b"".join(bytes(buffer) for buffer in buffers))
        self.servers.append(server_id)
        return True


class Refusing:
    """A store that accepts no copy, and a log of events."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def repair(self, _log: Any, _entries: Any, done: Any, *, compacted_upto: int = 0) -> None:
        done(CorruptRecord("copy of an entry", 4))

    def warning(self, event: str, **_fields: Any) -> None:
        self.warnings.append(event)

    def error(self, _event: str, **_fields: Any) -> None: ...


def repair_of(
    group: Any, wire: Any, *, groups: Any = None, alive: Any = (), **parts: Any
) -> EntryRepair:
    state = make_state(transport=wire, **parts)
    state.groups.update(groups or {GROUP: group})
    state.alive.update(alive)
    return EntryRepair(state, ServerStatus(state))


def hello_of(
    server_id: int, *, incarnation: int = 1, version: int = VERSION_OF_COMPACTED_COPIES - 1
) -> Hello:
    """Return a peer's HELLO."""
    return Hello(server_id, bytes(16), incarnation, version=version)


class Told(Refusing):
    """A log that keeps the events on which an operator has to act."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[dict[str, Any]] = []

    def error(self, event: str, **fields: Any) -> None:
        assert event == "entries_unrecoverable", event
        self.errors.append(fields)


@pytest.mark.parametrize(
    ("first", "end", "answered"),
    [
        (4, 6, [4, 5]),
        (7, 99, [7, 8, 9]),
        (10, 12, []),
        (2, 5, []),
    ],
    ids=["all", "up to the end", "behind it", "cut off"],
)
def test_asked_for_entries_gives_what_is_here(first: int, end: int, answered: list[int]) -> None:
    """The requester has committed the entries and knows their terms (§5.3).

    They need not be known to be committed here, or be applied.
    """
    wire = Wire()
    repair = repair_of(Replica(), wire, alive={2: hello_of(2)})
    (asked,) = encode_range(RangeRequest(12, GROUP, first, end))
    repair.request_received(2, memoryview(bytes(asked)))
    (frame,) = wire.frames
    answer = decode_answer(memoryview(frame), 0)
    assert (answer.request, [entry.index for entry in answer.entries]) == (12, answered)
    assert answer.log_start == 3


def test_asking_goes_on_to_the_next_replica_when_a_copy_is_refused() -> None:
    """As if there were no copy: a wrong one must not block a right one."""
    replica, wire, refusing = Replica(), Wire(), Refusing()
    replica.log.damaged = ((4, 5),)
    repair = repair_of(
        replica, wire, alive={2: None, 3: None}, store=refusing, log=refusing,
    )  # fmt: skip
    for _ in range(3 * HOPELESS_REFUSALS):
        repair.look_around()
        request = decode_range(memoryview(wire.frames[-1])).request
        copy = Entry(term=1, index=4, data=b"x")
        frame = b"".join(map(bytes, encode_answer(RangeAnswer(request, 3, GROUP, [copy]), 0)))
        repair.answer_received(wire.servers[-1], memoryview(frame))
    assert wire.servers[:3] == [2, 3, 2]
    assert refusing.warnings.count("repair_refused") == HOPELESS_REFUSALS


def test_repair_waits_for_room_however_often_a_full_disk_refuses_it() -> None:
    """There are copies: nothing is reported as lost."""

    class Full(Told):
        has_room = False

        def repair(self, _log: Any, _entries: Any, done: Any, *, compacted_upto: int = 0) -> None:
            if self.has_room:
                replica.log.damaged = ()
            done(None if self.has_room else WriteRefused("no space left on device"))

        def info(self, event: str, **_fields: Any) -> None:
            self.warnings.append(event)

    replica, wire, full = Replica(), Wire(), Full()
    replica.log.damaged = ((4, 5),)
    repair = repair_of(replica, wire, alive={2: None}, store=full, log=full)
    for n in range(3 * HOPELESS_REFUSALS):
        full.has_room = n == 3 * HOPELESS_REFUSALS - 1
        repair.look_around()
        request = decode_range(memoryview(wire.frames[-1])).request
        copy = Entry(term=1, index=4, data=b"x")
        frame = b"".join(map(bytes, encode_answer(RangeAnswer(request, 3, GROUP, [copy]), 0)))
        repair.answer_received(wire.servers[-1], memoryview(frame))
    assert full.errors == []
    assert full.warnings == ["entries_damaged", "repair_awaits_room", "entries_repaired"]


def test_copies_are_requested_one_at_a_time_however_long_the_disk_takes() -> None:
    """Each would be kept in memory until those before it are written."""
    under_way: list[Any] = []

    class Slow(Refusing):
        def repair(self, _log: Any, _entries: Any, done: Any, *, compacted_upto: int = 0) -> None:
            under_way.append(done)

    replica, wire, slow, time = Replica(), Wire(), Slow(), VirtualTime()
    replica.log.damaged = ((4, 5),)
    repair = repair_of(
        replica, wire, alive={2: None, 3: None}, store=slow, log=slow, clock=NodeClock(time),
    )  # fmt: skip
    for _ in range(10):
        repair.look_around()
        request = decode_range(memoryview(wire.frames[-1])).request
        copy = Entry(term=1, index=4, data=b"x")
        frame = b"".join(map(bytes, encode_answer(RangeAnswer(request, 3, GROUP, [copy]), 0)))
        repair.answer_received(wire.servers[-1], memoryview(frame))
        time.run_until(time.now_ns + PATIENCE_NS)
    (done,) = under_way
    done(CorruptRecord("copy of an entry", 4))
    repair.look_around()
    assert len(wire.frames) == 2


def test_what_nobody_has_is_told_once_and_by_the_topics_name() -> None:
    """The operator who has to delete records up to there knows topics, not groups."""
    told: list[tuple[str, dict[str, Any]]] = []
    owner = LogStream(
        topic="events", partition=3, state=PartitionState(), options=HostOptions(),
        outbox=Outbox(NodeClock(VirtualTime())), in_sync=make_state().in_sync,
        gaps=LoopGaps(NodeClock(VirtualTime()), limit_ns=1), agreed_ms=lambda: 0, alive={},
        large_room=make_state().large_room, measures=make_state().measures,
    )  # fmt: skip
    replica, wire, log = Replica(owner=owner), Wire(), Refusing()
    log.error = lambda event, **fields: told.append((event, fields))  # type: ignore[method-assign]
    replica.log.damaged = ((4, 5),)
    repair = repair_of(replica, wire, alive={2: None}, store=log, log=log)
    for _ in range(HOPELESS_REFUSALS + 3):
        repair.look_around()
        request = decode_range(memoryview(wire.frames[-1])).request
        regrets = encode_answer(RangeAnswer(request, 3), 0)
        repair.answer_received(wire.servers[-1], memoryview(b"".join(map(bytes, regrets))))
    ((event, fields),) = told
    assert event == "entries_unrecoverable"
    assert fields["partition"] == "events-3"
    assert fields["index"] == 4


@pytest.mark.parametrize("members", [(1,), (1, 3)], ids=["no other replica", "its peer is down"])
def test_a_range_nobody_can_be_asked_for_does_not_keep_the_others_waiting(
    members: Sequence[int],
) -> None:
    """In any order of the groups, and for any number of its turns."""
    stuck = Replica(group_id=6, members=[replica_id_of(server, 1) for server in members])
    stuck.log.damaged = ((4, 5), (6, 7))
    replica, wire, told = Replica(), Wire(), Told()
    replica.log.damaged = ((4, 5),)
    repair = repair_of(
        replica, wire, groups={6: stuck, GROUP: replica}, alive={2: None}, log=told,
    )  # fmt: skip
    for _ in range(2):
        repair.look_around()
    assert wire.servers == [2]
    assert decode_range(memoryview(wire.frames[0])).group == GROUP


def test_a_look_does_not_go_through_the_ranges_there_are() -> None:
    """A bad medium may bring many thousands, and each is requested separately."""

    class Ranges(Sequence[tuple[int, int]]):
        asked = 0

        def __len__(self) -> int:
            return 40_000

        def __getitem__(self, n: Any) -> Any:
            self.asked += 1
            return 3 * n + 4, 3 * n + 5

    replica, wire, time = Replica(), Wire(), VirtualTime()
    replica.log.damaged = ranges = Ranges()
    repair = repair_of(replica, wire, alive={2: None}, log=Refusing(), clock=NodeClock(time))
    for _ in range(3):
        repair.look_around()
        time.run_until(time.now_ns + PATIENCE_NS)
    assert [decode_range(memoryview(frame)).first for frame in wire.frames] == [4, 7, 10]
    assert ranges.asked <= 6


def test_a_range_of_a_group_without_another_replica_is_told_of_once() -> None:
    """No other replica can ever answer.

    The first of the group's ranges is reported: records up to there are to be deleted, and then the
    next is.
    """
    replica, wire, told = Replica(members=[replica_id_of(1, 1)]), Wire(), Told()
    replica.log.damaged = ((4, 5), (6, 7))
    repair = repair_of(replica, wire, log=told)
    for _ in range(HOPELESS_REFUSALS - 1):
        repair.look_around()
    assert not told.errors
    for _ in range(100):
        repair.look_around()
    replica.log.damaged = ((6, 7),)
    for _ in range(100):
        repair.look_around()
    assert [fields["index"] for fields in told.errors] == [4, 6]
    assert not wire.frames


def test_a_range_whose_peers_are_down_is_not_called_lost_and_asked_for_when_one_is_back() -> None:
    """A server that is away still has its copy: records should not be deleted for that."""
    replica, wire, told = Replica(), Wire(), Told()
    replica.log.damaged = ((4, 5),)
    repair = repair_of(replica, wire, log=told)
    hello: Any = None
    for _ in range(3_600):
        repair.look_around()
    repair._state.alive[3] = hello
    repair.look_around()
    assert wire.servers == [3]
    assert not told.errors


def test_what_others_have_cut_off_does_not_hide_what_they_have_behind_it() -> None:
    """The start of the damaged range is in no replica any more; its end is in all others."""
    replica, wire, told = Replica(applied=9), Wire(), Told()
    replica.log.damaged = ((4, 9),)
    replica.log.installed_state = b""  # type: ignore[attr-defined]
    replica.log.applied_index = 3  # type: ignore[attr-defined]
    repair = repair_of(replica, wire, alive={2: None}, log=told)
    wanted = []
    for _ in range(3):
        repair.look_around()
        request = decode_range(memoryview(wire.frames[-1]))
        wanted.append((request.first, request.end))
        regrets = encode_answer(RangeAnswer(request.request, 6), 0)
        repair.answer_received(wire.servers[-1], memoryview(b"".join(map(bytes, regrets))))
    assert wanted == [(4, 9), (6, 9), (4, 9)]
    assert not told.errors


@pytest.mark.parametrize("log_start_offset", [4, 5])
def test_what_others_have_cut_off_and_holds_no_records_is_cut_off_here(
    log_start_offset: int,
) -> None:
    """Each replica cuts entries without records, as changes of members, by its own checkpoints.

    So possibly no replica has left an entry that this one lacks. Records wait for their deletion.
    """
    trimmed: list[int] = []

    class Trimming(Told):
        def trim_log(self, _log: Any, *, first_index: int) -> None:
            trimmed.append(first_index)

    owner = LogStream(
        topic="aged", partition=0, state=PartitionState(), options=HostOptions(),
        outbox=Outbox(NodeClock(VirtualTime())), in_sync=make_state().in_sync,
        gaps=LoopGaps(NodeClock(VirtualTime()), limit_ns=1), agreed_ms=lambda: 0, alive={},
        large_room=make_state().large_room, measures=make_state().measures,
    )  # fmt: skip
    owner.state.log_start_offset = log_start_offset
    replica, wire, store = Replica(applied=9, owner=owner), Wire(), Trimming()
    log: Any = replica.log
    log.damaged, log.installed_state, log.applied_index = ((4, 9),), b"", 9
    log.offset_after = lambda index: index
    log.log_start_offset = 0
    replica.store = store  # type: ignore[attr-defined]
    owner.group = replica  # type: ignore[assignment]
    repair = repair_of(replica, wire, alive={2: None}, store=store, log=store)
    repair.look_around()
    request = decode_range(memoryview(wire.frames[-1])).request
    regrets = encode_answer(RangeAnswer(request, 6), 0)
    repair.answer_received(wire.servers[-1], memoryview(b"".join(map(bytes, regrets))))
    assert trimmed == ([6] if log_start_offset >= 5 else [])


@pytest.mark.parametrize(
    ("first", "compacted", "own", "answered"),
    [
        (4, (0, 0), (0, 0), True),
        (4, (5, 2), (5, 2), True),
        (4, (5, 0), (5, 2), True),
        (4, (0, 0), (5, 2), True),
        (4, (5, 2), (5, 0), False),
        (4, (5, 2), (0, 0), False),
        (6, (5, 2), (0, 0), True),
    ],
)
def test_copy_comes_only_from_a_replica_that_is_compacted_as_far(
    first: int, compacted: tuple[int, int], own: tuple[int, int], answered: bool
) -> None:
    """A replica compacted less far may have records that are gone here already.

    Records that are gone at the other replica will be removed here, too; waiting for one that has
    exactly as many would never end.
    """
    replica, wire = Replica(), Wire()
    replica.log.compaction = Compaction(*own)
    buffers = encode_range(RangeRequest(12, GROUP, first, first + 1, compacted=compacted))
    repair = repair_of(replica, wire, alive={2: hello_of(2)})
    repair.request_received(2, memoryview(b"".join(bytes(b) for b in buffers)))
    (frame,) = wire.frames
    assert bool(decode_answer(memoryview(frame), 0).entries) is answered


@pytest.mark.parametrize(
    ("version", "upto"),
    [(VERSION_OF_COMPACTED_COPIES, 8), (VERSION_OF_COMPACTED_COPIES - 1, 0)],
    ids=["now", "before"],
)
def test_copy_may_be_as_small_as_the_peers_log_is_compacted(version: int, upto: int) -> None:
    """The peer's state has applied the decision to compact.

    The state here waits for the entry, which precedes the decision, so it would wait for ever.
    """
    taken: list[int] = []

    class Taking(Refusing):
        def repair(self, _log: Any, _entries: Any, _done: Any, *, compacted_upto: int = 0) -> None:
            taken.append(compacted_upto)

    compacted, wire = Replica(), Wire()
    compacted.log.compaction = Compaction(8, 0)
    answering = repair_of(compacted, wire, alive={1: hello_of(1, version=version)})
    damaged = Replica(applied=3)
    damaged.log.damaged = ((4, 5),)
    alive = {2: hello_of(2, version=version)}
    asking = repair_of(damaged, wire, alive=alive, store=Taking(), log=Refusing())
    asking.look_around()
    answering.request_received(1, memoryview(wire.frames[-1]))
    asking.answer_received(2, memoryview(wire.frames[-1]))
    assert taken == [upto]


@pytest.mark.parametrize(
    ("server", "group", "index", "is_taken"),
    [(2, GROUP, 4, True), (3, GROUP, 4, False), (2, GROUP + 1, 4, False), (2, GROUP, 5, False)],
    ids=["what was asked for", "of another server", "of another group", "of another range"],
)
def test_answer_is_taken_as_the_one_to_a_request_only_if_all_that_it_names_is_the_same(
    server: int, group: int, index: int, is_taken: bool
) -> None:
    """A copy of another group may have the index and the term of the damaged entry."""
    taken: list[int] = []

    class Taking(Refusing):
        def repair(self, _log: Any, entries: Any, _done: Any, *, compacted_upto: int = 0) -> None:
            taken.extend(entry.index for entry in entries)

    replica, wire = Replica(), Wire()
    replica.log.damaged = ((4, 5),)
    alive = {2: hello_of(2), 3: hello_of(3)}
    repair = repair_of(replica, wire, alive=alive, store=Taking(), log=Refusing())
    repair.look_around()
    assert wire.servers == [2]
    request = decode_range(memoryview(wire.frames[-1])).request
    copy = Entry(term=1, index=index, data=b"x")
    buffers = encode_answer(RangeAnswer(request, 3, group, [copy]), 0)
    repair.answer_received(server, memoryview(b"".join(map(bytes, buffers))))
    assert taken == ([4] if is_taken else [])


def test_requests_of_two_processes_of_a_server_have_no_number_in_common() -> None:
    """An empty answer to an earlier process names nothing but its number.

    It would have the log here cut where the other group's begins.
    """
    numbers: set[int] = set()
    for life in range(3):
        replica, wire = Replica(), Wire()
        replica.log.damaged = ((4, 5),)
        repair = repair_of(replica, wire, alive={2: hello_of(2)}, log=Told(), life=life)
        for _ in range(5):
            repair.look_around()
            repair._pending = None
        numbers |= {decode_range(memoryview(frame)).request for frame in wire.frames}
    assert len(numbers) == 15


@pytest.mark.parametrize("incarnation", [1, 2])
def test_copies_that_took_a_while_go_to_the_process_that_asked_alone(incarnation: int) -> None:
    """The next process of an older version may use the same number for another request."""
    reads: list[Any] = []

    class Cold(Refusing):
        def entries_cold(self, _log: Any, *_range: int) -> None:
            reads.append(_range[-1])

    class Elsewhere(Log):
        def entries(self, first: int, end: int, _bytes_max: int) -> list[StoredEntry]:
            raise NotInMemory(first, end)

    wire = Wire()
    repair = repair_of(Replica(log=Elsewhere()), wire, alive={2: hello_of(2)}, store=Cold())
    (asked,) = encode_range(RangeRequest(12, GROUP, 4, 5))
    repair.request_received(2, memoryview(bytes(asked)))
    repair._state.alive[2] = hello_of(2, incarnation=incarnation)
    (found,) = reads
    found([StoredEntry(1, 4, EntryKind.NORMAL, b"x", 4, 1, 0)])
    assert len(wire.frames) == (1 if incarnation == 1 else 0)
