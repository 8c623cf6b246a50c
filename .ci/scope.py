"""Runs a command, and ends everything that it started before it ends itself.

    scope.py PARENT COMMAND [ARGUMENT...]

A process group does not achieve that: detached servers create sessions of their own, and are
orphans once their parent is gone. Linux gives orphans to the nearest ancestor that is a subreaper
(PR_SET_CHILD_SUBREAPER, prctl(2)), so here each descendant eventually becomes a child of this
process, unless it ended before. Needs no privileges.

Only children are signalled, and only this process collects them. So a process id cannot have been
reused by an unrelated process.

SIGTERM, SIGINT or SIGHUP, or the end of the process PARENT, end the command: SIGINT first, so that
fixtures stop what they started; SIGKILL for the rest after GRACE_SECONDS. Exits with the command's
code (128 + N if signal N ended it), 130 if it was ended from here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
DEFAULT = (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python or a shell's background jobs ignore, and that the command must not ignore."""
ENDED = 130
GRACE_SECONDS = 10.0
KILL_SECONDS_MAX = 10.0
"""Time limit: a process in an uninterruptible wait of the kernel cannot be awaited for ever."""
POLL_SECONDS = 0.05


def main(arguments: list[str]) -> int:
    parent, command = int(arguments[0]), arguments[1:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # Signals are accepted synchronously (sigwait): none arrives between two lines.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*ENDING, signal.SIGCHLD})
    if os.getppid() != parent:
        return ENDED
    pid = os.posix_spawnp(
        command[0], command, os.environ, setpgroup=0, setsigmask=[], setsigdef=DEFAULT
    )
    code = _run(pid)
    left = _kill_children()
    if left:
        print(f"ended what was left running: {', '.join(left)}", file=sys.stderr)
    return code


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(pid: int) -> int:
    """Wait for the command's end; return the exit code."""
    code = None
    while code is None:
        if signal.sigwait({*ENDING, signal.SIGCHLD}) in ENDING:
            _end(pid)
            return ENDED
        code = _collect().get(pid)
    return code


def _end(pid: int) -> None:
    """Interrupt the command's process group; return when the command has ended or time is up."""
    # Not collected yet, so the process id is still the command's.
    os.killpg(pid, signal.SIGINT)
    deadline = time.monotonic() + GRACE_SECONDS
    while pid not in _collect() and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, POLL_SECONDS)


def _collect() -> dict[int, int]:
    """Collect the children that have ended; return process id -> exit code."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        code = os.waitstatus_to_exitcode(status)
        codes[pid] = code if code >= 0 else 128 - code


def _kill_children() -> list[str]:
    """Kill the children, and their orphans as they become children, until there are none.

    Return the names of those that were alive.
    """
    killed: dict[int, str] = {}
    deadline = time.monotonic() + KILL_SECONDS_MAX
    while time.monotonic() < deadline:
        _collect()
        children = _children()
        if not children:
            break
        for pid in children:
            killed.setdefault(pid, _name(pid))
            os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, POLL_SECONDS)
    return list(killed.values())


def _children() -> list[int]:
    """Return the children of this process that were not collected yet."""
    own, found = os.getpid(), []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # After the name, which may contain spaces and parentheses: state, parent.
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == own:
            found.append(int(folder.name))
    return found


def _name(pid: int) -> str:
    """Return the process id and the command line, as far as they fit in a line."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"{pid} ({words.strip()[:80]})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
