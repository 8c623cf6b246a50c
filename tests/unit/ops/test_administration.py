"""The server's status report, against test doubles: in bounded parts, while groups come and go."""

from functools import partial
from types import SimpleNamespace

import pytest

from rpc.admin import MemberChange, Role
from rpc.streams import LinkStatus
from vdl.errors import ErrorCode
from vdl.events import ENTRIES_MAX, Events, Kind
from vdl.logstream.state import HostState
from vdl.server.administration import EVENTS_PER_PART, GROUPS_PER_PART, Administration
from vdl.server.partition_counts import PartitionCounts
from vdl.server.server import ServerState

GROUPS = 3_000
FIRST_PARTITION = 9
"""First group id behind the catalog and eight coordinators."""


class Host:
    """The part of a host that a status reads; counts the groups that were examined."""

    def __init__(self, count: int) -> None:
        self.cluster_id = "cluster"
        self.coordinator_count = 8
        self.lost_groups: list[int] = []
        self.leaderless: set[int] = set()
        self.groups = {group_id: group_of(group_id) for group_id in range(count)}
        self.catalog = SimpleNamespace(
            groups={
                group_id: SimpleNamespace(topic="orders", partition=group_id - FIRST_PARTITION)
                for group_id in range(FIRST_PARTITION, count)
            },
            servers={1: None},
            first_servers={1: 1 << 16 | 1},
            voters=(1,),
        )
        self.state = SimpleNamespace(
            server_id=1,
            alive={},
            full=set(),
            catalog=self.catalog,
            system_groups=range(FIRST_PARTITION),
        )
        self.state.groups = {}
        self.in_sync: dict[int, object] = {}
        self.state.name_of = partial(HostState.name_of, self.state)  # type: ignore[arg-type]
        self.state.told_of = partial(HostState.told_of, self.state)  # type: ignore[arg-type]
        self.looked_at = 0
        self.overload = SimpleNamespace(problem=lambda: self.overloaded, is_late_for_long=False)
        self.time = SimpleNamespace(ahead_ms=0)
        self.stats = SimpleNamespace(contradicted_ns=0)
        self.is_flush_stalled = False
        self.overloaded = ""

    def leader_of(self, group_id: int) -> tuple[int, int]:
        self.looked_at += 1
        return (-1, -1) if group_id in self.leaderless else (1, 1)

    def stream(self, group_id: int) -> SimpleNamespace | None:
        if group_id < FIRST_PARTITION:
            return None
        return SimpleNamespace(log_start_offset=0, high_watermark=group_id, end_offset=group_id)


def group_of(group_id: int) -> SimpleNamespace:
    node = SimpleNamespace(
        state=Role.FOLLOWER, term=1, lead=1 << 16 | 1, last_index=5, commit=5, is_leader=False,
        membership=SimpleNamespace(voters=lambda: {1 << 16 | 1}, learners=set()),
    )  # fmt: skip
    return SimpleNamespace(
        group_id=group_id, replica_id=1 << 16 | 1, node=node, log=SimpleNamespace(first_index=1),
        applied=5, serving=True, is_settled=True, to_finish=False, members=[1 << 16 | 1],
    )  # fmt: skip


def administration_of(host: Host | None, under_min: int = 0) -> Administration:
    server = SimpleNamespace(
        frontend=None,
        host=host,
        config=SimpleNamespace(server_id=1),
        clock=SimpleNamespace(now_ns=lambda: 0),
        links=SimpleNamespace(links=lambda: [LinkStatus(2, False, False, 0, -1, 5, 1)]),
        store=SimpleNamespace(directory_id=b"d" * 16, accepts_appends=True),
        certificates_ending=dict,
        lacks_descriptors=bool,
        refused_links=dict,
        peer_addresses=SimpleNamespace(differences={}),
        partition_counts=lambda: PartitionCounts(under_min=under_min),
        incarnation=3,
        state=ServerState.SERVING if host is not None else ServerState.WAITING,
        waits_to_be_added=False,
    )
    return Administration(server, Events(lambda: 1_000))  # type: ignore[arg-type]  # stand-ins


@pytest.mark.parametrize("wanted", [(), (17,)])
def test_administration_status_looks_at_a_bounded_number_of_groups_at_a_time(wanted):
    """However many partitions a server has, each part of its status examines only a few."""
    host = Host(GROUPS)
    looked_at, found = [], []
    for part in administration_of(host).status(wanted):
        looked_at.append(host.looked_at)
        host.looked_at = 0
        found += [group.group_id for group in part.groups]
    assert sum(looked_at) == GROUPS
    assert max(looked_at) == GROUPS_PER_PART
    assert found == list(wanted or range(GROUPS))


def test_administration_status_tells_what_is_wrong_with_servers_and_groups():
    """The problems of all groups are reported, also when only some were requested."""
    host = Host(12)
    host.lost_groups = [11, 40]
    del host.groups[11]
    host.leaderless = {1}
    host.groups[9].is_settled = host.groups[10].is_settled = False
    host.groups[10].to_finish = True
    parts = list(administration_of(host, under_min=4).status([0]))
    assert [problem for part in parts for problem in part.problems] == [
        "replica_lost: 2 replicas",
        "peer_unreachable: servers 1 and 2 are not connected",
        "under_min_isr: 4 partitions led by server 1",
        "no_leader: coordinator-1 has no leader",
        "replica_replaced: a replica of orders-0 is being replaced",
        "replica_moved: replicas of orders-1 are being moved",
        "replica_lost: the replica of orders-2 on this server lost data and waits to be replaced",
        "replica_lost: the replica of group-40 on this server lost data and waits to be replaced",
    ]
    assert [group.name for part in parts for group in part.groups] == ["catalog"]


def test_administration_status_while_groups_come_and_go():
    """A topic is deleted between two parts, another created: a deleted group is omitted."""
    host = Host(GROUPS)
    parts = administration_of(host).status(())
    next(parts)
    found = [group.group_id for group in next(parts).groups]
    for group_id in range(50, GROUPS, 2):
        del host.groups[group_id]
        del host.catalog.groups[group_id]
    host.groups[GROUPS] = group_of(GROUPS)
    found += [group.group_id for part in parts for group in part.groups]
    assert found == [*range(GROUPS_PER_PART), *range(GROUPS_PER_PART + 1, GROUPS, 2)]


def test_administration_status_before_birth_has_no_groups():
    """A server that waits for its cluster reports it."""
    (only,) = administration_of(None).status(())
    assert (only.cluster_id, only.groups) == ("", [])
    assert only.problems == [
        "starting: server is waiting",
        "peer_unreachable: servers 1 and 2 are not connected",
    ]


def test_administration_status_says_that_the_server_is_overloaded():
    """Overload comes first among the server's problems, because the others may follow from it."""
    host = Host(1)
    (first, *_) = administration_of(host).status(())
    unreachable = "peer_unreachable: servers 1 and 2 are not connected"
    assert first.problems == [unreachable]
    host.overloaded = "the event loop was late"
    (first, *_) = administration_of(host).status(())
    assert first.problems == ["overloaded: the event loop was late", unreachable]


def test_events_come_in_bounded_parts_of_one_topic_and_one_group() -> None:
    """The loop goes on between two parts, however many events there are."""
    events = Events(lambda: 1_000)
    server = SimpleNamespace(
        config=SimpleNamespace(server_id=1), frontend=None, clock=SimpleNamespace(now_ns=lambda: 0)
    )
    administration = Administration(server, events)  # type: ignore[arg-type]  # stand-ins
    events.add("disk_full", "error", {})
    for number in range(2 * ENTRIES_MAX):
        for topic in ("orders", "others"):
            events.add("elected", "", {"partition": f"{topic}-{number}", "term": 1})
    events.add("rebalance_began", "", {"group": "g", "cause": "member_left", "member": "m"})
    first, *parts = administration.events("", "")
    assert (first.server_id, first.now_ms, first.started_ms) == (1, 1_000, 1_000)
    assert [one.kind for one in first.dropped] == [Kind.PARTITION.name.lower()]
    assert max(len(part.events) for part in parts) == EVENTS_PER_PART
    assert sum(len(part.events) for part in parts) == ENTRIES_MAX + 2
    _, *parts = administration.events("orders", "other-group")
    found = [one for part in parts for one in part.events]
    assert {one.event for one in found} == {"disk_full", "elected"}
    assert all("orders-" in one.fields for one in found if one.event == "elected")
    assert len(found) == 1 + ENTRIES_MAX // 2


def test_removed_server_changes_no_members():
    """Its catalog ends with its removal: it would name what was true then."""
    administration, answers = administration_of(Host(0)), []
    administration._server.state = ServerState.REMOVED
    administration.change_member(MemberChange.REMOVE, 2, "", 0, answers.append)
    ((error, message),) = [(answer.error, answer.message) for answer in answers]
    assert error == ErrorCode.BROKER_NOT_AVAILABLE
    assert message.startswith("server 1 was removed from the cluster")
