"""Long polls of one partition: fetches that wait for records to be committed or stable.

A poll is subscribed in the call that found too little, so no append is missed. Polls run once a
turn, however much was committed in it.

Does not depend on logs, leaders or requests.
"""

from __future__ import annotations

from collections.abc import Callable

from ids import Offset
from vdl.clock import NEVER
from vdl.state.empty import NO_ITEMS


class Wait:
    """A long poll for records.

    It waits for committed ones at or beyond `offset`, or stable ones at or beyond `stable_offset`.
    """

    __slots__ = ("callback", "offset", "stable_offset")

    def __init__(self, offset: int, stable_offset: int, callback: Callable[[], None]) -> None:
        self.offset = offset
        self.stable_offset = stable_offset
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Do not call back. The poll is removed from its list later."""
        self.callback = None


class LongPolls:
    """The long polls of one partition."""

    __slots__ = ("for_stable", "waits")

    def __init__(self) -> None:
        self.waits: list[Wait] = NO_ITEMS
        """Polls that have not run, in order of subscription, with cancelled ones among them."""
        self.for_stable = False
        """True if any of them may wait for stable records."""

    def wait_for(
        self, offset: int, callback: Callable[[], None], *, stable_offset: int = NEVER
    ) -> Wait:
        """Call back once when a record is available or the leader changes; at most once a turn.

        A record at `offset` is available when committed, one at `stable_offset` when stable.
        `NEVER`: do not wait for it.
        """
        wait = Wait(offset, stable_offset, callback)
        self.for_stable = self.for_stable or stable_offset != NEVER
        if self.waits is NO_ITEMS:
            self.waits = []
        self.waits.append(wait)
        return wait

    def wake(self, end: Offset, stable_end: Offset) -> None:
        """Run the polls with records below these ends of committed and of stable records."""
        ready: list[Wait] = []
        left: list[Wait] = []
        for wait in self.waits:
            if wait.offset < end or wait.stable_offset < stable_end:
                ready.append(wait)
            elif wait.callback is not None:
                left.append(wait)
        if not ready:
            return
        self.waits = left or NO_ITEMS
        if self.for_stable:
            self.for_stable = any(wait.stable_offset != NEVER for wait in left)
        for wait in ready:
            if wait.callback is not None:
                wait.callback()

    def run_all(self) -> None:
        """Run every poll: the leader, the term or the log start changed."""
        waits, self.waits = self.waits, NO_ITEMS
        for wait in waits:
            if wait.callback is not None:
                wait.callback()

    def drop_cancelled(self) -> None:
        """Forget the polls that were cancelled."""
        if self.waits:
            self.waits = [wait for wait in self.waits if wait.callback is not None] or NO_ITEMS
