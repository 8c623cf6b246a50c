"""The recovery itself: the survivor's replicas become the only voters of their groups.

The steps, each durable before the next one:

1. The birth record gets a new cluster id, and keeps the old one among the former ids. From then on
   no server with an old disk is linked, whatever it holds.
2. Logs of groups that the catalog does not know are removed.
3. One journal batch has, for each kept group, at a term far above every known one: the entries that
   remove all other members, and a hard state with all of them committed. Transactions that
   would otherwise stay open are ended there, also in groups that are alone already.

Killed before the third step, the directory cannot lead anything, and the recovery is run again. It
does whatever is left to do, under another new id.

To a server this looks like a group of one replica, which the present replacement of lost replicas
makes whole again. Nothing here is called by a running server.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import msgspec

import segments.api as storage
from ids import TERM_MAX, GroupId, ServerId, Term
from raft.membership import Membership, changed, encode_conf_change
from raft.types import ConfChange, ConfChangeSingle, ConfChangeType, Entry, EntryKind
from segments.io.inline_workers import InlineWorkers
from vdl.logstream.bootstrap import BirthRecord, encode_record
from vdl.logstream.majority_loss.survivor import NotRecoverable, Plan, Replica
from vdl.logstream.membership.conf_changes import as_change
from vdl.logstream.state import CATALOG_GROUP
from vdl.records.batch import patch_position
from vdl.records.markers import build_marker
from vdl.state import commands

TERMS_SKIPPED = 1 << 16
"""Terms left out, because the lost servers may have used terms that are not known here. Clients
accept only leader epochs that grow."""
PRODUCER_IDS_SKIPPED = 1 << 32
"""Producer ids left out, likewise: two producers with one id would take each other's batches for
their own."""
CLUSTER_ID_BYTES = 16
ENTRY_ROOM_BYTES = 256
"""Upper bound of an entry's space in the journal, besides its data."""


def take_over(
    store: storage.Store, workers: InlineWorkers, plan: Plan, *, random: bytes, now_ms: int
) -> str:
    """Carry out a plan that was made with this store. Return the new cluster id. Blocks.

    `random`: CLUSTER_ID_BYTES of them. Raise NotRecoverable if there is no room or nothing to do;
    nothing is changed then. Raise OSError.
    """
    replicas = plan.changed
    if not replicas:
        raise NotRecoverable("every group here has this server as its only voter already")
    entries = {
        replica.log.group_id: entries_of(replica, server_id=plan.server_id, now_ms=now_ms)
        for replica in replicas
    }
    _check_room(store, entries)
    failures: list[BaseException] = []
    store.on_fatal = failures.append
    record = recovered(plan.record, random)
    adopted: list[bool] = []
    store.adopt_cluster(encode_record(record), lambda: adopted.append(True))
    for log in plan.unknown:
        store.delete_log(log.log_id)
    workers.pump()
    if failures or store.disk_full or not adopted:
        raise NotRecoverable("the disk did not take the change: run the recovery again")
    for replica in replicas:
        added = entries[replica.log.group_id]
        store.append(replica.log, added)
        last = added[-1]
        store.set_hard_state(replica.log, storage.HardState(last.term, commit=last.index))
    token = store.submit()
    workers.pump()
    if failures or store.durable_token < token:
        raise NotRecoverable("the disk did not take the change: run the recovery again")
    return record.cluster_id


def recovered(record: BirthRecord, random: bytes) -> BirthRecord:
    """Return the record of the cluster that goes on."""
    cluster_id = base64.urlsafe_b64encode(random).rstrip(b"=").decode()
    return msgspec.structs.replace(
        record, cluster_id=cluster_id, former_ids=(*record.former_ids, record.cluster_id)
    )


def entries_of(replica: Replica, *, server_id: ServerId, now_ms: int) -> list[Entry]:
    """Return the entries that make the replica the only member, and end what would stay open."""
    log = replica.log
    term = Term(max(log.hard_state.term, log.term(log.last_index)) + TERMS_SKIPPED)
    if term > TERM_MAX - TERMS_SKIPPED:
        raise NotRecoverable(f"group {log.group_id} has no terms left")
    made = [
        Entry(kind=EntryKind.CONF_CHANGE_V2, data=encode_conf_change(change))
        for change in changes_to_alone(replica)
    ]
    added: list[commands.Command] = [*replica.left_out, *replica.endings]
    if log.group_id == CATALOG_GROUP:
        added.append(commands.AllocateProducerIds(PRODUCER_IDS_SKIPPED))
    for command in added:
        envelope = commands.Envelope(server_id, 0, 0, now_ms, command)
        made.append(Entry(data=commands.encode(envelope)))
    made += [Entry(data=build_marker(marker), records=1) for marker in replica.markers]
    if not made:
        made.append(Entry(kind=EntryKind.NOOP))  # the changes are there, and not committed
    index, offset = log.last_index, log.next_offset
    for entry in made:
        index += 1
        entry.term, entry.index, entry.base_offset = term, index, offset
        if entry.records:
            view = memoryview(entry.data)
            patch_position(view, base_offset=offset, leader_epoch=term)
        offset += entry.records
    return made


def changes_to_alone(replica: Replica) -> list[ConfChange]:
    """Return membership changes, each valid after the one before, until it is the only member."""
    own, membership = replica.replica_id, replica.membership
    changes: list[ConfChange] = []

    def change(one: ConfChange, after: Membership) -> Membership:
        changes.append(one)
        return changed(after, one)

    if membership.is_joint:
        membership = change(ConfChange(), membership)
    if own not in membership.incoming:
        promotion = as_change(ConfChangeSingle(ConfChangeType.ADD_NODE, own))
        membership = change(promotion, membership)
    for other in sorted(membership.members() - {own}):
        removal = as_change(ConfChangeSingle(ConfChangeType.REMOVE_NODE, other))
        membership = change(removal, membership)
    assert membership == Membership(incoming=frozenset([own])), membership
    return changes


def _check_room(store: storage.Store, entries: Mapping[GroupId, Sequence[Entry]]) -> None:
    """Raise NotRecoverable if the disk has no room for everything."""
    size = sum(len(one.data) + ENTRY_ROOM_BYTES for added in entries.values() for one in added)
    if store.disk_full or not store.has_room_for(size):
        raise NotRecoverable("the disk is full: make room first. Nothing was changed")
