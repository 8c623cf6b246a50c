"""Members of classic groups whose cost is counted.

Each is alone in its group. It joins as a client without an id (KIP-394), assigns, and leaves, again
and again, on its own connections.

Does not depend on what is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from tests.cost.cluster import Cluster
from vdl.errors import ErrorCode
from vdl.kafka.wire import find_coordinator, join_group, leave_group, sync_group
from vdl.sim.client import Failure, Message

SESSION_MS = 45_000
SUBSCRIPTION = bytes(50)
ASSIGNMENT = bytes(50)
_TYPE, _PROTOCOL = "consumer", "range"

Steps = Iterator[tuple[int, ModuleType, Message]]
"""(server, API, request) of each step, which ends with its answer."""


class Joining:
    """One member of a group of its own."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._client = cluster.client()
        self._group = group
        self._coordinator = -1
        self._answer: Message | None = None
        self._left = 0

    @property
    def is_done(self) -> bool:
        """True if it has joined, synced and left as often as requested."""
        return self._left == 0

    def begin(self, joins: int) -> None:
        """Begin to join `joins` times, one after the other."""
        self._left = joins
        self._go(self._all_of_it())

    def _all_of_it(self) -> Steps:
        if self._coordinator < 0:
            yield 1, find_coordinator, find_coordinator.FindCoordinatorRequest("", 0, [self._group])
            self._coordinator = self._answered.coordinators[0].node_id
        while self._left:
            yield from self._join()
            self._left -= 1

    def _join(self) -> Steps:
        to = self._coordinator
        yield to, join_group, self._request("")
        member_id = self._answered.member_id
        assert self._answered.error_code == ErrorCode.MEMBER_ID_REQUIRED, self._answered
        yield to, join_group, self._request(member_id)
        assert not self._answered.error_code, self._answered
        yield (
            to,
            sync_group,
            sync_group.SyncGroupRequest(
                group_id=self._group,
                generation_id=self._answered.generation_id,
                member_id=member_id,
                protocol_type=_TYPE,
                protocol_name=_PROTOCOL,
                assignments=[sync_group.SyncGroupRequestAssignment(member_id, ASSIGNMENT)],
            ),
        )
        assert not self._answered.error_code, self._answered
        leaving = [leave_group.MemberIdentity(member_id, None)]
        yield to, leave_group, leave_group.LeaveGroupRequest(self._group, members=leaving)
        assert not self._answered.members[0].error_code, self._answered

    def _request(self, member_id: str) -> join_group.JoinGroupRequest:
        return join_group.JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            member_id=member_id,
            protocol_type=_TYPE,
            protocols=[join_group.JoinGroupRequestProtocol(_PROTOCOL, SUBSCRIPTION)],
        )

    @property
    def _answered(self) -> Message:
        assert self._answer is not None, "nothing was requested"
        return self._answer

    def _go(self, steps: Steps) -> None:
        following = next(steps, None)
        if following is None:
            return
        node, api, request = following

        def answered(response: Message | Failure) -> None:
            assert not isinstance(response, Failure), response
            self._answer = response
            self._go(steps)

        self._client.call(node, api, lambda _: request, answered)
