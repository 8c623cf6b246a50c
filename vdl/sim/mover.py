"""An operator who moves partitions: reassigns replicas, changes the target, cancels.

Targets are drawn among all servers, running or not, and never have fewer than
`Options.replicas_min` replicas: three where another fault may remove a disk, which is repaired from
the others. No command waits for the previous move to end: the next one may come at any point of it.

Does not depend on faults or on how replicas move.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from vdl.clock import MS
from vdl.kafka.wire import alter_partition_reassignments as alter
from vdl.sim.client import Failure, Message
from vdl.sim.workload import Env

CANCELS = 0.2
"""Chance that a command cancels."""
SOON = 0.3
"""Chance that the next command comes at once, while a move has just begun."""
SOON_MS = (1, 600)
ANOTHER_COUNT = 0.3
"""Chance that a partition gets a random number of replicas instead of the least."""


class Mover:
    """Client that sends the commands."""

    def __init__(self, env: Env, host: str, rng: Random, servers: int) -> None:
        self._env = env
        self._rng = rng
        self._servers = list(range(1, servers + 1))
        self._client = env.client("mover", host, rng, {})
        self._is_moving = True
        self.begun = 0
        """Number of accepted commands."""
        self._schedule()

    def stop(self) -> None:
        """Send no more commands. Moves in progress continue."""
        self._is_moving = False

    def _schedule(self) -> None:
        rng = self._rng
        if rng.random() < SOON:
            delay_ns = rng.randint(*SOON_MS) * MS
        else:
            delay_ns = int(rng.expovariate(self._env.options.moves) * 1_000 * MS)
        self._client.clock.call_later(delay_ns, self._act)

    def _act(self) -> None:
        if not self._is_moving:
            return
        self._schedule()
        rng = self._rng
        partition = rng.randrange(self._env.options.partitions)
        if rng.random() < CANCELS:
            self._ask(partition, None)
        else:
            least = count = self._env.options.replicas_min
            if rng.random() < ANOTHER_COUNT:
                count = rng.randint(least, len(self._servers))
            self._ask(partition, rng.sample(self._servers, count))

    def _ask(self, partition: int, replicas: list[int] | None) -> None:
        self._client.call_any(alter, _request(self._env.topic, partition, replicas), self._answered)

    def _answered(self, response: Message | Failure) -> None:
        if not isinstance(response, Failure):
            self.begun += response.responses[0].partitions[0].error_code == 0


def _request(
    topic: str, partition: int, replicas: list[int] | None
) -> Callable[[int], alter.AlterPartitionReassignmentsRequest]:
    def build(_version: int) -> alter.AlterPartitionReassignmentsRequest:
        asked = alter.ReassignableTopic(topic, [alter.ReassignablePartition(partition, replicas)])
        return alter.AlterPartitionReassignmentsRequest(2_000, True, [asked])

    return build
