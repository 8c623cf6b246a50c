"""A replica number is created in a directory once, even if the applied catalog lags."""

from typing import Any

from segments.api import Log
from segments.io.inline_workers import InlineWorkers
from segments.memory import MemoryStore
from tests.unit.logstream.conftest import make_state
from vdl.logstream.bootstrap import BirthRecord
from vdl.logstream.membership.replicas import Replicas
from vdl.state.commands import (
    CreateTopics,
    DeleteTopics,
    LostReplica,
    NewTopic,
    RegisterServer,
    ReplaceReplicas,
    ReplaceServer,
)

OTHER = b"o" * 16
GROUP = 1


class Hosted:
    """A host that records the started replicas, by group."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.lost: list[int] = []

    def start_state_group(self, log: Log, placement: Any) -> None:
        self.running[log.group_id] = log.replica_number

    def start_stream(self, log: Log, info: Any, placement: Any) -> None:
        self.running[log.group_id] = log.replica_number

    def stop_group(self, group_id: int, *, deleted: bool) -> None:
        self.running.pop(group_id, None)

    def is_wanted(self, log: Log) -> bool:
        raise AssertionError("nothing is opened")

    def remembers_catalog(self) -> bool:
        return True

    def opened(self, group: Any) -> None:
        raise AssertionError("nothing is opened")

    def replica_lost(self, log: Log) -> None:
        self.lost.append(log.group_id)


class Directory:
    """One server's directory, its catalog, and the resulting replicas."""

    def __init__(
        self, voter: bytes | None = None, store: MemoryStore | None = None, coordinators: int = 0
    ) -> None:
        self.workers = InlineWorkers()
        image = store.image if store is not None else None
        self.store = MemoryStore(self.workers, image=image)
        record = BirthRecord("c", ((3, voter or self.store.directory_id),), coordinators)
        state = make_state(3, record=record, store=self.store)
        self.catalog = state.catalog
        self.hosted = Hosted()
        self.replicas = Replicas(state, self.hosted)
        self.replicas.open_system()
        self.workers.pump()

    def apply(self, *history: Any) -> None:
        for index, command in enumerate(history, 1):
            self.catalog.apply(command, 0, index)
        self.replicas.reconcile()
        self.workers.pump()

    def numbers(self, group_id: int) -> set[int]:
        logs = self.store.logs.values()
        return {log.replica_number for log in logs if log.group_id == group_id}


def founded(directory: bytes, *, replicas: int = 2) -> list[Any]:
    return [
        RegisterServer(3, directory, "", {}, True),
        RegisterServer(4, b"4" * 16, "", {}, False),
        CreateTopics([NewTopic("t", bytes(16), assignments=[[3, 4][:replicas]])]),
    ]


def test_new_directory_makes_nothing_while_history_names_the_old_one() -> None:
    """The catalog's own past lists replicas here that belong to a directory that is gone."""
    new = Directory(voter=OTHER)
    assert new.hosted.running == {}
    new.apply(*founded(OTHER))
    assert new.numbers(GROUP) == set()
    new.apply(ReplaceServer(3, OTHER, new.store.directory_id))
    assert new.numbers(GROUP) == {2}
    assert new.hosted.running == {0: 2, GROUP: 2}


def test_directory_of_the_beginning_is_founded_once() -> None:
    """Replicas that it has deleted since have voted, and are not created again (law 6)."""
    first = Directory(coordinators=1)
    assert first.hosted.running == {0: 1, 1: 1}
    (deleted,) = [log for log in first.store.logs.values() if log.group_id == 1]
    first.store.delete_log(deleted.log_id)
    first.workers.pump()
    again = Directory(store=first.store, coordinators=1)
    assert again.hosted.running == {0: 1}
    assert again.numbers(1) == set()


def test_restart_with_an_older_catalog_keeps_the_newer_replica() -> None:
    """A crash may lose the commit index that covers the new number, but not its log."""
    first = Directory()
    directory = first.store.directory_id
    first.apply(*founded(directory))
    first.apply(ReplaceReplicas(3, directory, [LostReplica(GROUP, 1)]))
    assert first.numbers(GROUP) == {1, 2}
    again = Directory(store=first.store)
    again.apply(*founded(directory))
    assert again.numbers(GROUP) == {1, 2}
    assert again.hosted.running.get(GROUP) is None
    again.apply(ReplaceReplicas(3, directory, [LostReplica(GROUP, 1)]))
    assert again.hosted.running[GROUP] == 2


def test_predecessor_is_kept_until_a_leader_feeds_its_successor() -> None:
    """It outlasts restarts: until then possibly no other replica has the acknowledged entries."""
    first = Directory()
    directory = first.store.directory_id
    replacement = ReplaceReplicas(3, directory, [LostReplica(GROUP, 1)])
    first.apply(*founded(directory))
    first.apply(replacement)
    assert first.numbers(GROUP) == {1, 2}
    again = Directory(store=first.store)
    again.apply(*founded(directory), replacement)
    assert again.hosted.running[GROUP] == 2
    assert again.numbers(GROUP) == {1, 2}
    again.replicas.fed(GROUP)
    again.workers.pump()
    assert again.numbers(GROUP) == {2}
    assert again.replicas.predecessors == {}


def test_predecessor_goes_with_its_topic() -> None:
    """Nothing of a deleted group stays."""
    first = Directory()
    directory = first.store.directory_id
    first.apply(*founded(directory))
    first.apply(ReplaceReplicas(3, directory, [LostReplica(GROUP, 1)]))
    first.apply(DeleteTopics(["t"]))
    assert first.numbers(GROUP) == set()
    assert first.replicas.predecessors == {}


def test_only_replica_of_a_group_gets_no_successor() -> None:
    """No other replica could feed it."""
    first = Directory()
    directory = first.store.directory_id
    first.apply(*founded(directory, replicas=1))
    first.apply(ReplaceReplicas(3, directory, [LostReplica(GROUP, 1)]))
    assert first.catalog.replica_number(GROUP, 3) == 1
    assert first.numbers(GROUP) == {1}


def test_lost_replica_is_reported_and_not_started() -> None:
    """It may have lost votes and acknowledgements."""
    first = Directory()
    directory = first.store.directory_id
    first.apply(*founded(directory))
    for state in first.store.image.logs.values():
        state.lost = state.group_id == GROUP
    again = Directory(store=first.store)
    again.apply(*founded(directory))
    assert again.hosted.lost == [GROUP]
    assert GROUP not in again.hosted.running


def test_invitation_is_taken_once_and_never_backwards() -> None:
    """Peers whose catalog lags may name a number that this directory has had."""
    new = Directory(voter=OTHER)
    for number in (3, 2, 3):
        new.replicas.number_received(number)
        new.workers.pump()
    assert new.numbers(0) == {3}
