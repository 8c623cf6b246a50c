"""Measured systems: a VDL replica set, or a peer beside it, each three server processes.

The peer is any program with these commands:

    PEER_COMMAND up DIR      start three servers; print "bootstrap HOST:PORT,... pids PID,..."
    PEER_COMMAND down DIR    stop them

Both systems are driven by the same client code on the same machine.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl import __version__

PEER_UP_SECONDS_MAX = 180
PEERS = {"kafka": ROOT.parent / "shared" / "peers" / "kafka" / "kafka3"}
"""Default program of a known peer; PEER_COMMAND names another."""
QUIET_SECONDS_MAX = 8.0
QUIET_STEP_SECONDS = 0.4
QUIET_CORES_MAX = 0.25
"""More than three servers at rest use, and less than a running compiler or collector."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class System(Protocol):
    """Three servers that can be started without data."""

    name: str

    @property
    def bootstrap(self) -> str:
        """Bootstrap addresses; known before the start, like a client's configuration."""
        ...

    def up(self) -> None:
        """Start without data; return when the system reports that it runs."""

    def pids(self) -> list[int]:
        """Return its process ids."""
        ...

    def data_directories(self) -> list[Path]:
        """Return the directories of its servers' records."""
        ...

    def settings(self) -> dict[str, str]:
        """Return its version and the settings that matter here. It must be running."""
        ...

    def down(self) -> None:
        """Stop it and remove its data."""


class Vdl:
    """The servers of this working tree."""

    name = "vdl"

    def __init__(self) -> None:
        self._replica_set = ReplicaSet(3)

    @property
    def bootstrap(self) -> str:
        return self._replica_set.bootstrap

    def up(self) -> None:
        self._replica_set.up()

    def pids(self) -> list[int]:
        return [self._replica_set.pid(number) for number in self._replica_set.server_ids]

    def data_directories(self) -> list[Path]:
        servers = map(self._replica_set.server, self._replica_set.server_ids)
        return [server.directory / "store" for server in servers]

    def settings(self) -> dict[str, str]:
        commit = ["git", "describe", "--always", "--dirty"]
        found = subprocess.run(commit, cwd=ROOT, capture_output=True, text=True, check=False)
        return {
            "version": f"{__version__} ({found.stdout.strip() or 'no commit'})",
            "python": platform.python_version(),
            "acknowledges": "after a sync on a majority",
            "storage.cache_bytes": str(self._replica_set.server(1).config().store.cache_bytes_max),
            "configuration": "as `vdl up` makes it",
        }

    def down(self) -> None:
        self._replica_set.close()


@dataclass(slots=True)
class Peer:
    """Another system, started by a command of its own.

    Its folder is kept between runs for its downloads; it removes its data itself.
    """

    name: str
    command: str
    bootstrap: str = ""
    _directory: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "vdl-bench-peer")
    _pids: list[int] = field(default_factory=list)

    def up(self) -> None:
        done = subprocess.run(
            [self.command, "up", str(self._directory)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=PEER_UP_SECONDS_MAX,
        )
        found = re.search(r"^bootstrap (\S+) pids ([\d,]+)$", done.stdout, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"{self.command} up printed no bootstrap line: {done.stdout}")
        self.bootstrap = found[1]
        self._pids = [int(pid) for pid in found[2].split(",")]

    def pids(self) -> list[int]:
        return self._pids

    def data_directories(self) -> list[Path]:
        return sorted(self._directory.glob("d[0-9]"))

    def settings(self) -> dict[str, str]:
        """Return settings of a JVM: its jar has the version, its command line the memory."""
        jars = sorted(self._directory.glob(f"lib/{self.name}_*.jar"))
        words = Path(f"/proc/{self._pids[0]}/cmdline").read_text(encoding="utf-8").split("\0")
        memory = [word for word in words if word.startswith(("-Xm", "-XX"))]
        return {
            "version": ", ".join(jar.stem.rpartition("-")[2] for jar in jars) or "unknown",
            "java": _java_version(),
            "memory": " ".join(memory) or "its defaults",
        }

    def down(self) -> None:
        subprocess.run([self.command, "down", str(self._directory)], check=True)
        for path in self._directory.glob("d[0-9]"):
            shutil.rmtree(path)


def peer_from_environment() -> Peer | None:
    """Return the system that PEER names; None without PEER.

    It is started by PEER_COMMAND or by the known program for it.
    """
    name = os.environ.get("PEER", "")
    if not name:
        return None
    command = os.environ.get("PEER_COMMAND", "") or str(PEERS.get(name, ""))
    if not command:
        raise SystemExit(f"PEER={name} needs PEER_COMMAND, the program that starts it")
    if shutil.which(command) is None:
        raise SystemExit(f"PEER={name}: there is no program {command}; PEER_COMMAND names it")
    return Peer(name, command)


def _java_version() -> str:
    found = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False)
    return found.stderr.partition("\n")[0]


def cpu_seconds(pids: list[int]) -> float:
    """Return the user and system time the processes have used, together."""
    total = 0
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        # The name, in parentheses, may hold spaces; utime and stime are fields 14 and 15.
        fields = stat.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_SECOND


def wait_quiet(pids: list[int]) -> float:
    """Wait until the servers have finished the work of the last load; return the seconds waited.

    That is mainly the removal of a topic. The wait is limited.
    """
    began = time.monotonic()
    while time.monotonic() - began < QUIET_SECONDS_MAX:
        before = cpu_seconds(pids)
        time.sleep(QUIET_STEP_SECONDS)
        if cpu_seconds(pids) - before < QUIET_CORES_MAX * QUIET_STEP_SECONDS:
            break
    return time.monotonic() - began


def rss_mb(pids: list[int]) -> float:
    """Return the resident memory of the largest of the processes."""
    pages = (Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1] for pid in pids)
    return max(int(count) for count in pages) * PAGE_BYTES / 1e6


def io_bytes(pid: int, field: str) -> int:
    """Return `read_bytes` or `write_bytes` of a process.

    These are the bytes it caused to be read from a disk, or made dirty in the page cache, in whole
    pages; a page that is synced and written again counts twice.
    """
    for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == field:
            return int(value)
    raise KeyError(field)
