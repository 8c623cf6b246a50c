"""Slowing of password guessing: failed logins, by the name and the address they came from.

After `FREE` failures of one name from one address (of IPv6 one network), each further one locks
that name for that address: for a second, then twice as long each time, at most `LOCK_SECONDS_MAX`.
While it is locked, every login by that name from that address fails, also with the right password,
and no failure is counted. Other names, the same user from other addresses, and logged-in clients
that log in again are not affected. A successful login, or `FORGET_SECONDS` without a failure,
resets the count.

Existing and unknown users are treated alike. The number of entries is bounded: beyond `KNOWN_MAX`
the one whose last failure is oldest is dropped.

Does not depend on mechanisms or connections.
"""

from __future__ import annotations

from collections import OrderedDict

from vdl.clock import MS, Clock

FREE = 10
LOCK_SECONDS_MAX = 60
FORGET_SECONDS = 600
KNOWN_MAX = 10_000
NAME_CHARS_MAX = 256
_SECOND_NS = 1_000 * MS

_Whose = tuple[str, str]
"""(user, address)."""


class LoginFailures:
    """Failed logins by user and address; see the module."""

    __slots__ = ("_clock", "_known", "refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[_Whose, tuple[int, int]] = OrderedDict()
        """(count, time of the last failure), ordered by that time."""
        self.refused = 0
        """Logins that were refused because they were locked."""

    def __len__(self) -> int:
        return len(self._known)

    def is_locked(self, user: str, address: str) -> bool:
        """Return True if this user may not log in from this address now."""
        count, at_ns = self._of(user, address)
        if count <= FREE:
            return False
        seconds = min(1 << (count - FREE - 1), LOCK_SECONDS_MAX)
        return self._clock.now_ns() - at_ns < seconds * _SECOND_NS

    def failed(self, user: str, address: str) -> None:
        """Count a login that failed because of its credential."""
        if self.is_locked(user, address):
            self.refused += 1
            return
        key = user[:NAME_CHARS_MAX], address
        count, _ = self._of(user, address)
        if key not in self._known and len(self._known) >= KNOWN_MAX:
            self._known.popitem(last=False)
        self._known[key] = count + 1, self._clock.now_ns()
        self._known.move_to_end(key)

    def done(self, user: str, address: str) -> None:
        """Reset the count after a successful login."""
        self._known.pop((user[:NAME_CHARS_MAX], address), None)

    def _of(self, user: str, address: str) -> tuple[int, int]:
        count, at_ns = self._known.get((user[:NAME_CHARS_MAX], address), (0, 0))
        if self._clock.now_ns() - at_ns >= FORGET_SECONDS * _SECOND_NS:
            return 0, 0
        return count, at_ns
