"""`vdl serve`: one server, from a configuration file, until SIGTERM or SIGINT.

Prepares the process (signals, files private to the user, as many descriptors as the system allows,
memory, short switch interval, pid file), then hands over to `vdl.server.process`. Loads only
modules that a server needs.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from vdl.commands.servers.open_files import raise_file_limit, within_files
from vdl.commands.servers.pid_file import remove_pid, write_pid
from vdl.config.exposure import exposure
from vdl.config.settings import Config, ConfigError, load_config, parse_config

EXIT_USAGE = 2
EXIT_BY_SIGNAL = 128
"""Plus the signal's number."""
SWITCH_INTERVAL_SECONDS = 0.0005
"""Longest time that a computing thread keeps the interpreter from a waiting one. With Python's own
5 ms the journal's thread would lose that much after each fsync, and the loop at each poll while a
long request is decoded."""
ARENAS_MAX = 2
"""Arenas of the C library's allocator: one for the loop, one for all other threads, which rarely
allocate at the same time. One for each thread would keep some 13 MB in fragments."""
_M_ARENA_MAX = -8  # mallopt(3)


def serve(arguments: Sequence[str]) -> int:
    """Run a server. Return its exit code, 2 if the configuration is invalid."""
    parser = argparse.ArgumentParser(
        prog="vdl serve", description="Run one server until SIGTERM or SIGINT."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help=(
            "TOML file; if it is not given: a single-node broker on 127.0.0.1:9092 with data "
            "in ./data"
        ),
    )  # fmt: skip
    parser.add_argument(
        "--pid-file", type=Path, metavar="FILE", help="file to write the process id to"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the configuration, print the permissions at each port, and exit",
    )
    parser.add_argument(
        "--id", type=int, metavar="N",
        help="refuse a configuration with another server.id: for units with an instance a server",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    with _ended_by_signals(options.pid_file):
        try:
            config = _configuration(options.config)
            if options.id not in (None, config.server_id):
                problem = f"it is {config.server_id}, and --id is {options.id}"
                raise ConfigError(str(options.config or "defaults"), "server.id", problem)
        except ConfigError as error:
            sys.stderr.write(f"vdl serve: {error}\n")
            return EXIT_USAGE
        if options.check:
            sys.stdout.writelines(f"{line}\n" for line in exposure(config))
            return 0
        os.umask(0o077)
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        limit_arenas()
        from vdl.server.process import run

        path, pid = options.pid_file, os.getpid()

        def write() -> None:
            """Write the pid file once the directory is locked: another server's file stays."""
            if path is not None:
                try:
                    write_pid(path, pid)
                except OSError as error:
                    raise OSError(error.errno, f"{error.strerror}: pid file {path}") from error

        code = run(within_files(config, raise_file_limit()), write)
        if path is not None:
            remove_pid(path, pid)
        return code


@contextlib.contextmanager
def _ended_by_signals(pid_file: Path | None) -> Iterator[None]:
    """End the process at once on SIGTERM and SIGINT, until the server installs its own handlers
    after reading its directory. That is like a crash, which is possible at any time. The default
    actions would not end process 1 of a container, and SIGINT would print a traceback. As with the
    server's own handlers, a signal that was ignored before is handled, too."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        if pid_file is not None:
            with contextlib.suppress(OSError):
                remove_pid(pid_file, os.getpid())
        os._exit(EXIT_BY_SIGNAL + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _configuration(path: Path | None) -> Config:
    if path is None:
        return parse_config("", source="built-in defaults", folder=Path.cwd())
    return load_config(path)


def limit_arenas() -> None:
    """Let threads share arenas of the C library's allocator, if it has any. Use: before there are
    threads. MALLOC_ARENA_MAX takes precedence if it is set in the environment."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, ARENAS_MAX)
