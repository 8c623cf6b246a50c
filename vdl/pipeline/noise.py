"""Filter for messages of Spark's JVM and of its tasks' Python processes that no user needs.

Lines come from many processes and threads, so lines of one text may have others between them. Text
that is not certainly noise is shown.

Does not depend on the source or destination of lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

NOISE = re.compile(
    r"WARNING: |Using Spark's default log4j|Using Spark's repl log4j|Setting default log level|"
    r"To adjust logging level|\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN |SLF4J(\(W\))?: |"
    r"(NOTE: )?Picked up \w*JAVA\w*OPTIONS: |"
    # Except the lack of memory, which ends the JVM.
    r"(OpenJDK|Java HotSpot\(TM\)) [\w -]*VM warning: (?!INFO: os::)"
)
TRACE = re.compile(
    r"\s+at |\s+\.\.\. \d+ |\s*(Caused by|Suppressed): |(\w+\.)+[\w$]+(Exception|Error)\b"
)
"""Lines that follow a warning with a Java exception."""
HEADER = re.compile(r"Traceback \(most recent call last\):")
FRAME = re.compile(r'  File "(.*)", line ')
DAEMON = "/pyspark/daemon.py"
HUNG_UP = re.compile(r"(BrokenPipeError|ConnectionResetError): ")
"""Error printed by the daemon when a task ends before its Python process has written everything.

This happens when a limit is reached, for example.
"""
HELD_MAX = 200


def shown(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not noise.

    A Python traceback is yielded once it is complete, or has HELD_MAX lines.
    """
    is_noise = False
    held: list[str] = []
    for line in lines:
        begins = HEADER.match(line) or FRAME.match(line)
        if (begins or (held and line[:1].isspace())) and len(held) < HELD_MAX:
            held.append(line)
            continue
        if held:
            is_noise = bool(HUNG_UP.match(line)) and _is_of_daemon(held)
            if not is_noise:
                yield from held
                yield line
            held.clear()
            continue
        follows = is_noise and (TRACE.match(line) or HUNG_UP.match(line))
        is_noise = bool(NOISE.match(line) or follows)
        if not is_noise:
            yield line
    yield from held


def _is_of_daemon(held: Iterable[str]) -> bool:
    """Return True if the lines of one or more tracebacks have only the daemon's frames."""
    files = [frame[1] for frame in map(FRAME.match, held) if frame]
    return bool(files) and all(file.endswith(DAEMON) for file in files)
