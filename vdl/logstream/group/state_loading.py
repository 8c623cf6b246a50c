"""A state that is loaded in pieces, over many turns of the loop: at a start, or from a snapshot.

A million positions take six seconds. Until all are there the state is none: nothing is applied to
it, read of it or stored of it, which its replica sees to.

Must not know: what items mean, where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from vdl.logstream.group.snapshots import Items
from vdl.state.table import LargeState

LOADED_PER_TURN = 2_000
"""Items: some 15 ms. A state that is not larger is loaded at once."""


class StateLoading:
    """See the module. An `Encoder`, served with those."""

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
        """`took`: told of each piece that is loaded. `wanted`: asked before each; once it is False,
        nothing is done any more. `loaded`: called at the end."""
        self._items = (item for piece in pieces for item in piece)
        self._state = state
        self._took, self._wanted, self._loaded = took, wanted, loaded
        state.begin_load()

    def encode_on(self) -> bool:
        """Load one more piece; whether there is another. Raises DecodeError for what never was a
        state."""
        if not self._wanted():
            return False
        if piece := list(islice(self._items, LOADED_PER_TURN)):
            self._state.load_more(piece)
            self._took(piece)
            return True
        self._state.end_load()
        self._loaded()
        return False
