"""The file that holds a server's process id, and whether that process is still the server.

Ids are reused, and a killed server leaves its file: a file is believed only while its process runs
`vdl serve` with the configuration that it is asked about. A server writes it when its directory is
its own, and only who finds its own process in it takes it away: another one that was started by
mistake must not make `vdl down` lose the one that runs.

Must not know: how servers are started and stopped. A server loads it, so it stays small.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_pid(path: Path) -> int:
    """The process id in the file, 0 when there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def write_pid(path: Path, pid: int) -> None:
    """Whole or not at all; a server and who started it may both do it. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(f"{pid}\n", encoding="ascii")
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def remove_pid(path: Path, pid: int) -> None:
    """Remove the file if it still names process `pid`."""
    if read_pid(path) == pid:
        path.unlink(missing_ok=True)


def is_server_process(pid: int, config_file: Path) -> bool:
    """Whether process `pid` is alive and runs `vdl serve` with this very configuration file."""
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        command = _command_line_from_ps(pid)
    return b"serve" in command and os.fsencode(config_file) in command


def _command_line_from_ps(pid: int) -> list[bytes]:
    """The words of a process's command line where there is no /proc; empty when it is gone."""
    if Path("/proc/self/cmdline").exists():
        return []
    import subprocess

    found = subprocess.run(  # noqa: S603 - a number of our own, no shell
        ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
    )
    return found.stdout.split()
