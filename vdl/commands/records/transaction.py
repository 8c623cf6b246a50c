"""One transaction around what a command writes, and what became of it.

A commit that is not answered in time is asked again, as the client allows it: the cluster may have
taken it all the same. If no answer comes, the outcome is unknown and is reported as such.

Signals do not interrupt the commit or the abort, whose waits are bounded: a commit that succeeds is
never reported as something else.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vdl.commands.cluster.cluster_options import kafka_exception
from vdl.commands.interrupts import Interrupts

if TYPE_CHECKING:
    from confluent_kafka import Producer

STEP_SECONDS = 60.0
"""Longest wait for the answer to one step of a transaction."""
TURN_SECONDS = 0.25
"""Longest time for which the client does not see a signal before the transaction begins."""
COMMITS_MAX = 3
"""Times that a commit is asked for, after answers that came too late."""


class Ending(enum.Enum):
    """State of the transaction."""

    NONE = "none"
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """It may be committed or not."""
    LEFT_OPEN = "left open"
    """It is not committed, and its abort failed: the cluster aborts it after its timeout."""


class Transaction:
    """A transaction; it is committed if the block says that it is complete."""

    def __init__(
        self, producer: Producer, interrupts: Interrupts, words: Callable[[BaseException], str]
    ) -> None:
        """Create it; `words` puts errors of the client in words."""
        self.is_complete = False
        self.ending = Ending.NONE
        self.problem = ""
        """Reason why it is not committed although it was complete, or not aborted."""
        self._producer = producer
        self._interrupts = interrupts
        self._words = words

    @contextmanager
    def around(self) -> Iterator[None]:
        """Commit what is sent in the block if it is complete, or abort it. Raises KafkaException
        if it cannot begin, KeyboardInterrupt for a signal before it does."""
        self._init()
        self._producer.begin_transaction()
        self.ending = Ending.OPEN
        try:
            yield
        finally:
            with self._interrupts.held(breakable=False):
                if self.is_complete and not self._interrupts.count:
                    self._commit()
                else:
                    self._abort()

    def release(self) -> None:
        """Give up the client, so that it can end; only the result is left."""
        del self._producer

    def _init(self) -> None:
        """Get a producer id. In turns, as a signal is handled only between two calls of the client;
        each call goes on where the one before it ended."""
        deadline = time.monotonic() + STEP_SECONDS
        while True:
            self._interrupts.check()
            try:
                self._producer.init_transactions(TURN_SECONDS)
            except kafka_exception() as error:
                if error.args[0].name() != "_TIMED_OUT" or time.monotonic() >= deadline:
                    raise
            else:
                return

    def _commit(self) -> None:
        """Commit, or abort if the cluster refuses."""
        for number in range(1, COMMITS_MAX + 1):
            try:
                self._producer.commit_transaction(STEP_SECONDS)
            except kafka_exception() as error:
                self.problem = self._words(error)
                found = error.args[0]
                if found.txn_requires_abort():
                    self._abort()
                    return
                if found.retriable() and number < COMMITS_MAX and not self._interrupts.count:
                    continue
                self.ending = Ending.UNKNOWN
                return
            self.ending, self.problem = Ending.COMMITTED, ""
            return

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(STEP_SECONDS)
        except kafka_exception() as error:
            self.ending = Ending.LEFT_OPEN
            self.problem = self.problem or self._words(error)
        else:
            self.ending = Ending.ABORTED
