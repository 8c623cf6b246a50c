"""Terms of a log, as runs: few numbers, always in memory.

Must not know: entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class TermRuns:
    """`starts[n]` is the first index of run n, `terms[n]` its term. Both ascend.

    Invariant: the first run begins at the index before the log's first entry.
    """

    __slots__ = ("starts", "terms")

    def __init__(self, prev_index: int, prev_term: int) -> None:
        self.starts = [prev_index]
        self.terms = [prev_term]

    def add(self, index: int, term: int) -> None:
        """The entry at `index`, the next one, has `term`."""
        if term != self.terms[-1]:
            assert index > self.starts[-1], (index, self.starts[-1])
            self.starts.append(index)
            self.terms.append(term)

    def term(self, index: int) -> int:
        if index >= self.starts[-1]:
            return self.terms[-1]
        return self.terms[bisect_right(self.starts, index) - 1]

    def truncate(self, index: int) -> None:
        """Entries from `index` on are gone."""
        at = max(1, bisect_left(self.starts, index))
        del self.starts[at:]
        del self.terms[at:]

    def trim(self, prev_index: int) -> None:
        """Entries below and at `prev_index` are gone; its term is kept."""
        at = bisect_right(self.starts, prev_index) - 1
        del self.starts[:at]
        del self.terms[:at]
        self.starts[0] = prev_index
