"""Filter of a JVM's error output for users."""

from __future__ import annotations

import pytest

from vdl.pipeline.noise import HELD_MAX, shown

HEADER = "Traceback (most recent call last):"
DAEMON = """  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 262, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 95, in worker
    outfile.flush()""".splitlines()
PIPE = "BrokenPipeError: [Errno 32] Broken pipe"
OTHER = '  File "/home/somebody/job.py", line 3, in rows'
TRACE = [HEADER, *DAEMON, PIPE]


@pytest.mark.parametrize(
    "lines",
    [
        TRACE,
        [HEADER, *DAEMON, "ConnectionResetError: [Errno 104] Connection reset by peer"],
        TRACE * 2,
        [HEADER, *TRACE, *DAEMON, PIPE],
        [HEADER, HEADER, *DAEMON, *DAEMON, PIPE, PIPE],
    ],
    ids=["pipe", "reset", "one after the other", "one within the other", "line by line"],
)
def test_worker_whose_task_has_ended_says_nothing(lines: list[str]) -> None:
    """Holds also if several workers report it at the same time."""
    assert list(shown(["before", *lines, "after"])) == ["before", "after"]


@pytest.mark.parametrize(
    "lines",
    [
        [HEADER, *DAEMON, "MemoryError"],
        [HEADER, *DAEMON, "ValueError: job.py"],
        [HEADER, OTHER, PIPE],
        [HEADER, *DAEMON, OTHER, PIPE],
        [HEADER, HEADER, OTHER, *DAEMON, PIPE, "ValueError: job.py"],
        [HEADER, PIPE],
        [PIPE],
        [HEADER],
        [HEADER, *["  and so on"] * (2 * HELD_MAX), "RecursionError: job.py"],
        ["Exception in thread x java.io.IOException: disk full", "\tat java.base/x(y.java:1)"],
        ["  indented", HEADER, OTHER],
    ],
)
def test_other_exceptions_are_shown_whole_and_in_order(lines: list[str]) -> None:
    """Exceptions of a task's own code, of the daemon for another reason, or without an end."""
    assert list(shown(lines)) == lines
