"""One budget of a server, shared out between principals.

The rule: no principal may hold more than it leaves free. One alone gets half of the budget, two
that both want all of it a third each, n of them 1/(n+1); budget that one returns, others may take.
Some is always free for a later one, at the cost of an unused part. Buffers of switches are shared
this way (Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998).

If holdings can be revoked without harm, the whole budget is used; once it is used up, the principal
that holds most yields to one that holds less (`yields`).

If few principals share a budget of which each may well want most, one may hold several times what
it leaves free (`times`): with three times, one principal alone gets three quarters.

Does not depend on the kind of budget or of its holders.
"""

from __future__ import annotations


class Shares:
    """Amount of `limit` that is held, by holder."""

    __slots__ = ("_held", "_times", "limit", "used")

    def __init__(self, limit: int, times: int = 1) -> None:
        self.limit = limit
        self._times = times
        self.used = 0
        """Amount held by all together."""
        self._held: dict[str, int] = {}
        """Invariant: its values are positive, and their sum is `used`."""

    def __len__(self) -> int:
        """Return the number of holders."""
        return len(self._held)

    def held(self, who: str) -> int:
        """Return the amount that `who` holds."""
        return self._held.get(who, 0)

    def change(self, who: str, delta: int) -> None:
        """Change the amount of `who` by `delta`. The rule is not checked here."""
        held = self._held.get(who, 0) + delta
        assert held >= 0, (who, held)
        self.used += delta
        if held:
            self._held[who] = held
        else:
            self._held.pop(who, None)

    def may_take(self, who: str, more: int, times: int = 0) -> bool:
        """Return True if `who`, with `more`, would hold at most `times` what it leaves free.
        0: as many times as usual."""
        left = self.limit - self.used - more
        return self._held.get(who, 0) + more <= (times or self._times) * left

    def has_share(self, who: str) -> bool:
        """Return True if `who` holds as much as it may, or more."""
        return self._held.get(who, 0) >= self._times * (self.limit - self.used)

    def greediest(self) -> str:
        """Return the holder of most; of equals the one that has held something for longest. There
        must be a holder. Takes time linear in their number."""
        return max(self._held, key=self._held.__getitem__)

    def yields(self, who: str, more: int) -> str | None:
        """Return the holder that has to yield so that `who` may take `more`: the one that holds
        most, if that is more than `who` would then hold. None: there is none."""
        if not self._held:
            return None
        greediest = self.greediest()
        return greediest if self._held[greediest] > self.held(who) + more else None

    def clear(self) -> None:
        """Remove all holders."""
        self._held.clear()
        self.used = 0
