"""Consumer groups as handlers see them: the coordinators led here, and the requests to them.

A consumer group belongs permanently to one coordinator group; the server that leads it serves the
consumer group. Requests that change a group are proposed, and answered when applied here. Heartbeat
is answered from the applied state. Reads wait until a quorum has confirmed this leader.

Rules:

* Every request is answered exactly once. If this server cannot decide it, the error makes the
  client look for the coordinator again, and leaves the request's outcome unknown.
* The leading coordinator draws member ids, before it proposes.

Does not depend on wire formats and versions (the caller builds responses), nor on other APIs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from uuid import UUID

from ids import GroupId, Index
from vdl.clock import Clock
from vdl.errors import ErrorCode
from vdl.kafka.answer import Later
from vdl.kafka.groups.led_coordinator import GroupOptions, LedCoordinator, undecided
from vdl.kafka.groups.live_group import Joined, Synced, Waiter
from vdl.kafka.host import Compute, at_once
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.log import Log
from vdl.logstream.group.state_group import Outcome, OutcomeKind, StateGroup
from vdl.state import commands
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.coordinator import CommitAnswer, Coordinator
from vdl.state.group_kinds import COORDINATOR_IS_FULL
from vdl.state.offsets import Offsets


class CoordinatorHost(Protocol):
    """The server, as far as the coordinators use it."""

    @property
    def catalog(self) -> Catalog: ...
    @property
    def coordinator_count(self) -> int: ...
    def coordinator_group(self, key: str) -> GroupId: ...
    def state_group(self, group_id: GroupId) -> StateGroup | None: ...
    def settled_ms(self) -> int: ...


class GroupCoordinator:
    """All coordinator groups of one server: handlers call it, and it knows which are led here.

    Every method takes the `Later` of its request, or a callback, and answers once.
    """

    def __init__(
        self,
        *,
        host: CoordinatorHost,
        clock: Clock,
        rng: random.Random,
        options: Callable[[], GroupOptions],
        compute: Compute = at_once,
        pattern_work: PatternWork | None = None,
        own_topics: Iterable[TopicInfo] = (),
        log: Log | None = None,
    ) -> None:
        """`options`: the current settings. `compute`: runs long computations. `pattern_work`: the
        server's. `own_topics`: Kafka's internal topics, which are views here."""
        self._host = host
        self._compute = compute
        self._pattern_work = pattern_work or PatternWork(compute, clock)
        self._own_topics = {topic.name: topic for topic in own_topics}
        self._clock = clock
        self._rng = rng
        self._options = options
        self._log = log
        self._led: dict[GroupId, LedCoordinator] = {}

    def attach(self, state_group: StateGroup) -> None:
        """Follow a coordinator replica of this server, from before it first serves."""
        state_group.observers.append(self)

    # --- StateObserver ---------------------------------------------------------------------
    def on_applied(self, group: StateGroup, result: Any, now_ms: int, index: Index) -> None:
        led = self._led.get(group.group_id)
        if led is None:
            return
        if result.events:
            led.applied(result)
        if type(result) is CommitAnswer:
            led.committed(result.error)

    def on_installed(self, group: StateGroup) -> None:
        """Check that this is a follower: a leader, which has timers and requests, gets no
        snapshot."""
        assert group.group_id not in self._led, group.group_id

    def on_serving(self, group: StateGroup) -> None:
        assert group.group_id not in self._led, group.group_id
        self._led[group.group_id] = LedCoordinator(
            group,
            self._clock,
            self._options,
            self._host.catalog,
            self._host.settled_ms,
            self._compute,
            self._pattern_work,
            self._own_topics,
            self._log,
        )

    def on_stopped_serving(self, group: StateGroup) -> None:
        led = self._led.pop(group.group_id, None)
        if led is not None:
            led.close()

    # --- coordinators led here ---------------------------------------------------------------
    def find(self, group_id: str) -> LedCoordinator | ErrorCode:
        """Return the coordinator of a consumer group if it is here; otherwise 16, or 14 while it
        loads."""
        number = self._host.coordinator_group(group_id)
        led = self._led.get(number)
        if led is not None and led.state_group.serving:
            return led
        state_group = self._host.state_group(number)
        if state_group is not None and state_group.is_leader:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def numbers(self) -> dict[str, int | float]:
        """Return metrics by name: of all coordinators that are led here, and of the fullest."""
        machines = [led.machine for led in self._led.values()]
        return {
            "coordinator_offsets": sum(len(machine.offsets) for machine in machines),
            "coordinator_bytes": sum(machine.bytes_held for machine in machines),
            "coordinator_room_used_ratio": max(
                (machine.room_used for machine in machines), default=0.0
            ),
        }

    def offsets_here(self) -> dict[GroupId, Offsets]:
        """Return the committed offsets of the coordinators that are led and loaded here."""
        return {number: led.machine.offsets for number, led in self._led.items()}

    def all_here(self) -> list[LedCoordinator | ErrorCode]:
        """Return every coordinator group this server leads, in order; 14 for one that loads."""
        found: list[LedCoordinator | ErrorCode] = []
        for number in map(GroupId, range(1, 1 + self._host.coordinator_count)):
            state_group = self._host.state_group(number)
            if state_group is None or not state_group.is_leader:
                continue
            found.append(self._led.get(number) or ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return found

    def new_member_id(self, client_id: str, group_instance_id: str | None) -> str:
        """Return a new member id: the instance's or the client's name, and 128 random bits."""
        return f"{client_id if group_instance_id is None else group_instance_id}-{self.random_id()}"

    def random_id(self) -> str:
        """Return 128 random bits, as a UUID."""
        return str(UUID(int=self._rng.getrandbits(128), version=4))

    def holds_first_rebalance(self) -> bool:
        """Return True if the first rebalance of an empty group waits for more members."""
        return self._options().group_initial_rebalance_delay_ms > 0

    # --- membership ------------------------------------------------------------------------
    def join(
        self,
        asker: str,
        command: commands.JoinGroup,
        later: Later,
        respond: Callable[[Joined], Any],
    ) -> None:
        """Process a JoinGroup. It is answered when the generation is set, or at once if nothing
        changes. `asker`: the client whose share it counts against (`RequestContext.asker`)."""
        waiter = Waiter(later, respond)
        led = self.find(command.group_id)
        if isinstance(led, LedCoordinator):
            led.classic.join(asker, command, waiter)
        else:
            waiter.complete(Joined(led, command.member_id))

    def sync(
        self,
        asker: str,
        command: commands.SyncGroup,
        later: Later,
        respond: Callable[[Synced], Any],
    ) -> None:
        """Process a SyncGroup: answered when the group's leader has sent the assignment. `asker` as
        in `join`."""
        waiter = Waiter(later, respond)
        led = self.find(command.group_id)
        if isinstance(led, LedCoordinator):
            led.classic.sync(asker, command, waiter)
        else:
            waiter.complete(Synced(led))

    def heartbeat(
        self, group_id: str, generation: int, member_id: str, group_instance_id: str | None
    ) -> ErrorCode:
        """Process a Heartbeat, from the applied state, at once."""
        led = self.find(group_id)
        if not isinstance(led, LedCoordinator):
            return led
        return led.classic.heartbeat(group_id, generation, member_id, group_instance_id)

    # --- commands that are answered when applied -----------------------------------------------
    def propose(
        self,
        group_id: str,
        command: Any,
        done: Callable[[ErrorCode, Any], None],
        *,
        member_id: str = "",
        asker: str = "",
    ) -> None:
        """Propose to the coordinator of `group_id`, and call `done(NONE, answer of the state
        machine)`, or `done` with the error: 15 if the outcome is unknown. `asker` as in `join`;
        empty for commands that take no room."""
        led = self.find(group_id)
        if not isinstance(led, LedCoordinator):
            done(led, None)
            return
        if member_id:
            # In a group of the newer protocol only heartbeats do, as in Kafka: a member that no
            # longer sends any would keep partitions that are meant for others.
            led.classic.renew(group_id, member_id)

        def applied(outcome: Outcome) -> None:
            if outcome.kind is OutcomeKind.APPLIED:
                done(ErrorCode.NONE, outcome.result)
            else:
                done(undecided(led, outcome), None)

        if not led.propose_for(asker, command, applied):
            done(COORDINATOR_IS_FULL, None)

    # --- reads -----------------------------------------------------------------------------
    def read(self, group_id: str, done: Callable[[ErrorCode, Coordinator | None], None]) -> None:
        """Read the state of the coordinator of `group_id`. It reflects everything acknowledged
        before this call. `done` receives an error if it cannot be read here."""
        led = self.find(group_id)
        if isinstance(led, LedCoordinator):
            self.read_led(led, done)
        else:
            done(led, None)

    def read_led(
        self, led: LedCoordinator, done: Callable[[ErrorCode, Coordinator | None], None]
    ) -> None:
        """Read as `read` does, from a coordinator that is known to be here."""

        def confirmed(current: bool) -> None:
            if current:
                done(ErrorCode.NONE, led.machine)
            else:
                done(ErrorCode.NOT_COORDINATOR, None)

        led.state_group.read_index(deadline_ns=led.deadline_ns(), done=confirmed)
