"""Opening of a replica while its log is read from the disk."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from raft.types import EntryKind
from segments.api import CorruptRecord, NotInMemory, ReadRefused, StoredEntry
from segments.memory import MemoryStore
from vdl.logstream.group.snapshots import Members
from vdl.logstream.membership.open_replica import Replay


class ColdLog:
    """Three committed entries, none of them in memory."""

    hard_state = SimpleNamespace(commit=3)

    def entries(self, first: int, end: int, _bytes_max: int) -> Any:
        raise NotInMemory(first, end)


class SlowStore:
    """A store whose reads finish when a test says so."""

    answer: Callable[[Any], None]

    def entries_cold(self, _log: Any, _first: int, _end: int, _bytes_max: int, done: Any) -> None:
        self.answer = done


class Machine:
    """An owner that records its calls."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def load(self, items: Any) -> None:
        self.told.append(items)

    def pass_over(self, entries: Any, *, is_last: bool) -> None:
        self.told.append(("passed", [entry.index for entry in entries], is_last))

    def replay(self, entries: Any) -> None:
        self.told.append([entry.index for entry in entries])


def entry(index: int) -> StoredEntry:
    return StoredEntry(1, index, EntryKind.NORMAL, b"x", index, 1, 0)


@pytest.mark.parametrize("is_wanted", [True, False])
@pytest.mark.parametrize("is_read", [True, False])
def test_replay_that_is_not_wanted_any_more_leaves_the_machine_alone(
    is_wanted: bool, is_read: bool
) -> None:
    """By then the machine of a state group belongs to its successor."""
    store: Any = SlowStore()
    log: Any = ColdLog()
    machine = Machine()
    ends: list[str] = []
    wanted = True
    Replay(
        store,
        log,
        machine,  # type: ignore[arg-type]
        Members(0, (1,)),
        bytes_max=1 << 20,
        then=lambda applied, members: ends.append(f"opened at {applied}"),
        wanted=lambda: wanted,
    ).run(0)
    wanted = is_wanted
    store.answer([entry(index) for index in (1, 2, 3)] if is_read else CorruptRecord("frame", 0))
    if not is_wanted:
        assert (machine.told, ends) == ([], [])
    elif is_read:
        assert (machine.told, ends) == ([[1, 2, 3]], ["opened at 3"])
    else:
        # Not lost: vote and log are intact. Unreadable entries are applied when repaired.
        assert (machine.told, ends) == ([], ["opened at 0"])


def test_state_whose_read_is_refused_is_read_again(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For lack of memory a replica opens later; its log is not lost."""
    group_id = cluster.create_topic()
    cluster.append(cluster.leader(group_id))
    cluster.run(1_000)
    node = cluster.nodes[2]
    node.crash()
    load_meta = MemoryStore.load_meta
    refused: list[Any] = []

    def load(store: MemoryStore, log: Any) -> Any:
        if len(refused) < 5:
            refused.append(log.log_id)
            raise ReadRefused("no memory")
        return load_meta(store, log)

    monkeypatch.setattr(MemoryStore, "load_meta", load)
    node.start()
    cluster.run(5_000)
    assert len(refused) == 5
    stream = node.host.stream(group_id)
    assert stream.group.commit == cluster.leader(group_id).group.commit
    assert not stream.group.log.lost
