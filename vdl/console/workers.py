"""Threads that answer questions: a few in all, and fewer for each session.

A session waits for its own questions only: the next one is taken from the session whose turn it is.
What waits is bounded, and a question that takes too long is answered with an error while its
thread comes to an end.

Does not depend on what is asked. `asyncio` is left to the caller, who gives the loop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from vdl.console.console import Work
from vdl.console.problems import ConsoleError

THREADS: Final = 4
RUNNING_PER_ASKER_MAX: Final = 2
WAITING_PER_ASKER_MAX: Final = 8
WAITING_MAX: Final = 64
GRACE_SECONDS: Final = 0.5
"""Time after the deadline in which a thread may notice it."""

Done = Callable[[Any], None]


class Loop(Protocol):
    """The event loop, as far as it is needed."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any: ...
    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> Any: ...


class _Job:
    """A question that waits or runs."""

    def __init__(self, work: Work, done: Done, is_wanted: Callable[[], bool]) -> None:
        self.work = work
        self.done: Done | None = done
        self.is_wanted = is_wanted

    def answer(self, result: Any) -> None:
        """Call `done` the first time."""
        done, self.done = self.done, None
        if done is not None:
            done(result)


class Workers:
    """See the module. All methods are called on the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="question")
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        """Jobs by asker, the one whose turn it is first."""
        self._running: dict[str, int] = {}

    def ask(self, work: Work, done: Done, is_wanted: Callable[[], bool]) -> None:
        """Do the work; `done` receives its result or exception, on the loop. Raises ConsoleError if
        too much waits.

        `is_wanted`: asked before the work begins; False: it is dropped, and `done` not called."""
        jobs = self._waiting.get(work.asker, ())
        if len(jobs) >= WAITING_PER_ASKER_MAX:
            raise ConsoleError("too_many", "too many questions at once", retry_after=1)
        if sum(map(len, self._waiting.values())) >= WAITING_MAX:
            raise ConsoleError("busy", "the console is busy", retry_after=2)
        job = _Job(work, done, is_wanted)
        self._waiting.setdefault(work.asker, deque()).append(job)
        left_s = max(0.0, work.question.seconds_left())
        self._loop.call_later(left_s, work.question.cancel)
        late = ConsoleError("deadline", "the question took too long")
        self._loop.call_later(left_s + GRACE_SECONDS, lambda: job.answer(late))
        self._next()

    def close(self) -> None:
        """Take no further work."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        while sum(self._running.values()) < THREADS:
            job = self._take()
            if job is None:
                return
            asker = job.work.asker
            self._running[asker] = self._running.get(asker, 0) + 1
            self._threads.submit(self._run, job)

    def _take(self) -> _Job | None:
        """Take the next job of an asker who may have another one running."""
        for asker, jobs in list(self._waiting.items()):
            while jobs and (jobs[0].done is None or not jobs[0].is_wanted()):
                jobs.popleft()
            if not jobs:
                del self._waiting[asker]
            elif self._running.get(asker, 0) < RUNNING_PER_ASKER_MAX:
                job = jobs.popleft()
                self._waiting.move_to_end(asker)
                if not jobs:
                    del self._waiting[asker]
                return job
        return None

    def _run(self, job: _Job) -> None:
        """Do the work, in a thread."""
        result: Any
        try:
            question = job.work.question
            with question.session.ending(question.cancel):
                question.check()
                result = job.work.run()
        except BaseException as error:  # noqa: BLE001 - the loop decides what a failure means
            result = error
        self._loop.call_soon_threadsafe(self._ended, job, result)

    def _ended(self, job: _Job, result: Any) -> None:
        asker = job.work.asker
        self._running[asker] -= 1
        if not self._running[asker]:
            del self._running[asker]
        job.answer(result)
        self._next()
