"""Servers that a data directory knows at its start, before any replica of it runs.

The birth record names the servers that the cluster began with. All of them may be gone by now:
those that vote in the catalog are in the Raft configuration of its replica here, and the addresses
of servers that were added are in the catalog. Both are read from the disk, as far as it is known
there that they are committed. They may be out of date; a server found through them knows better.

Does not depend on links, or on what is done with the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

import segments.api as storage
from ids import Index, NodeId, ServerId
from raft.errors import InvalidConfChange, MalformedConfChange
from raft.membership import changed, decode_conf_change, restored
from raft.types import CONF_CHANGE_KINDS, Entry
from vdl.logstream.bootstrap import BirthRecord
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.group.storage import as_entry
from vdl.logstream.membership.open_replica import load_state
from vdl.logstream.state import CATALOG_GROUP
from vdl.state import commands
from vdl.state.added_servers import AddedServer
from vdl.state.catalog import ADDED_PREFIX
from vdl.state.reassignment import FIRST_REPLICA
from vdl.state.table import decode_value

READ_BYTES = 1 << 20


@dataclass(slots=True)
class KnownServers:
    """The cluster's servers, as the disk has them."""

    voters: set[ServerId]
    """Servers that vote in the catalog."""
    addresses: dict[ServerId, tuple[str, int]] = field(default_factory=dict)
    """Addresses of servers that were added, for their peers."""


def known_servers(store: storage.Store, record: BirthRecord) -> KnownServers:
    """Return the servers that the directory knows: those of the birth record if it has no more.

    Reads the checkpoint of the catalog, and the entries behind it that are in memory.
    """
    initial = [replica_id_of(server, FIRST_REPLICA) for server, _ in record.initial_voters]
    known = KnownServers({server for server, _ in record.initial_voters})
    logs = [log for log in store.logs.values() if log.group_id == CATALOG_GROUP]
    log = max(logs, key=lambda log: log.replica_number, default=None)
    if log is None or log.lost:
        return known
    try:
        _read(store, log, initial, known)
    except (storage.StorageError, msgspec.DecodeError, InvalidConfChange, MalformedConfChange):
        pass  # what was found so far holds; the opening of the replica reports the damage
    return known


def _read(
    store: storage.Store, log: storage.Log, initial: list[NodeId], known: KnownServers
) -> None:
    found = load_state(store, log, initial)
    if found is None:
        return
    applied, members, state = found
    membership = restored(members.conf_state)
    known.voters = set(map(server_of, membership.voters()))
    for piece in state.pieces:
        for key, value in piece:
            if key[:1] == ADDED_PREFIX:
                added = decode_value(value, AddedServer)
                _note(known, added.server_id, added.host, added.port)
    for entry in _entries(log, Index(applied + 1)):
        if entry.kind in CONF_CHANGE_KINDS:
            if entry.index > members.reflects:
                membership = changed(membership, decode_conf_change(entry.data))
                known.voters = set(map(server_of, membership.voters()))
        elif len(entry.data):
            command = commands.decode(entry.data).command
            if isinstance(command, commands.AdmitServer):
                _note(known, command.server_id, command.host, command.port)


def _note(known: KnownServers, server_id: ServerId, host: str, port: int) -> None:
    if host:
        known.addresses[server_id] = host, port


def _entries(log: storage.Log, first: Index) -> Iterator[Entry]:
    """Yield the committed entries from `first` on, as far as they are in memory."""
    while first <= log.commit_index:
        try:
            found = log.entries(first, Index(log.commit_index + 1), READ_BYTES)
        except storage.NotInMemory:
            return
        yield from map(as_entry, found)
        first = Index(found[-1].index + 1)
