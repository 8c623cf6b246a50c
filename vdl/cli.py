"""The `vdl` command.

`vdl serve` is a server: it calls `vdl.commands.serve` directly and never loads the libraries of the
interactive commands (click, rich), which would cost every server several megabytes and a tenth of a
second. All other commands are a click application in `vdl.commands.app`.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

SIGNALLED = 128
"""Exit code of a command that a signal ended, less the signal's number."""
INTERRUPTED = SIGNALLED + signal.SIGINT


def main() -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:]
    _open_standard_files()
    if not __debug__:
        # Assertions are the last line of defence of acknowledged data, in production as well.
        sys.stderr.write(
            "vdl: cannot run under python -O: it removes assertions that protect data; start "
            "without -O\n"
        )
        return 2
    if arguments[:1] == ["serve"]:
        from vdl.commands.serve import serve

        return serve(arguments[1:])
    try:
        from vdl.commands.app import run_app

        code = run_app(arguments)
    except KeyboardInterrupt:  # while modules are loaded
        code = INTERRUPTED
    if code > SIGNALLED:
        _end_now(code)
    return code


def _end_now(code: int) -> None:
    """End the process without a wait for its threads: some wait for servers that hang."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _open_standard_files() -> None:
    """Open the standard files that the caller has closed, without content.

    Otherwise the next file that is opened has the number of one of them, and what a library in C
    writes to standard error would go into a journal or a connection.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    # A character that the terminal's encoding lacks is shown as an escape, and ends nothing.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
