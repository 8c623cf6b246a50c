"""Random commands against a coordinator: its invariants hold after each, and replays are equal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raft.types import Snapshot
from vdl.errors import ErrorCode
from vdl.logstream.group.snapshots import Members, decode_snapshot
from vdl.logstream.group.state_encoding import StateEncoding
from vdl.state import commands
from vdl.state.consumer_group import ConsumerGroup, GroupState
from vdl.state.consumer_groups import JoinCompleted, RebalanceStarted, SyncCompleted
from vdl.state.coordinator import Coordinator
from vdl.state.group_kinds import GroupKind
from vdl.state.share_states import DONE, RecordState, ShareState, WrittenShareStates
from vdl.state.table import decode_value

GROUPS = ["g", "h"]
TOPIC = b"t" * 16
PROTOCOLS = [
    [commands.Protocol("range", b"1"), commands.Protocol("sticky", b"1")],
    [commands.Protocol("sticky", b"2")],
    [commands.Protocol("sticky", b"3"), commands.Protocol("range", b"3")],
    [commands.Protocol("other", b"4")],
    [commands.Protocol(name, b"5") for name in ("range", "other", "range", "sticky")],
]
SECOND = 1_000


class Life:
    """One coordinator's log, its state, and the facts about its past that must never change."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.disk: dict[bytes, bytes] = {}
        self.log: list[tuple[commands.Envelope, bytes]] = []
        self.now_ms = 0
        self.drawn = 0
        self.encoding: StateEncoding | None = None
        self.unstored: dict[bytes, bytes | None] = {}
        """Changes that encoding has taken from the state and no checkpoint has stored yet."""

    def generation(self, group_id: str) -> int:
        group = self.machine.group(group_id)
        return -1 if group is None else group.generation

    def member(self, group_id: str, number: int) -> str:
        """Return an existing member, an issued id, or an unknown id."""
        group = self.machine.group(group_id)
        known = [] if group is None else [*group.members, *group.pending]
        return known[number % len(known)] if known and number < 9 else f"nobody{number}"

    def apply(self, command: Any, wait_ms: int = 1) -> Any:
        self.now_ms += wait_ms
        envelope = commands.Envelope(1, 1, len(self.log), self.now_ms, command)
        data = commands.encode(envelope)
        self.log.append((envelope, data))
        before = {name: self.generation(name) for name in GROUPS}
        result = self.machine.apply(commands.decode(data).command, self.now_ms, len(self.log))
        completed = {e.group_id for e in result.events if isinstance(e, JoinCompleted)}
        for name in GROUPS:
            group = self.machine.group(name)
            if group is None:
                continue
            check(group)
            step = group.generation - max(before[name], 0)
            assert step == (1 if name in completed else 0), (before, group.generation)
        self.encode_on()
        return result

    def encode_on(self) -> None:
        """Encode a piece of a snapshot between two commands.

        The finished snapshot equals the state at its end, although most of it was read before.
        """
        if self.encoding is None:
            scan = self.machine.scan()

            def take(limit: int) -> list[tuple[bytes, bytes | None]]:
                changes = scan.take_dirty(limit)
                self.unstored.update(changes)
                return changes

            self.encoding = StateEncoding(scan.items, take, piece=2)
        if self.encoding.read_on():
            members = Members(len(self.log), (1, 2, 3))
            self.encoding.stand(
                Snapshot(len(self.log)),
                members,
                count=self.machine.item_count,
                in_parts=self.machine.snapshots_in_parts,
            )
            while (data := self.encoding.pack_on()) is None:
                pass
            found = decode_snapshot(data)
            assert (found.members, found.items) == (members, self.machine.items())
            assert self.encoding.plain_bytes == sum(len(k) + len(v) for k, v in found.items)
            self.encoding = None

    def count(self) -> None:
        """Check that the counters match the contents."""
        offsets = self.machine.offsets
        positions = [p for name in GROUPS for p in offsets.of(name).values()]
        assert offsets.by_partition == Counter(p.partition_group for p in positions)
        groups = [group for name in GROUPS if (group := self.machine.group(name)) is not None]
        members = sum(len(group.members) for group in groups)
        transactions = len(self.machine.pending) + len(self.machine.transactions)
        share = self.machine.share
        shared = [share.groups.groups[name] for name in GROUPS if name in share]
        states = [state for name in GROUPS for state in share.states.of(name).values()]
        shares = sum(1 + len(group.members) for group in shared) + len(states)
        assert share.states.bytes == sum(state.bytes for state in states)
        assert share.groups.bytes_held == sum(group.bytes for group in shared)
        counted = len(groups) + members + len(positions) + transactions + shares
        assert self.machine.item_count == counted
        held = self.machine.bytes_held
        copy = Coordinator()
        copy.load(self.machine.items())
        assert copy.bytes_held == held

    def checkpoint(self) -> None:
        dirty = self.machine.take_dirty()
        if self.encoding is not None:
            self.encoding.changed(dirty)
        self.unstored.update(dirty)
        for key, value in self.unstored.items():
            if value is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = value
        self.unstored = {}
        assert sorted(self.disk.items()) == self.machine.items()

    def restart(self) -> None:
        self.checkpoint()
        self.encoding = None
        bound = self.machine.positions_bound
        self.machine = Coordinator()
        self.machine.load(sorted(self.disk.items()))
        assert self.machine.positions_bound == bound


def check(group: ConsumerGroup) -> None:
    """Check the invariants that the rest of the code relies on."""
    members = group.members
    assert {m.member_id for m in members.values()} == set(members)
    assert group.static_members == {
        m.group_instance_id: m.member_id
        for m in members.values()
        if m.group_instance_id is not None
    }
    assert not set(group.pending) & set(members)
    check_counts(group)
    if group.leader is not None:
        assert group.leader in members
    if group.state is GroupState.EMPTY:
        assert not members
        assert not group.held
    elif group.state is GroupState.PREPARING_REBALANCE:
        assert members or group.pending
        assert not group.all_joined or group.held, "nobody is left to wait for"
    else:
        assert group.leader is not None
        assert group.protocol_name in group.supporters
        assert group.supporters[group.protocol_name] == len(members)
        assert not any(member.joined for member in members.values())


def check_counts(group: ConsumerGroup) -> None:
    """Check that counters maintained incrementally equal those computed from each member."""
    members = list(group.members.values())
    names = [tuple(protocol.name for protocol in member.protocols) for member in members]
    assert group.joined_count == sum(member.joined for member in members)
    assert group.preferences == Counter(names)
    assert group.supporters == Counter(name for one in names for name in set(one))
    if members:
        common = set(names[0]).intersection(*names)
        votes = Counter(next(name for name in one if name in common) for one in names)
        # Ties are decided by the first member's preference.
        assert group.select_protocol() == min(
            common, key=lambda name: (-votes[name], names[0].index(name))
        )


def run(life: Life, step: tuple[str, int, int, int]) -> None:
    kind, where, number, choice = step
    name = GROUPS[where]
    member = life.member(name, number)
    generation = life.generation(name) - (choice == 3)
    life.drawn += 1
    match kind:
        case "join new" | "join":
            life.apply(
                commands.JoinGroup(
                    group_id=name,
                    member_id=member if kind == "join" else "",
                    new_member_id=f"m{life.drawn}",
                    group_instance_id=f"i{number % 3}" if choice == 2 else None,
                    client_id="c",
                    client_host="/h",
                    session_timeout_ms=10,
                    rebalance_timeout_ms=20,
                    protocol_type="consumer" if number else "connect",
                    protocols=PROTOCOLS[number % len(PROTOCOLS)],
                    known_member_id_required=choice == 1,
                    members_max=4,
                    hold_first_rebalance=choice == 0,
                )
            )
        case "sync":
            group = life.machine.group(name)
            if choice and group is not None and group.leader is not None:
                member = group.leader
            result = life.apply(
                commands.SyncGroup(name, generation, member, None, None, None, [(member, b"a")])
            )
            if SyncCompleted(name) in result.events:
                group = life.machine.group(name)
                assert group is not None
                assert group.members[member].assignment == b"a"
        case "leave":
            life.apply(commands.LeaveGroup(name, [commands.LeavingMember(member)]))
        case "leave instance":
            life.apply(commands.LeaveGroup(name, [commands.LeavingMember("", f"i{number % 3}")]))
        case "expire":
            life.apply(commands.ExpireMembers(name, [member], generation if choice == 1 else -1))
        case "complete join":
            result = life.apply(commands.CompleteJoin(name, generation))
            assert result.events == [] or type(result.events[-1]) in (
                JoinCompleted,
                RebalanceStarted,
            )
        case "commit":
            simple = choice == 0
            before = life.machine.group(name)
            said = -1 if simple else generation
            allowed = before is None or (
                before.state is GroupState.EMPTY if said < 0 else member in before.members
            )
            partition_group = 10 * choice + number
            offset = commands.OffsetCommit(
                "t", b"i" * 16, number, life.drawn, 0, "", partition_group
            )
            known = life.machine.offsets.get(name, "t", number)
            is_behind = known is not None and 0 < partition_group < known.partition_group
            result = life.apply(
                commands.CommitOffsets(
                    name,
                    said,
                    "" if simple else member,
                    None,
                    [offset],
                    retention_ms=5 if number == 7 else -1,
                )
            )
            if result.error is ErrorCode.NONE:
                assert allowed
                assert not is_behind
                found = life.machine.offsets.get(name, "t", number)
                assert found is not None
                assert found.offset == life.drawn
        case "delete":
            life.apply(commands.DeleteGroups([name]))
        case "delete offsets":
            kept = dict(life.machine.offsets.of(name))
            result = life.apply(commands.DeleteOffsets(name, [("t", number), ("u", 0)]))
            if result.error is ErrorCode.NONE and result.errors[0] is ErrorCode.NONE:
                kept.pop(("t", number), None)
            assert life.machine.offsets.of(name) == kept
        case "expire offsets":
            gone = [10 * choice + number, 10 * choice + 1]
            life.apply(commands.ExpireOffsets(SECOND, gone), wait_ms=choice * SECOND)
            assert life.machine.expirable(life.now_ms, SECOND) == []
            assert not set(gone) & life.machine.offsets.by_partition.keys()
        case "expire offsets of":
            gone = [10 * choice + number, 10 * choice + 1]
            kept = life.machine.offsets.of(GROUPS[1 - where]).copy()
            command = commands.ExpireOffsetsOf([name], SECOND, gone, life.now_ms)
            life.apply(command, wait_ms=choice * SECOND)
            assert life.machine.expirable(command.now_ms, SECOND, [name]) == []
            assert life.machine.offsets.in_partitions(name, set(gone)) == []
            assert life.machine.offsets.of(GROUPS[1 - where]) == kept
        case "raise":
            life.apply(commands.RaisePositionsBound(1_000 * number, 10 * choice))
        case "init":
            known = life.machine.transactions.ids.get(name)
            epoch = -1 if known is None else known.epoch - (choice == 3)
            expected = (-1, -1) if known is None or choice < 2 else (known.producer_id, epoch)
            result = life.apply(commands.InitTransactions(name, 10, life.drawn, *expected))
            if result.error is ErrorCode.NONE and known is not None and choice < 2:
                assert result.epoch == epoch + 1, "a new instance fences the one before"
        case "add":
            known = life.machine.transactions.ids.get(name)
            if known is not None:
                life.apply(
                    commands.AddToTransaction(
                        name, known.producer_id, known.epoch, [number, 1], version=1 + choice % 2
                    )
                )
        case "end":
            known = life.machine.transactions.ids.get(name)
            if known is not None:
                decided = known.state if known.state.is_prepared else None
                life.apply(
                    commands.EndTransaction(
                        name, known.producer_id, known.epoch, number < 5, 1 + choice % 2, 99
                    )
                )
                assert decided in (None, known.state), "what is decided stands"
        case "complete" | "abort":
            known = life.machine.transactions.ids.get(name)
            if known is not None:
                one = (name, known.producer_id, known.number - (choice == 3))
                kind_of = {
                    "complete": commands.CompleteTransactions,
                    "abort": commands.AbortTransactions,
                }[kind]
                life.apply(kind_of([one]))
        case "pend":
            offset = commands.OffsetCommit("t", b"i" * 16, number, life.drawn, 0, "", 10)
            said = -1 if choice else generation
            life.apply(
                commands.CommitTransactionOffsets(name, said, "", None, choice, 0, number, [offset])
            )
        case "end offsets":
            life.apply(commands.EndTransactionOffsets(choice, 0, number, where == 0))
        case "share join" | "share leave":
            topics = [commands.ShareTopic("t", TOPIC, list(range(11, 12 + number % 3)))]
            share_member = f"s{choice}"
            barred = life.machine.is_barred(name, GroupKind.SHARE)
            if kind == "share join":
                command: Any = commands.JoinShareGroup(
                    name, share_member, "", "c", "/h", ["t"], topics, 3
                )
            else:
                command = commands.LeaveShareGroup(name, [share_member], topics)
            result = life.apply(command)
            if kind == "share join" and result.error is ErrorCode.NONE:
                assert not barred
                assert life.machine.share.states.get(name, TOPIC, 0) is not None
                places = life.machine.share.groups.groups[name].assignment
                assert {one for some in places.values() for one in some} == {
                    (TOPIC, index)
                    for index in range(
                        len(life.machine.share.groups.groups[name].topics["t"].partition_groups)
                    )
                }
        case "claim":
            result = life.apply(commands.ClaimSharePartition(name, TOPIC, 0, choice, number))
            state = life.machine.share.states.get(name, TOPIC, 0)
            if result.error is ErrorCode.NONE:
                assert state is not None
                assert all(value[0] != RecordState.ACQUIRED for _, _, value in state.runs)
        case "write":
            state = life.machine.share.states.get(name, TOPIC, 0)
            if state is not None:
                write_share(life, state, number, choice)
        case "alter share":
            group_before = life.machine.share.groups.groups.get(name)
            as_kafka = choice % 2 == 1
            offset = -1 if choice == 1 else number
            result = life.apply(
                commands.AlterShareOffsets(name, [(TOPIC, 0, 11, offset)], as_kafka=as_kafka)
            )
            if result.error is ErrorCode.NONE:
                assert as_kafka or group_before is not None
                assert group_before is None or not group_before.members
                altered = life.machine.share.states.get(name, TOPIC, 0)
                assert altered is not None
                assert altered.start_offset == offset
        case "delete share":
            life.apply(commands.DeleteShareOffsets(name, [TOPIC]))
        case "checkpoint":
            life.checkpoint()
        case "restart":
            life.restart()
        case _:
            raise AssertionError(kind)


def write_share(life: Life, state: ShareState, number: int, choice: int) -> None:
    """Write a share-partition's state, in order or not.

    Processed records stay processed, and its start never moves back.
    """
    start = state.start_offset
    done = [(first, last) for first, last, value in state.runs if value == DONE]
    write = commands.ShareWrite(
        *state.key,
        state.state_epoch,
        state.leader_epoch - (choice == 3),
        state.claim,
        state.number + (number != 9),
        max(0, start) + (number == 8),
        [(max(0, start) + number, max(0, start) + number + 2, choice % 3, 1 + number % 4)],
    )
    answer = decode_value(life.apply(commands.WriteShareState([write])).data, WrittenShareStates)
    assert state.start_offset >= start
    if answer.errors == [ErrorCode.NONE] and number != 9:
        assert state.number == write.number
    for first, last in done:
        first = max(first, state.start_offset)
        if first <= last:
            assert all(value == DONE for _, _, value in state.runs.within(first, last))


KINDS = [
    "join new", "join new", "join", "join", "join", "sync", "sync", "leave", "leave instance",
    "expire", "complete join", "complete join", "commit", "delete", "delete offsets",
    "expire offsets", "expire offsets of", "raise",
    "checkpoint", "restart", "init", "init", "add", "add", "end",
    "complete", "abort", "pend", "end offsets", "share join", "share join", "share leave",
    "claim", "claim", "write", "write", "write", "alter share", "delete share",
]  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 1), st.integers(0, 9), st.integers(0, 3)),
        max_size=70,
    )
)
def test_random_commands_keep_the_invariants_and_replay_to_equal_bytes(
    steps: list[tuple[str, int, int, int]],
) -> None:
    """Every replica has the same bytes, over checkpoints and restarts and from the log alone.

    A generation is set once, and only then does its number rise.
    """
    life = Life()
    for step in steps:
        run(life, step)
        life.count()
    life.checkpoint()
    replay = Coordinator()
    for index, (_, data) in enumerate(life.log, start=1):
        envelope = commands.decode(data)
        replay.apply(envelope.command, envelope.now_ms, index)
    assert replay.items() == life.machine.items()


def test_keys_are_short_whatever_clients_call_things() -> None:
    """A store accepts keys of a few hundred bytes; names have up to 32,767."""
    life = Life()
    name = "ü" * 16_000
    offsets = [commands.OffsetCommit("t" * 249, b"i" * 16, n, 1, -1, "") for n in range(3)]
    life.apply(commands.CommitOffsets(name, -1, "", None, offsets))
    items = life.machine.items()
    assert len(items) == 4
    assert max(len(key) for key, _ in items) <= 32
    copy = Coordinator()
    copy.load(items)
    assert copy.items() == items
    assert copy.offsets.of(name) == life.machine.offsets.of(name)
