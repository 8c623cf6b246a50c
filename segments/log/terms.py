"""Terms of a log as runs of equal terms, always in memory.

Does not depend on entries.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from ids import NO_OFFSET, Index, Offset, Term


class TermRuns:
    """Runs of equal terms.

    `starts[n]` is the first index of run n, `terms[n]` its term, `offsets[n]` its first offset. The
    offset where a term ended is requested often (KIP-101), also of old entries.

    Invariant: the first run begins at the index before the log's first entry; it has no offset.
    """

    __slots__ = ("offsets", "starts", "terms")

    def __init__(self, prev_index: Index, prev_term: Term) -> None:
        # Tuples, because a server has thousands of logs and most have one term for long.
        self.starts: tuple[Index, ...] = (prev_index,)
        self.terms: tuple[Term, ...] = (prev_term,)
        self.offsets: tuple[Offset, ...] = (NO_OFFSET,)

    def add(self, index: Index, term: Term, offset: Offset) -> None:
        """Add the next entry: it is at `index`, has `term` and begins at `offset`."""
        if term != self.terms[-1]:
            assert index > self.starts[-1], (index, self.starts[-1])
            self.starts += (index,)
            self.terms += (term,)
            self.offsets += (offset,)

    def offset_at(self, index: Index) -> Offset:
        """Return the first offset of entry `index` if a run begins with it, else -1."""
        at = bisect_left(self.starts, index)
        if at == len(self.starts) or self.starts[at] != index:
            return NO_OFFSET
        return self.offsets[at]

    def term(self, index: Index) -> Term:
        if index >= self.starts[-1]:
            return self.terms[-1]
        return self.terms[bisect_right(self.starts, index) - 1]

    def truncate(self, index: Index) -> None:
        """Remove entries from `index` on."""
        at = max(1, bisect_left(self.starts, index))
        self.starts, self.terms, self.offsets = (
            self.starts[:at], self.terms[:at], self.offsets[:at],
        )  # fmt: skip

    def trim(self, prev_index: Index) -> None:
        """Remove entries up to and including `prev_index`, but keep that entry's term."""
        at = bisect_right(self.starts, prev_index) - 1
        self.starts = (prev_index, *self.starts[at + 1 :])
        self.terms = self.terms[at:]
        self.offsets = (NO_OFFSET, *self.offsets[at + 1 :])
