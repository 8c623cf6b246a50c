"""Loading of a state in pieces, over many turns of the loop: at a start, or from a snapshot.

A million positions take six seconds. Until all are loaded the state cannot be used: its replica
ensures that nothing is applied to it, read from it or stored of it.

Does not depend on what items mean, or where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from vdl.logstream.group.snapshots import Items
from vdl.state.table import LargeState

LOADED_PER_TURN = 2_000
"""Items loaded in a turn: some 15 ms. A state that is not larger is loaded at once."""


class StateLoading:
    """The loading of one state. An `Encoder`, served with those."""

    __slots__ = ("_items", "_loaded", "_state", "_took", "_wanted")

    def __init__(
        self,
        pieces: Iterator[Items],
        state: LargeState,
        *,
        took: Callable[[Items], None],
        wanted: Callable[[], bool],
        loaded: Callable[[], None],
    ) -> None:
        """Begin to load.

        `took`: called with each piece that is loaded. `wanted`: called before each; once it returns
        False, loading stops. `loaded`: called at the end.
        """
        self._items = (item for piece in pieces for item in piece)
        self._state = state
        self._took, self._wanted, self._loaded = took, wanted, loaded
        state.begin_load()

    def encode_on(self) -> bool:
        """Load one more piece. Return True if there is another.

        Raise DecodeError if the data are not a state.
        """
        if not self._wanted():
            return False
        if piece := list(islice(self._items, LOADED_PER_TURN)):
            self._state.load_more(piece)
            self._took(piece)
            return True
        self._state.end_load()
        self._loaded()
        return False
