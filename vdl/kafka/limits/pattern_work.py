"""Matching of patterns that clients choose, in a separate thread, in fair order of the askers.

The cost of a pattern is bounded (`vdl.patterns`), but it is high compared with that of a request.
So:

* Nothing is compiled or matched on the event loop.
* One thread does the work, in slices of `SLICE_STEPS`. After each slice another asker has its turn.
* An asker rests `REST` times as long as its slices took, so it never has more than a quarter of a
  processor. An asker with little work is not delayed.
* At most `WAITING_OF_ONE_MAX` questions of an asker wait, and `WAITING_MAX` in all; more are
  refused.
* A pattern that takes longer than `CPU_NS_MAX` with the texts of one question is refused.
* The latest results of checks are cached, so checking a pattern again costs nothing.

Does not depend on the identity of askers, or on the texts that are matched.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

from vdl.clock import MS, Clock, Timer
from vdl.kafka.host import Compute
from vdl.patterns import PATTERN_BYTES_MAX, BadPattern, Pattern, compile_pattern

SLICE_STEPS = 4_000_000
"""Maximum number of RE2's steps after which another asker has its turn: 20 ms at the worst."""
COMPILE_STEPS = 500
"""Number of steps that compiling a byte of a pattern counts as."""
REST = 3
REST_NS_MIN = 5 * MS
"""An asker that would rest for less continues at once."""
CPU_NS_MAX = 2_000 * MS
WAITING_MAX = 1_000
WAITING_OF_ONE_MAX = 100
ASKERS_MAX = 1_000
"""Maximum number of askers whose rest is remembered."""
COMPILED_MAX = 32
"""Maximum number of compiled patterns that are kept; each takes up to `MEMORY_MAX` bytes."""
KNOWN_MAX = 1_024
"""Maximum number of patterns known to be valid, and of those known to be invalid."""

Found = list[str] | BadPattern
"""Texts that match the whole pattern, in the order given; or the reason of its refusal."""
Question = tuple[str, Collection[str]]
"""A pattern, and texts."""
Value = TypeVar("Value")


class TooSlow(BadPattern):
    """A valid pattern that takes too long with these texts."""


class Asked:
    """Questions of one asker, or of several with the same ones. Changed only by `PatternWork`."""

    __slots__ = ("askers", "at", "done", "found", "is_over", "questions", "spent_ns", "texts")

    def __init__(self, questions: Sequence[Question], done: Callable[[list[Found]], None]) -> None:
        self.questions = [(pattern, list(texts)) for pattern, texts in questions]
        self.done = done
        self.askers: set[str] = set()
        self.found: list[Found] = []
        """Answers so far, in the order of the questions."""
        self.texts: list[str] = []
        """Matching texts of the present question."""
        self.at = 0
        """Number of texts of the present question that were matched."""
        self.spent_ns = 0
        """Processor time spent on the present question."""
        self.is_over = False

    def cancel(self) -> None:
        """Record that the answer is not wanted any more."""
        self.is_over = True


class _Asker:
    """An asker with waiting questions, or that rests."""

    __slots__ = ("rested_ns", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Asked] = deque()
        self.rested_ns = 0
        """End of its rest (ns, the clock's)."""


class PatternWork:
    """Queue of questions and cache of their results; see the module. Called on the loop."""

    def __init__(
        self, compute: Compute, clock: Clock, cpu_ns: Callable[[], int] = lambda: 0
    ) -> None:
        """`compute` runs a job in the thread. `cpu_ns` returns the processor time of the calling
        thread (ns); the default is for servers on virtual time."""
        self._compute = compute
        self._clock = clock
        self._cpu_ns = cpu_ns
        self._askers: OrderedDict[str, _Asker] = OrderedDict()
        """Askers in the order of their turns."""
        self._waiting = 0
        self._is_running = False
        self._is_starting = False
        self._timer: Timer | None = None
        self._compiled: OrderedDict[str, Pattern] = OrderedDict()
        """Use: only by the running slice."""
        self._sound: OrderedDict[str, None] = OrderedDict()
        self._refused: OrderedDict[str, BadPattern] = OrderedDict()
        self.slices = 0
        self.compiles = 0
        self.matches = 0
        """Number of texts that were matched."""

    # --- cached results ----------------------------------------------------------------------
    def refusal(self, pattern: str) -> BadPattern | None:
        """Return the reason why the pattern is refused, if it is known."""
        if len(pattern) > PATTERN_BYTES_MAX:
            return BadPattern(pattern[:80], f"more than {PATTERN_BYTES_MAX} bytes")
        return self._refused.get(pattern)

    def knows(self, pattern: str) -> bool:
        """Return True if the result of checking the pattern is known."""
        return pattern in self._sound or self.refusal(pattern) is not None

    # --- questions ---------------------------------------------------------------------------
    def check(self, asker: str, patterns: Iterable[str], done: Callable[[], None]) -> bool:
        """Compile patterns, then call `done`; `refusal` returns the errors of invalid ones.

        Return False, without calling `done`, if too many questions wait.
        """
        unknown = [(one, ()) for one in dict.fromkeys(patterns) if not self.knows(one)]
        if not unknown:
            done()
            return True
        return self.match(asker, unknown, lambda _: done()) is not None

    def match(
        self, asker: str, questions: Sequence[Question], done: Callable[[list[Found]], None]
    ) -> Asked | None:
        """Match texts, then call `done` with the answer to each question.

        `done` may be called within this call. Return None, without calling `done`, if too many
        questions wait.
        """
        present = self._askers.get(asker)
        waiting = 0 if present is None else len(present.waiting)
        if self._waiting >= WAITING_MAX or waiting >= WAITING_OF_ONE_MAX:
            return None
        asked = Asked(questions, done)
        self.join(asker, asked)
        return asked

    def join(self, asker: str, asked: Asked) -> None:
        """Queue a question under one more asker, without a limit.

        It is answered in the turn of any of its askers. Used for patterns that were accepted
        before, whose number is bounded elsewhere.
        """
        if asked.is_over or asker in asked.askers:
            return
        asked.askers.add(asker)
        self._enqueue(asker, asked)
        self._start()

    def _enqueue(self, asker: str, asked: Asked) -> None:
        self._askers.setdefault(asker, _Asker()).waiting.append(asked)
        self._waiting += 1

    # --- turns -------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._is_starting:
            return
        self._is_starting = True
        while not self._is_running:
            turn = self._next()
            if turn is None:
                break
            asker, asked = turn
            self._is_running = True
            self._compute(partial(self._slice, asked), partial(self._sliced, asker, asked))
        self._is_starting = False

    def _next(self) -> tuple[str, Asked] | None:
        """Take the next question of the first asker that need not rest; if all rest, set a
        timer."""
        now_ns = self._clock.now_ns()
        first_ns: int | None = None
        for name, asker in list(self._askers.items()):
            while asker.waiting and asker.waiting[0].is_over:
                asker.waiting.popleft()
                self._waiting -= 1
            left_ns = asker.rested_ns - now_ns
            if not asker.waiting:
                if left_ns <= 0 or len(self._askers) > ASKERS_MAX:
                    del self._askers[name]
            elif left_ns < REST_NS_MIN:
                self._askers.move_to_end(name)
                self._waiting -= 1
                return name, asker.waiting.popleft()
            elif first_ns is None or left_ns < first_ns:
                first_ns = left_ns
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if first_ns is not None:
            self._timer = self._clock.call_later(first_ns, self._rested)
        return None

    def _rested(self) -> None:
        self._timer = None
        self._start()

    def _sliced(self, name: str, asked: Asked, spent: int | BaseException) -> None:
        self._is_running = False
        self.slices += 1
        if isinstance(spent, BaseException):
            # The pattern is a client's: an exception that it causes must not end the server.
            self._answer(asked, BadPattern(asked.questions[len(asked.found)][0], repr(spent)))
        else:
            now_ns = self._clock.now_ns()
            asker = self._askers.setdefault(name, _Asker())
            self._askers.move_to_end(name)
            asker.rested_ns = max(asker.rested_ns, now_ns) + REST * spent
        for (pattern, _), found in zip(asked.questions, asked.found, strict=False):
            self._remember(pattern, found)
        if len(asked.found) < len(asked.questions):
            if not asked.is_over:
                self._enqueue(name, asked)
        elif not asked.is_over:
            asked.is_over = True
            asked.done(asked.found)
        self._start()

    def _remember(self, pattern: str, found: Found) -> None:
        if isinstance(found, TooSlow) or len(pattern) > PATTERN_BYTES_MAX:
            return
        if isinstance(found, BadPattern):
            _put(self._refused, pattern, found, KNOWN_MAX)
        else:
            _put(self._sound, pattern, None, KNOWN_MAX)

    # --- in the thread -----------------------------------------------------------------------
    def _slice(self, asked: Asked) -> int:
        """Run one slice in the thread. Return the processor time it took (ns)."""
        began_ns = self._cpu_ns()
        left, spent_ns = SLICE_STEPS, 0
        while left > 0 and len(asked.found) < len(asked.questions) and not asked.is_over:
            left -= self._do_some(asked, left)
            now_ns = self._cpu_ns() - began_ns
            asked.spent_ns += now_ns - spent_ns
            spent_ns = now_ns
            if asked.spent_ns > CPU_NS_MAX and len(asked.found) < len(asked.questions):
                pattern = asked.questions[len(asked.found)][0]
                self._answer(asked, TooSlow(pattern, "matching takes too many steps"))
        return spent_ns

    def _do_some(self, asked: Asked, left: int) -> int:
        """Continue with the present question. Return the approximate number of steps taken."""
        pattern, texts = asked.questions[len(asked.found)]
        taken = 0
        compiled = self._compiled.get(pattern)
        if compiled is None:
            self.compiles += 1
            taken += COMPILE_STEPS * len(pattern)
            try:
                compiled = compile_pattern(pattern)
            except BadPattern as error:
                self._answer(asked, error)
                return taken
        _put(self._compiled, pattern, compiled, COMPILED_MAX)
        while asked.at < len(texts) and taken < left:
            text = texts[asked.at]
            asked.at += 1
            self.matches += 1
            taken += compiled.size * (len(text) + 1)
            if compiled.matches(text):
                asked.texts.append(text)
        if asked.at == len(texts):
            self._answer(asked, asked.texts)
        return taken

    def _answer(self, asked: Asked, found: Found) -> None:
        asked.found.append(found)
        asked.texts, asked.at, asked.spent_ns = [], 0, 0


def _put(kept: OrderedDict[str, Value], key: str, value: Value, count_max: int) -> None:
    """Store a value as the newest, and drop the oldest if there are too many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > count_max:
        kept.popitem(last=False)
