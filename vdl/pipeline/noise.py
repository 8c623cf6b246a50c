"""What a JVM with Spark in it, and the Python processes of its tasks, write to their errors and a
user need not see.

Lines come from many processes and threads, so those of one text may have others between them. What
is not known for certain as noise is shown.

Must not know: where lines come from or go to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

NOISE = re.compile(
    r"WARNING: |Using Spark's default log4j|Using Spark's repl log4j|Setting default log level|"
    r"To adjust logging level|\d\d/\d\d/\d\d \d\d:\d\d:\d\d WARN |SLF4J(\(W\))?: |"
    r"(NOTE: )?Picked up \w*JAVA\w*OPTIONS: |"
    # Not that there is no memory, which ends it.
    r"(OpenJDK|Java HotSpot\(TM\)) [\w -]*VM warning: (?!INFO: os::)"
)
TRACE = re.compile(
    r"\s+at |\s+\.\.\. \d+ |\s*(Caused by|Suppressed): |(\w+\.)+[\w$]+(Exception|Error)\b"
)
"""What follows a warning with an exception of Java's."""
HEADER = re.compile(r"Traceback \(most recent call last\):")
FRAME = re.compile(r'  File "(.*)", line ')
DAEMON = "/pyspark/daemon.py"
HUNG_UP = re.compile(r"(BrokenPipeError|ConnectionResetError): ")
"""A task may end before its Python process has written all, as where a limit is reached. The daemon
that the process came from prints this then."""
HELD_MAX = 200


def shown(lines: Iterable[str]) -> Iterator[str]:
    """Those of the lines that are not noise. A traceback of Python's comes when it is complete, or
    has HELD_MAX lines."""
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
    """Whether lines of a traceback, or of several, have no frames but the daemon's."""
    files = [frame[1] for frame in map(FRAME.match, held) if frame]
    return bool(files) and all(file.endswith(DAEMON) for file in files)
