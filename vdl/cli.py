"""The `vdl` command.

`vdl serve` is a server: it calls `vdl.commands.serve` directly and never loads the libraries of the
interactive commands (click, rich), which would cost every server several megabytes and a tenth of a
second. All other commands are a click application in `vdl.commands.app`.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return the exit code."""
    arguments = sys.argv[1:]
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
    from vdl.commands.app import run_app

    return run_app(arguments)


if __name__ == "__main__":
    sys.exit(main())
