"""How a replica comes to life: checkpointed state, committed rest of the log, Raft node.

A machine's state is loaded as the last checkpoint left it, and the entries committed since are
replayed, nobody waiting and nobody listening yet; only then does the node start, already knowing
what it has applied. Reading may take the disk, so opening ends in a callback.

Must not know: which replicas there are, messages, who leads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import segments.api as storage
from raft.types import Entry, NodeId
from vdl.logstream.group import Group, Owner
from vdl.logstream.options import HostOptions
from vdl.logstream.state_group import StateGroup
from vdl.logstream.storage import as_entry
from vdl.logstream.stream import LogStream
from vdl.logstream.turn import server_of


class Loadable(Protocol):
    """The part of a machine that opening needs."""

    def load(self, items: list[tuple[bytes, bytes]]) -> None: ...


class Opening:
    """Opens the replicas of one server."""

    def __init__(
        self,
        *,
        server_id: int,
        store: storage.Store,
        options: HostOptions,
        rng: random.Random,
        tick: Callable[[], int],
    ) -> None:
        self._server_id = server_id
        self._store = store
        self._options = options
        self._rng = rng
        self._tick = tick

    def state_group(
        self,
        log: storage.Log,
        placement: Sequence[NodeId],
        owner: StateGroup,
        opened: Callable[[Group], None],
    ) -> None:
        """Open a catalog or coordinator replica; `opened` gets its group, not yet pumped."""

        def make(applied: int) -> None:
            opened(self._group(log, placement, owner, applied))

        self._open(log, owner.machine, owner.replay, make)

    def stream(
        self,
        log: storage.Log,
        placement: Sequence[NodeId],
        owner: LogStream,
        opened: Callable[[Group], None],
    ) -> None:
        """Open a partition replica."""

        def make(applied: int) -> None:
            opened(self._group(log, placement, owner, applied))

        self._open(log, owner.state, owner.apply, make)

    def _open(
        self,
        log: storage.Log,
        machine: Loadable,
        replay: Callable[[Sequence[Entry]], None],
        then: Callable[[int], None],
    ) -> None:
        bytes_max = self._options.cold_read_bytes
        open_machine(self._store, log, machine, replay, then, bytes_max=bytes_max)

    def _group(
        self, log: storage.Log, placement: Sequence[NodeId], owner: Owner, applied: int
    ) -> Group:
        replica_id = next(r for r in placement if server_of(r) == self._server_id)
        return Group(
            group_id=log.group_id,
            replica_id=replica_id,
            placement=placement,
            log=log,
            store=self._store,
            owner=owner,
            applied=applied,
            tick=self._tick(),
            options=self._options,
            rng=random.Random(self._rng.getrandbits(64)),
        )


def open_machine(
    store: storage.Store,
    log: storage.Log,
    machine: Loadable,
    replay: Callable[[Sequence[Entry]], None],
    then: Callable[[int], None],
    *,
    bytes_max: int,
) -> None:
    """Load the machine's checkpoint, replay the committed rest; `then(applied)`, perhaps later.

    A checkpoint that cannot be trusted costs a replay of the whole log, never a default.
    """
    try:
        applied, items = store.load_meta(log)
    except storage.CorruptRecord:
        applied, items = 0, []
    applied = max(applied, log.first_index - 1)
    machine.load(items)
    end = max(log.hard_state.commit, applied) + 1

    def proceed(applied: int) -> None:
        while applied + 1 < end:
            try:
                entries = [as_entry(one) for one in log.entries(applied + 1, end, bytes_max)]
            except storage.NotInMemory:
                store.entries_cold(log, applied + 1, end, bytes_max, resume)
                return
            replay(entries)
            applied = entries[-1].index
        then(applied)

    def resume(found: list[storage.StoredEntry] | storage.StorageError) -> None:
        if isinstance(found, storage.StorageError):
            raise found
        entries = [as_entry(one) for one in found]
        replay(entries)
        proceed(entries[-1].index)

    proceed(applied)
