"""Queue for a thread that serves its clients ("askers") in turns: a heavy one delays only itself.

Does not depend on the items.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items by asker, each asker's in order. `take` rotates over the askers."""

    __slots__ = ("_by_asker",)

    def __init__(self) -> None:
        self._by_asker: OrderedDict[str, deque[Item]] = OrderedDict()
        """Askers with items, the next one first."""

    def __bool__(self) -> bool:
        return bool(self._by_asker)

    def waiting(self, asker: str) -> int:
        """Return how many items of the asker wait."""
        items = self._by_asker.get(asker)
        return 0 if items is None else len(items)

    def put(self, asker: str, item: Item) -> None:
        """Add an item behind the asker's others."""
        items = self._by_asker.get(asker)
        if items is None:
            items = self._by_asker[asker] = deque()
        items.append(item)

    def take(self) -> Item:
        """Remove and return the next item; there must be one."""
        asker, items = next(iter(self._by_asker.items()))
        item = items.popleft()
        if items:
            self._by_asker.move_to_end(asker)
        else:
            del self._by_asker[asker]
        return item
