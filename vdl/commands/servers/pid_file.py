"""Process id file of a server, and a check that this process is still the server.

Ids are reused, and a killed server leaves its file: a file counts only while its process runs
`vdl serve` with the given configuration file. A server writes it once its directory is locked, and
removes it only if it names its own process: a second server started by mistake must not make
`vdl down` lose the running one.

A server loads this module, so it stays small.
"""

from __future__ import annotations

import os
from pathlib import Path


def read_pid(path: Path) -> int:
    """Return the process id in the file, 0 if there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def write_pid(path: Path, pid: int) -> None:
    """Write the file as a whole or not at all; a server and its starter may both do so. Raises
    OSError."""
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
    """Return True if process `pid` is alive and runs `vdl serve` with exactly this configuration
    file."""
    if pid <= 0:
        return False
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        command = _command_line_from_ps(pid)
    return b"serve" in command and os.fsencode(config_file) in command


def _command_line_from_ps(pid: int) -> list[bytes]:
    """Return the words of a process's command line if there is no /proc; empty if it is gone."""
    if Path("/proc/self/cmdline").exists():
        return []
    import subprocess

    found = subprocess.run(  # noqa: S603 - a number of our own, no shell
        ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
    )
    return found.stdout.split()
