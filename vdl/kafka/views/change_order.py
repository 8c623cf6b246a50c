"""Order in which a coordinator's items last changed.

After a repeated change only the later entry has the item, as in a compacted topic.

Does not depend on the items.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)
"""Key that names one item."""


class ChangeOrder(Generic[Place]):
    """Items by their latest change: see the module. Memory: each place once, plus as many outdated
    entries."""

    __slots__ = ("_entries", "_index_of", "_indexes", "_times")

    def __init__(self) -> None:
        self._entries: dict[int, dict[Place, None]] = {}
        """By index: the items whose latest change is this entry; never empty."""
        self._index_of: dict[Place, int] = {}
        self._indexes: list[int] = []
        """Ascending. Indexes no longer in `_entries` are removed once they are half of all."""
        self._times: list[int] = []
        """Largest time (ms) of any change up to each of them: it never falls."""

    def add(self, index: int, places: Iterable[Place], now_ms: int) -> None:
        """Note that an entry behind all others changed these places, at least one."""
        assert not self._indexes or index > self._indexes[-1], (index, self._indexes[-1])
        named = dict.fromkeys(places)
        assert named, index
        for place in named:
            before = self._index_of.get(place)
            if before is not None:
                left = self._entries[before]
                del left[place]
                if not left:
                    del self._entries[before]
            self._index_of[place] = index
        self._entries[index] = named
        self._indexes.append(index)
        self._times.append(max(now_ms, self._times[-1]) if self._times else now_ms)
        if len(self._indexes) > 2 * len(self._entries):
            kept = [n for n, one in enumerate(self._indexes) if one in self._entries]
            self._indexes = [self._indexes[n] for n in kept]
            self._times = [self._times[n] for n in kept]

    def __len__(self) -> int:
        """Return the number of places that changed, removed items included."""
        return len(self._index_of)

    def __contains__(self, place: Place) -> bool:
        return place in self._index_of

    def since(self, index: int) -> Iterator[tuple[int, list[Place]]]:
        """Yield (index, places) of the latest changes in entries from `index` on, in order. Do not
        add while iterating."""
        for at in range(bisect_left(self._indexes, index), len(self._indexes)):
            entry = self._entries.get(self._indexes[at])
            if entry is not None:
                yield self._indexes[at], list(entry)

    @property
    def newest_ms(self) -> int:
        """No change has a later time (ms); -1: there is none."""
        return self._times[-1] if self._times else -1

    def first_at(self, timestamp_ms: int) -> int:
        """Return the index below which no entry changed anything at that time (ms) or later; -1 if
        no entry did."""
        at = bisect_left(self._times, timestamp_ms)
        return self._indexes[at] if at < len(self._indexes) else -1
