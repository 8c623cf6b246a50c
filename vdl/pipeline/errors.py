"""Errors that stop a job; each message says what an operator has to decide or repair."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

TRACEBACK = "Traceback (most recent call last):"
OWN = re.compile(r"vdl\.pipeline\.[\w.]+: ")
"""Beginning of the line of one of our errors in a traceback; the rest is for operators."""


class PipelineError(Exception):
    """A job cannot go on."""


class JobInvalid(PipelineError):
    """A job file that cannot be run; `problems` lists everything found."""

    def __init__(self, path: str, problems: list[str]) -> None:
        super().__init__(f"{path}: " + "; ".join(problems))
        self.path = path
        self.problems = problems


class TopicMissing(PipelineError):
    """The topic does not exist, or not any more."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic} does not exist")
        self.topic = topic


class TopicRecreated(PipelineError):
    """The topic was recreated since the offsets were kept: to continue would skip rows."""

    def __init__(self, topic: str, *, known: str, found: str) -> None:
        super().__init__(
            f"topic {topic} was deleted and created again: the stored offsets are of topic id "
            f"{known}, but the topic now has id {found}; use a new table or another job name "
            "to read it from its start"
        )
        self.topic = topic
        self.known = known
        self.found = found


class RowsGone(PipelineError):
    """Retention or DeleteRecords removed records that the job has not read."""

    def __init__(self, topic: str, partition: int, *, wanted: int, first: int) -> None:
        super().__init__(
            f"{topic}/{partition}: offset {wanted} is required, but the log begins at {first}: "
            f"{first - wanted} records were lost unread"
        )
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        self.first = first


class LogShrank(PipelineError):
    """The log ends before an offset that was read: its end was lost, or it is another log."""

    def __init__(self, topic: str, partition: int, *, known: int, end: int) -> None:
        super().__init__(f"{topic}/{partition}: read up to {known}, but the log ends at {end}")
        self.topic = topic
        self.partition = partition
        self.known = known
        self.end = end


class Stalled(PipelineError):
    """No record arrived for `seconds`, though the range is not at its end."""

    def __init__(
        self, topic: str, partition: int, *, offset: int, end: int, seconds: float, reason: str
    ) -> None:
        super().__init__(
            (f"{topic}/{partition}: nothing at offset {offset} (of {end}) for {seconds:.0f} s")
            + (f": {reason}" if reason else "")
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.end = end


class TooManyDeadLetters(PipelineError):
    """More records cannot be decoded than the job allows; the batch was not committed."""

    def __init__(self, *, dead: int, rows: int, share_max: float, example: str) -> None:
        super().__init__(
            f"{dead} of {rows} records cannot be decoded, more than the allowed "
            f"{share_max:.2%}; nothing of this batch was written; example: {example}"
        )
        self.dead = dead
        self.rows = rows
        self.share_max = share_max


class CommitConflict(PipelineError):
    """Another run has committed to the table under this job's name since it was opened.

    `by`: that run, as returned by `table.by_whom`; "" if the table does not record it.
    """

    def __init__(self, where: str, detail: str, by: str = "") -> None:
        other = f"another run of this job{by and ', '}{by}{by and ','}"
        super().__init__(f"{where}: {detail}; {other} is writing the same table")
        self.where = where


class SinkInconsistent(PipelineError):
    """The table has been written, but does not record up to which offsets."""


class UndecodableBatch(PipelineError):
    """Bytes that are no record batch, or one whose records must not be shown as they are."""


class TooLarge(UndecodableBatch):
    """Records that could not be decompressed: damaged, or larger than the buffer here."""


class BatchUnreadable(PipelineError):
    """A batch that is unreadable as its producer sent it, according to its CRC.

    `end`: the offset after it, -1 if unknown; `data`: its bytes, as far as they are known.
    """

    def __init__(
        self, topic: str, partition: int, *, start: int, end: int, reason: str, data: bytes = b""
    ) -> None:
        super().__init__(f"{topic}/{partition}: {unreadable_text(start, end, reason)}")
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.reason = reason
        self.data = data


def unreadable_text(start: int, end: int, reason: str) -> str:
    """Return the text for offsets [start, end) that have no readable record."""
    return f"offsets [{start}, {end if end >= 0 else '?'}): {reason}"


def reason_of(error: BaseException) -> str:
    """Return the line of a Spark exception that states the cause.

    That is the last line of one of our errors in the Python traceback that it quotes, or its own
    message without general phrases.
    """
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    told = [OWN.sub("", line) for line in lines if OWN.match(line)]
    own = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (told[-1:] or _raised(lines)[-1:] or own[:1] or [type(error).__name__])[0]


def _raised(lines: Sequence[str]) -> list[str]:
    """Return the lines of a quoted Python traceback, of which the last one is the exception."""
    if TRACEBACK not in lines:
        return []
    quoted = lines[lines.index(TRACEBACK) :]
    return list(takewhile(lambda line: not line.startswith("at "), quoted))
