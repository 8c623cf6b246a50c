"""Random consumers over servers that fail.

Invariant: no request waits forever, no partition has two owners in one generation, and in the end
all members agree.
"""

from __future__ import annotations

import random

import pytest

from tests.unit.kafka_groups.client import GROUP, heartbeat, join, leave, sync
from tests.unit.kafka_groups.cluster import Call, Cluster
from vdl.errors import ErrorCode
from vdl.state.consumer_group import GroupState

PARTITIONS = 6
START_OVER = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class Member:
    """One consumer: joins, syncs, sends heartbeats, rejoins on request.

    `own` are its partitions.
    """

    def __init__(self, world: RandomWorld, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.id = ""
        self.generation = -1
        self.open: Call | None = None
        self.own: bytes | None = None
        self.fenced = False

    @property
    def stable(self) -> bool:
        return self.own is not None

    def step(self) -> None:
        """Run one turn of the consumer's loop."""
        if self.fenced:
            return
        call = self.open
        if call is None:
            if self.stable:
                self._beat()
            else:
                self._join()
        elif call.done:
            self.open = None
            if call.key == 11:
                self._joined(call)
            else:
                self._synced(call)

    def hang_up(self) -> None:
        """Break the connection; the consumer will retry."""
        if self.open is not None:
            self.open.hang_up()
            self.open = None
            self.own = None

    def _call(self, call: Call) -> None:
        self.open = call
        self.world.calls.append(call)

    def _join(self) -> None:
        self._call(
            join(
                self.world.cluster,
                self.id,
                server=self.world.coordinator(),
                group_instance_id=self.instance_id,
                rebalance_timeout_ms=20_000,
            )
        )

    def _joined(self, call: Call) -> None:
        response = call.response
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response.member_id
        elif response.error_code:
            self._start_over(response.error_code)
        else:
            assert response.generation_id >= self.generation, "generations only rise"
            self.id = response.member_id
            self.generation = response.generation_id
            assignments: dict[str, bytes] = {}
            if response.leader == self.id and not response.skip_assignment:
                ids = [member.member_id for member in response.members]
                assignments = {
                    member: bytes(p for p in range(PARTITIONS) if p % len(ids) == place)
                    for place, member in enumerate(ids)
                }
            self._call(
                sync(
                    self.world.cluster,
                    self.id,
                    self.generation,
                    assignments,
                    server=self.world.coordinator(),
                    group_instance_id=self.instance_id,
                )
            )

    def _synced(self, call: Call) -> None:
        response = call.response
        if response.error_code:
            self._start_over(response.error_code)
            return
        self.own = bytes(response.assignment)
        self.world.owns(self, self.generation, self.own)

    def _beat(self) -> None:
        error = heartbeat(
            self.world.cluster,
            self.id,
            self.generation,
            server=self.world.coordinator(),
            group_instance_id=self.instance_id,
        )
        if error is not ErrorCode.NONE:
            self._start_over(error)

    def _start_over(self, code: int) -> None:
        error = ErrorCode(code)
        self.own = None
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif error is ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        else:
            assert error in START_OVER, error


class RandomWorld:
    """Three servers, some members, and a seed that selects the events."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        delay = self.rng.choice([0, 0, 1_000])
        self.cluster = Cluster(3, group_initial_rebalance_delay_ms=delay)
        self.number = self.cluster.servers[1].coordinator_group(GROUP)
        self.calls: list[Call] = []
        self.members: list[Member] = []
        self.owners: dict[tuple[int, int], str] = {}
        self.static = 0
        self.loading = False
        self.wrong = 0.02

    def coordinator(self) -> int:
        """Return the server that a client believes to be the coordinator."""
        if self.rng.random() < self.wrong:
            return self.rng.randint(1, 3)
        return self.cluster.logs[self.number].leader

    def owns(self, member: Member, generation: int, partitions: bytes) -> None:
        """Assert that the partitions have one owner in the generation.

        A static member keeps its name over a restart, a dynamic one has its id.
        """
        name = member.instance_id or member.id
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), name)
            assert owner == name, (generation, partition, owner, name)

    def happen(self) -> None:
        """Run one random event."""
        rng, cluster = self.rng, self.cluster
        chance = rng.random()
        if chance < 0.72:
            if self.members:
                rng.choice(self.members).step()
        elif chance < 0.80:
            cluster.advance(rng.choice([1, 100, 2_000, 6_000, 11_000]))
        elif chance < 0.86 and len(self.members) < 5:
            instance_id = None
            if rng.random() < 0.4:
                self.static = (self.static + 1) % 2
                instance_id = f"i{self.static}"
            self.members.append(Member(self, instance_id))
        elif chance < 0.89 and self.members:
            self.members.pop(rng.randrange(len(self.members))).hang_up()  # it crashed
        elif chance < 0.91 and self.members:
            member = self.members.pop(rng.randrange(len(self.members)))
            member.hang_up()
            leave(cluster, (member.id, member.instance_id), server=self.coordinator())
        elif chance < 0.94 and self.members:
            rng.choice(self.members).hang_up()
        elif chance < 0.97:
            self.settle_leader()
            leader = rng.randint(1, 3)
            self.loading = rng.random() < 0.5
            cluster.elect(self.number, leader, keep=rng.random() < 0.5, serve=not self.loading)
        else:
            cluster.commits = not cluster.commits
            if rng.random() < 0.5:
                self.settle_leader()

    def settle_leader(self) -> None:
        if self.loading:
            self.loading = False
            self.cluster.serve(self.number)

    def end(self) -> None:
        """Stop all faults; all members must agree soon."""
        self.settle_leader()
        self.cluster.commits = True
        self.wrong = 0.0
        self.cluster.pump()
        names = [member.instance_id for member in self.members]
        for place in range(len(self.members) - 1, -1, -1):
            if names[place] is not None and names[place] in names[:place]:
                self.members.pop(place).hang_up()  # two processes of one name never agree
        for _ in range(400):
            for member in self.members:
                if member.fenced:  # by a process that is gone; its operator restarts it
                    member.fenced, member.id = False, ""
                member.step()
            self.cluster.advance(300)


@pytest.mark.parametrize("seed", range(60))
def test_random_members_agree_in_the_end_and_never_share(seed: int) -> None:
    """RELIABILITY own2; every request answered; generations rise; replicas equal."""
    world = RandomWorld(seed)
    for _ in range(300):
        world.happen()
    world.end()
    assert all(call.done or call.answer.cancelled for call in world.calls)
    world.cluster.assert_replicas_equal()
    group = world.cluster.machine(GROUP).group(GROUP)
    if not world.members:
        assert group is None or group.state is GroupState.EMPTY
        return
    assert group is not None
    assert group.state is GroupState.STABLE
    assert all(member.stable for member in world.members)
    assert {member.generation for member in world.members} == {group.generation}
    assert set(group.members) == {member.id for member in world.members}
    owned = sorted(p for member in world.members for p in member.own or b"")
    assert owned == list(range(PARTITIONS))
