"""The order in which what a coordinator holds changed last.

What changes again is found at the later entry alone, as in a compacted topic.

Must not know: what it is that changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)
"""What names one thing."""


class ChangeOrder(Generic[Place]):
    """See the module. Takes room for each place once, and for as many again that are over."""

    __slots__ = ("_entries", "_index_of", "_indexes", "_times")

    def __init__(self) -> None:
        self._entries: dict[int, dict[Place, None]] = {}
        """By index: what stands as this entry changed it; never empty."""
        self._index_of: dict[Place, int] = {}
        self._indexes: list[int] = []
        """Ascending. Those that are in `_entries` no more go once they are half of all."""
        self._times: list[int] = []
        """The largest time (ms) of any change up to each of them: it never falls."""

    def add(self, index: int, places: Iterable[Place], now_ms: int) -> None:
        """An entry behind all others changed these, one at least."""
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
        """How many places changed, those included that are forgotten since."""
        return len(self._index_of)

    def __contains__(self, place: Place) -> bool:
        return place in self._index_of

    def since(self, index: int) -> Iterator[tuple[int, list[Place]]]:
        """(index, places) of what stands of the entries from `index` on, in order. Not
        while one is added."""
        for at in range(bisect_left(self._indexes, index), len(self._indexes)):
            entry = self._entries.get(self._indexes[at])
            if entry is not None:
                yield self._indexes[at], list(entry)

    @property
    def newest_ms(self) -> int:
        """No change has a later time (ms); -1: there is none."""
        return self._times[-1] if self._times else -1

    def first_at(self, timestamp_ms: int) -> int:
        """No entry below this index changed anything at that time (ms) or later; -1: none at all
        did."""
        at = bisect_left(self._times, timestamp_ms)
        return self._indexes[at] if at < len(self._indexes) else -1
