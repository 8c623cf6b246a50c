"""Random histories of KIP-848 groups: no partition belongs to two members.

Members are simulated as clients: each knows only the answers that reached it, and reads the
partitions of the last one. The rule is therefore tested at the clients, and not only in the
coordinator's state.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from vdl.errors import ErrorCode
from vdl.kafka.groups.pattern_subscriptions import PatternSubscriptions
from vdl.kafka.groups.target_computation import request_of, targets_of
from vdl.kafka.host import at_once
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator
from vdl.state.modern.group import ModernGroup, group_from, target_bytes
from vdl.state.modern.partitions import Partitions, Place, partitions_of, places_of

GROUP = "g"
SECOND = 1_000
SETTLING_ROUNDS = 8
SUBSCRIPTIONS: list[tuple[list[str], str | None]] = [
    (["t"], None),
    (["t", "u"], None),
    ([], None),
    (["u"], "^t.*"),
    ([], "[tu]"),
]


class Client:
    """A consumer: the last answer that it received, and the partitions that it reads."""

    def __init__(self, member_id: str, instance_id: str | None) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.epoch = 0
        self.reads: set[Place] = set()
        self.shown: Partitions | None = ()
        """Partitions that its next heartbeat reports as owned."""
        self.old: list[commands.ConsumerHeartbeat] = []
        """Requests sent before: any of them may arrive again."""
        self.is_in = False
        self.is_over = False
        """True once it was expelled; it stops by itself after a session without an answer."""


class Life:
    """One coordinator's log, its state, its clients."""

    def __init__(self) -> None:
        self.machine = Coordinator()
        self.catalog = Catalog("c", coordinator_groups=1)
        work = PatternWork(at_once, NodeClock(VirtualTime()))
        self.patterns = PatternSubscriptions(self.catalog, {}, work)
        self.catalog.apply(commands.RegisterServer(1, b"d" * 16, "r1", {"P": ("h", 1)}, True), 0, 0)
        self.make_topic("t", 5)
        self.log: list[bytes] = []
        self.disk: dict[bytes, bytes] = {}
        self.now_ms = 0
        self.clients: dict[int, Client] = {}
        self.drawn = 0
        self.held: dict[tuple[Place, int], str] = {}
        """(partition, member epoch) -> its owner at that time: an instance or an id."""
        self.positions: dict[str, int] = {}
        self.computed: list[commands.AssignTargets] = []
        """Computed targets, which are applied late or twice."""

    def make_topic(self, name: str, partitions: int) -> None:
        self.catalog.apply(
            commands.CreateTopics([commands.NewTopic(name, name.encode() * 16, partitions)]), 0, 0
        )

    @property
    def group(self) -> ModernGroup | None:
        return self.machine.consumer.groups.get(GROUP)

    def apply(self, command: Any) -> Any:
        self.now_ms += 1
        data = commands.encode(commands.Envelope(1, 1, len(self.log), self.now_ms, command))
        self.log.append(data)
        epoch_before = 0 if self.group is None else self.group.epoch
        result = self.machine.apply(commands.decode(data).command, self.now_ms, len(self.log))
        if self.group is None:
            self.held.clear()
        else:
            self.check(self.group, epoch_before)
        return result

    def check(self, group: ModernGroup, epoch_before: int) -> None:
        """Check the invariants that hold after each command."""
        assert epoch_before <= group.epoch
        assert group.assignment_epoch <= group.epoch
        owners: dict[Place, str] = {}
        for member in group.members.values():
            assert member.epoch <= group.assignment_epoch
            assert not set(places_of(member.assigned)) & set(places_of(member.revoking))
            for place in (*places_of(member.assigned), *places_of(member.revoking)):
                assert owners.setdefault(place, member.member_id) == member.member_id
            if member.epoch < 1:
                continue
            name = member.instance_id or member.member_id
            for place in places_of(member.assigned):
                assert self.held.setdefault((place, member.epoch), name) == name, (
                    "owned twice in one epoch"
                )
        assert owners == group.owners
        assert set(group.targets) <= set(group.members)
        if group.epoch == group.assignment_epoch:
            wanted: list[Place] = [p for one in group.targets.values() for p in places_of(one)]
            assert len(wanted) == len(set(wanted)), "a target has what another one has"
        assert group.bytes == group_from(group.stored()).bytes
        assert sum(map(target_bytes, group.targets.values())) <= group.bytes

    def check_clients(self) -> None:
        """Check that no two clients read one partition.

        An expelled client learns of it before its next step, and does not count.
        """
        readers: dict[Place, str] = {}
        members = {} if self.group is None else self.group.members
        for client in self.clients.values():
            if client.member_id in members and not client.is_over:
                for place in client.reads:
                    assert readers.setdefault(place, client.member_id) == client.member_id

    # --- clients' actions ----------------------------------------------------------------------
    def client(self, number: int) -> Client:
        if number not in self.clients:
            instance_id = f"i{number}" if number % 4 == 3 else None
            self.clients[number] = Client(f"m{number}", instance_id)
        return self.clients[number]

    def heartbeat(self, client: Client, choice: int, *, answer_is_lost: bool) -> None:
        topics, pattern = SUBSCRIPTIONS[choice % len(SUBSCRIPTIONS)]
        joins = not client.is_in
        says_all = joins or choice % 2 == 0
        if joins:
            client.epoch, client.reads, client.shown = 0, set(), ()
        command = commands.ConsumerHeartbeat(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=client.epoch,
            instance_id=client.instance_id if says_all else None,
            rack_id="r1" if choice == 3 else None,
            client_id="c",
            client_host="/h",
            rebalance_timeout_ms=30 if says_all else -1,
            topics=topics if says_all else None,
            pattern=pattern or "" if says_all else None,
            assignor="range" if choice == 4 else None,
            owned=client.shown,
            members_max=5,
        )
        client.old.append(command)
        self.deliver(client, command, answer_is_lost=answer_is_lost)

    def deliver(
        self, client: Client, command: commands.ConsumerHeartbeat, *, answer_is_lost: bool
    ) -> None:
        heard = self.machine.heard(command)
        answer = self.apply(command)
        assert answer.error is heard.error, "what was heard is what is applied"
        assert bool(answer.events) >= heard.is_change
        if answer_is_lost:
            return
        if answer.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            client.is_in, client.is_over, client.reads = False, False, set()
        if answer.error is not ErrorCode.NONE:
            return
        client.is_in, client.is_over = True, False
        client.epoch = answer.member.epoch
        wanted = set(places_of(answer.member.assigned))
        # It revokes first, and reads new partitions afterwards.
        client.reads = wanted
        client.shown = partitions_of(wanted)

    def late(self, client: Client, number: int) -> None:
        """Deliver an earlier request of a client (again); no client waits for the answer."""
        if client.old:
            self.apply(client.old[number % len(client.old)])

    def commit(self, client: Client) -> None:
        group = self.group
        member = None if group is None else group.members.get(client.member_id)
        offset = commands.OffsetCommit("t", b"t" * 16, 0, len(self.log), 0, "", 2)
        result = self.apply(
            commands.CommitOffsets(GROUP, client.epoch, client.member_id, None, [offset])
        )
        if result.error is ErrorCode.NONE:
            assert group is None or (member is not None and member.epoch == client.epoch)

    # --- leader's actions ----------------------------------------------------------------------
    def compute(self) -> None:
        if self.group is not None and self.group.members:
            self.patterns.resolve(GROUP, self.patterns.matched(self.group), lambda: None)
            matched = self.patterns.matched(self.group)
            assert not matched.missing
            command = targets_of(request_of(self.group, self.catalog, {}, matched))
            if command is not None:
                self.computed.append(command)

    def assign(self, number: int) -> None:
        if self.computed:
            self.apply(self.computed[-1 - number % min(2, len(self.computed))])

    def expire(self, client: Client, choice: int) -> None:
        epoch = client.epoch if choice == 1 else -1
        self.apply(commands.ExpireConsumers(GROUP, [(client.member_id, epoch), ("nobody", -1)]))
        if self.group is not None and client.member_id not in self.group.members:
            client.is_over = True

    def restart(self) -> None:
        for key, value in self.machine.take_dirty():
            if value is None:
                self.disk.pop(key, None)
            else:
                self.disk[key] = value
        assert sorted(self.disk.items()) == self.machine.items()
        held = self.machine.bytes_held
        self.machine = Coordinator()
        self.machine.load(sorted(self.disk.items()))
        assert self.machine.bytes_held == held


def run(life: Life, step: tuple[str, int, int]) -> None:
    kind, number, choice = step
    client = life.client(number)
    match kind:
        case "heartbeat":
            life.heartbeat(client, choice, answer_is_lost=False)
        case "answer lost":
            life.heartbeat(client, choice, answer_is_lost=True)
        case "late":
            life.late(client, choice)
        case "leave" | "leave for a while":
            stays = kind == "leave for a while"
            answer = life.apply(
                commands.LeaveConsumerGroup(GROUP, client.member_id, client.instance_id, stays)
            )
            if answer.error is ErrorCode.NONE:
                client.is_in, client.reads = False, set()
                if stays and client.instance_id is not None:
                    # It returns as another process.
                    life.drawn += 1
                    client.member_id = f"again{life.drawn}"
        case "expire":
            life.expire(client, choice)
        case "compute":
            life.compute()
        case "assign":
            life.compute()
            life.assign(0)
        case "assign late":
            life.assign(choice)
        case "topic":
            if "u" in life.catalog.topics:
                life.catalog.apply(commands.DeleteTopics(["u"]), 0, 0)
            else:
                life.make_topic("u", 3)
        case "commit":
            life.commit(client)
        case "classic":
            life.apply(
                commands.JoinGroup(
                    GROUP, "", f"c{len(life.log)}", None, "c", "/h", 10, 20, "consumer",
                    [commands.Protocol("range", b"")], False, 9, False,
                )
            )  # fmt: skip
        case "classic gone":
            group = life.machine.group(GROUP)
            if group is not None:
                life.apply(commands.ExpireMembers(GROUP, list(group.members)))
        case "delete":
            life.apply(commands.DeleteGroups([GROUP]))
        case "expire offsets":
            life.now_ms += SECOND
            life.apply(commands.ExpireOffsets(SECOND, [], life.now_ms))
        case "restart":
            life.restart()
    life.check_clients()


KINDS = [
    "heartbeat", "answer lost", "late", "leave", "leave for a while", "expire", "compute", "assign",
    "assign late", "topic", "commit", "classic", "classic gone", "delete", "expire offsets",
    "restart",
]  # fmt: skip
OFTEN = ["heartbeat"] * 12 + ["assign"] * 6 + ["commit"] * 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS + OFTEN), st.integers(0, 6), st.integers(0, 4)),
        min_size=50,
        max_size=200,
    )
)
def test_partition_belongs_to_one_member_whatever_is_late(
    steps: list[tuple[str, int, int]],
) -> None:
    """The invariants hold after each step, and a replay of the log has the same bytes.

    When nothing more happens, each member has its target assignment.
    """
    life = Life()
    for step in steps:
        run(life, step)
    replay = Coordinator()
    for index, data in enumerate(life.log):
        envelope = commands.decode(data)
        replay.apply(envelope.command, envelope.now_ms, index + 1)
    assert replay.items() == life.machine.items()
    settle(life)


def settle(life: Life) -> None:
    """Continue clients that are in the group, and expel the others.

    Some are fenced only now, because they received too few answers.
    """
    group = life.group
    if group is None:
        return
    for _ in range(SETTLING_ROUNDS):
        known = {client.member_id for client in life.clients.values() if client.is_in}
        gone = [(member_id, -1) for member_id in group.members if member_id not in known]
        life.apply(commands.ExpireConsumers(GROUP, gone))
        run(life, ("assign", 0, 0))
        for client in list(life.clients.values()):
            if client.is_in:
                life.heartbeat(client, 1, answer_is_lost=False)
        life.check_clients()
    assert group.state.value in ("Stable", "Empty")
    wanted = {topic.topic_id: topic.partitions for topic in group.topics.values()}
    assert len(group.owners) == sum(wanted.values())
