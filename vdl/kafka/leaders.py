"""Waiting until groups have leaders, as far as this server can see.

News of leaders arrives with the links' lists, for all groups at once and without a subscriber in
mind; whoever has just created topics looks again every few milliseconds until they are led.

Must not know: topics, requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vdl.clock import MS
from vdl.kafka.context import Context

_LOOK_AGAIN_NS = 5 * MS


def when_led(
    server: Context, groups: Sequence[int], *, deadline_ns: int, done: Callable[[], None]
) -> None:
    """`done` once every group has been seen to have a leader, or at the deadline; at once if that
    is now."""
    left = list(groups)

    def look() -> None:
        # Only up to the first that has none: there may be thousands, and many who wait.
        while left and server.host.leader_of(left[-1])[0] >= 0:
            left.pop()
        if not left or server.clock.now_ns() >= deadline_ns:
            done()
        else:
            server.clock.call_later(_LOOK_AGAIN_NS, look)

    look()
