"""Members that send false epochs, partitions, instance names or protocols (KIP-848).

A command that cannot be applied would stop every replica, again at each start. So every client
request is answered, and state derived incrementally equals the state that a replica derives from a
snapshot.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from struct import pack
from typing import Any

import pytest

from vdl.errors import ErrorCode
from vdl.kafka.groups.target_computation import request_of, targets_of
from vdl.state import commands
from vdl.state.catalog import Catalog
from vdl.state.coordinator import Coordinator
from vdl.state.modern.group import group_from
from vdl.state.modern.partitions import partitions_of

GROUP = "g"
MEMBERS = ("a", "b", "c")
INSTANCES = (None, None, "x", "y")
STEPS = 120


def subscription(*topics: str) -> bytes:
    """Return a classic member's subscription, as its client encodes it."""
    names = b"".join(pack(">h", len(name)) + name.encode() for name in topics)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


def heartbeat(
    member: str, epoch: int, *, instance: str | None = None, **fields: Any
) -> commands.ConsumerHeartbeat:
    said: dict[str, Any] = {
        "rack_id": None,
        "client_id": "c",
        "client_host": "/h",
        "rebalance_timeout_ms": 30,
        "topics": ["t"],
        "pattern": None,
        "assignor": None,
        "owned": (),
        "members_max": 5,
        **fields,
    }
    return commands.ConsumerHeartbeat(GROUP, member, epoch, instance, **said)


def join(
    member: str,
    instance: str | None,
    *topics: str,
    new: str = "classic",
    protocols: Sequence[str] = ("range",),
) -> commands.JoinGroup:
    return commands.JoinGroup(
        GROUP, member, new, instance, "c", "/h", 10, 20, "consumer",
        [commands.Protocol(name, subscription(*topics)) for name in protocols], False, 9, False,
    )  # fmt: skip


class Liars:
    """One coordinator, and the requests sent to it."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.machine = Coordinator()
        self.catalog = Catalog("c", coordinator_groups=1)
        self.catalog.apply(commands.RegisterServer(1, b"d" * 16, "r1", {"P": ("h", 1)}, True), 0, 0)
        topics = [commands.NewTopic(name, name.encode() * 16, 3) for name in ("t", "u")]
        self.catalog.apply(commands.CreateTopics(topics), 0, 0)
        self.index = 0

    def apply(self, command: Any) -> Any:
        self.index += 1
        answer = self.machine.apply(command, self.index, self.index)
        self.check()
        return answer

    def assign(self) -> None:
        group = self.machine.consumer.groups.get(GROUP)
        if group is not None and group.members:
            command = targets_of(request_of(group, self.catalog))
            if command is not None:
                self.apply(command)

    def check(self) -> None:
        group = self.machine.consumer.groups.get(GROUP)
        if group is None:
            return
        other = group_from(group.stored())
        assert group.static_members == other.static_members
        assert group.owners == other.owners
        assert group.bytes == other.bytes
        assert set(group.static_members.values()) <= group.members.keys()

    def lie(self) -> None:
        """Send any request that a client may send, on behalf of any member."""
        rng = self.rng
        group = self.machine.consumer.groups.get(GROUP)
        name, instance = rng.choice(MEMBERS), rng.choice(INSTANCES)
        known = [] if group is None else [m.epoch for m in group.members.values()]
        epoch = rng.choice([0, 0, *known, *(one - 1 for one in known), 7])
        owned = partitions_of(
            {
                (rng.choice((b"t", b"u", b"?")) * 16, rng.randrange(4))
                for _ in range(rng.randrange(4))
            }
        )
        topics = rng.choice([["t"], ["u"], ["t", "u"], []])
        kind = rng.random()
        if kind < 0.5:
            topics_known = [
                commands.SubscribedTopic(one.name, one.topic_id, 3, one.partitions[-1])
                for one in self.catalog.topics.values()
            ]
            self.apply(
                heartbeat(
                    name,
                    max(0, epoch),
                    instance=instance,
                    topics=rng.choice([None, topics]),
                    owned=rng.choice([None, (), owned]),
                    pattern=rng.choice([None, "", "t|u"]),
                    upgrade=rng.choice([None, topics_known]),
                )
            )
        elif kind < 0.6:
            may = rng.random() < 0.5
            self.apply(
                commands.LeaveConsumerGroup(GROUP, name, instance, bool(instance) and may, may)
            )
        elif kind < 0.75:
            protocols = rng.choice([["range"], ["sticky"], ["sticky", "range"], []])
            member = rng.choice(["", name])
            self.apply(join(member, instance, *topics, new=f"n{self.index}", protocols=protocols))
        elif kind < 0.8:
            self.apply(
                commands.LeaveGroup(
                    GROUP, [commands.LeavingMember(rng.choice(["", name]), instance)]
                )
            )
        elif kind < 0.85:
            self.apply(commands.ExpireConsumers(GROUP, [(name, rng.choice([-1, epoch]))], True))
        elif kind < 0.87 and self.machine.group(GROUP) is not None:
            self.apply(commands.ExpireMembers(GROUP, list(MEMBERS)))
        else:
            self.assign()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_members_say_is_answered(seed: int) -> None:
    liars = Liars(seed)
    for _ in range(STEPS):
        liars.lie()


@pytest.mark.parametrize("comes", ["as a member", "as a classic one"])
def test_member_that_takes_another_instance_s_name_leaves_none_behind(comes: str) -> None:
    """A member that takes another instance's name gives up its first one.

    Otherwise that would belong to an absent member, and the next member to use it would stop every
    replica.
    """
    liars = Liars()
    liars.apply(heartbeat("a", 0, instance="x"))
    liars.assign()
    assert liars.apply(heartbeat("a", 0, instance="x")).error is ErrorCode.NONE
    assert liars.apply(heartbeat("a", 0, instance="y")).error is ErrorCode.NONE
    liars.apply(heartbeat("b", 0))
    liars.apply(commands.LeaveConsumerGroup(GROUP, "a", "y", is_static=False))
    if comes == "as a member":
        answer = liars.apply(heartbeat("c", 0, instance="x"))
    else:
        answer = liars.apply(join("", "x", "t"))
    assert answer.error is ErrorCode.NONE
