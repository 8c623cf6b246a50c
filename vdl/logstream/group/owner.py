"""The consumer of a group's entries: a log stream or a state group.

A group knows its entries, members and snapshots; their meaning belongs to its owner.

Does not depend on nodes, messages or other groups.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Protocol

from ids import Index, Offset
from raft.types import Entry
from vdl.logstream.group.snapshots import Items
from vdl.state.table import LargeState, Scan


class Owner(Protocol):
    """The consumer of a group's entries. All calls come from inside a turn and may not block."""

    @property
    def entries_are_state(self) -> bool:
        """True if the entries themselves are kept, not only the state made of them.

        A snapshot is then taken at the log's start, otherwise at the applied index.
        """

    @property
    def is_remembered(self) -> bool:
        """True if entries are applied only once the commit index that covers them is durable here.

        The applied state is then never ahead of what a restart applies again.
        """

    def apply(self, entries: Sequence[Entry]) -> None:
        """Apply committed entries that are durable here, in order, each exactly once."""

    def pass_over(self, entries: Sequence[Entry], *, is_last: bool) -> None:
        """Read committed entries that the state reflects already, because it came with a snapshot.

        In order; after a restart again from the last checkpoint on. `is_last`: all have been
        passed.
        """

    def install(self, items: Items) -> None:
        """Replace the applied state by a snapshot's."""

    def takes_on_full_disk(self, entry: Entry) -> bool:
        """Return True if a full disk takes the entry: it is rare enough, or needed to make room."""

    def stopped(self) -> None:
        """Stop: the replica is taken out of service, and its successor may be opened."""

    def items(self) -> Items:
        """Return the whole applied state, in key order."""

    def snapshot_items(self, start: Offset, *, is_short: bool) -> Items | None:
        """Return the state for a replica that also receives the entries after the snapshot's index.

        The first of these entries begins at `start`. `is_short`: leave out what follows from them.
        None: not available now.
        """

    @property
    def snapshots_are_short(self) -> bool:
        """True if all receivers support snapshots without what follows from those entries."""

    def scan(self) -> Scan | None:
        """Return `items` as a scan in pieces; None: `items` costs little."""

    @property
    def item_count(self) -> int:
        """Size of the state, available at no cost: about proportional to `items`."""

    def committed(self, commit: Index) -> None:
        """Note that the commit index moved to `commit`."""

    def serving_started(self) -> None:
        """Note that this replica leads and has applied the first entry of its own term (§8)."""

    def leadership_lost(self) -> None:
        """Note that a term ended in which this replica led."""

    def leader_changed(self) -> None:
        """Note that the known leader or the term changed."""

    @property
    def busy(self) -> bool:
        """True if any request with a deadline waits here."""

    @property
    def held(self) -> Sized:
        """Proposals that were refused for lack of room or during a transfer, and wait."""

    def room_available(self) -> None:
        """Retry held proposals. Use: if there are any."""

    def expire(self, now_ns: int) -> None:
        """Answer requests whose deadline has passed."""

    def take_meta(self) -> list[tuple[bytes, bytes | None]]:
        """Return the applied state that changed since the last call."""

    @property
    def large(self) -> LargeState | None:
        """The state, if it may be large; None: all of it is read and loaded at once."""

    def installed(self) -> None:
        """Finish `install` once the items are loaded."""
