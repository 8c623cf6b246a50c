"""Who guesses passwords waits: logins that failed, by the name and the address they came from.

After `FREE` failures of one name from one address (of IPv6 one network) each further one locks that
name for that address: for a second, then twice as long each time, `LOCK_SECONDS_MAX` at the most.
While it is locked nobody logs in by it from there, also not with the right password, and nothing is
counted. Others, the same user from elsewhere, and who is in and logs in again, notice nothing. A
login that is done, or `FORGET_SECONDS` without a failure, begins anew.

Whether there is such a user makes no difference. Bounded: of more than `KNOWN_MAX` the one that
failed longest ago is forgotten.

Must not know: mechanisms, connections.
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
    """See the module."""

    __slots__ = ("_clock", "_known", "refused")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[_Whose, tuple[int, int]] = OrderedDict()
        """How many, and when the last one was counted; that of the latest is the last."""
        self.refused = 0
        """Logins that were refused because they were locked."""

    def __len__(self) -> int:
        return len(self._known)

    def is_locked(self, user: str, address: str) -> bool:
        """Whether this user may not log in from there now."""
        count, at_ns = self._of(user, address)
        if count <= FREE:
            return False
        seconds = min(1 << (count - FREE - 1), LOCK_SECONDS_MAX)
        return self._clock.now_ns() - at_ns < seconds * _SECOND_NS

    def failed(self, user: str, address: str) -> None:
        """A login failed for what the client does not know."""
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
        """A login was done."""
        self._known.pop((user[:NAME_CHARS_MAX], address), None)

    def _of(self, user: str, address: str) -> tuple[int, int]:
        count, at_ns = self._known.get((user[:NAME_CHARS_MAX], address), (0, 0))
        if self._clock.now_ns() - at_ns >= FORGET_SECONDS * _SECOND_NS:
            return 0, 0
        return count, at_ns
