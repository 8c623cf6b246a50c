"""One budget of a server, shared out between principals.

The rule: nobody may hold more than it leaves free. One principal alone gets half of the budget, two
that both want all of it a third each, n of them 1/(n+1); what one gives back, others may take.
Something is always free for one that comes later, at the cost of the part that nobody uses. Buffers
of switches are shared so (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998).

Where what is held can be taken away again without harm, the whole budget is used, and once it is
used up whoever holds most gives way to one that holds less (`yields`).

Where few share a budget that each of them may well want most of, one may hold several times as much
as it leaves free (`times`): with three times, one principal alone gets three quarters.

Must not know: what is held, who the holders are.
"""

from __future__ import annotations


class Shares:
    """How much of `limit` is held, and by whom."""

    __slots__ = ("_held", "_times", "limit", "used")

    def __init__(self, limit: int, times: int = 1) -> None:
        self.limit = limit
        self._times = times
        self.used = 0
        """By all of them."""
        self._held: dict[str, int] = {}
        """Invariant: its values are positive, and their sum is `used`."""

    def __len__(self) -> int:
        """How many hold something."""
        return len(self._held)

    def held(self, who: str) -> int:
        """Return how much it holds."""
        return self._held.get(who, 0)

    def change(self, who: str, delta: int) -> None:
        """It holds `delta` more, or less. What may be held is not checked here."""
        held = self._held.get(who, 0) + delta
        assert held >= 0, (who, held)
        self.used += delta
        if held:
            self._held[who] = held
        else:
            self._held.pop(who, None)

    def may_take(self, who: str, more: int) -> bool:
        """Return whether it would hold no more than `times` what it leaves free."""
        left = self.limit - self.used - more
        return self._held.get(who, 0) + more <= self._times * left

    def has_share(self, who: str) -> bool:
        """Return whether it holds as much as it may, or more."""
        return self._held.get(who, 0) >= self._times * (self.limit - self.used)

    def greediest(self) -> str:
        """Return who holds most, of several the one that has held something for longest. There must
        be one. Takes time by the number of holders."""
        return max(self._held, key=self._held.__getitem__)

    def yields(self, who: str, more: int) -> str | None:
        """Return who has to give way so that `who` may take `more`: the one that holds most, if it
        holds more than `who` would then. None: there is none."""
        if not self._held:
            return None
        greediest = self.greediest()
        return greediest if self._held[greediest] > self.held(who) + more else None

    def clear(self) -> None:
        """Forget all holders."""
        self._held.clear()
        self.used = 0
