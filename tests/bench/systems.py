"""What is measured: a VDL replica set, or a peer beside it, each three server processes.

The peer is any program that answers

    PEER_COMMAND up DIR      start three servers; print "bootstrap HOST:PORT,... pids PID,..."
    PEER_COMMAND down DIR    stop them

so that both are driven by the same client code on the same machine.
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
"""Where the program of a known peer is looked for; PEER_COMMAND names another."""
QUIET_SECONDS_MAX = 8.0
QUIET_STEP_SECONDS = 0.4
QUIET_CORES_MAX = 0.25
"""What three servers at rest use, and a running compiler or collector does not."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class System(Protocol):
    """Three servers that can be started afresh."""

    name: str

    @property
    def bootstrap(self) -> str:
        """Known before it is started, as a client's configuration is."""
        ...

    def up(self) -> None:
        """Start it on no data; returns when it says that it runs."""

    def pids(self) -> list[int]:
        """Its processes."""
        ...

    def data_directories(self) -> list[Path]:
        """Where its servers keep their records."""
        ...

    def settings(self) -> dict[str, str]:
        """What it is, and what of its set-up matters here; asked while it runs."""
        ...

    def down(self) -> None:
        """Stop it and remove its data."""


class Vdl:
    """This working tree."""

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
    """Another system, started by a command of its own. Its folder is kept between runs for what it
    downloads; it removes its data itself."""

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
        """Of a JVM: its jar tells the version, its command line the memory."""
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
    """The system that PEER names, started by PEER_COMMAND or by the program that is known for it;
    None without PEER."""
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
    """User and system time the processes have used, together."""
    total = 0
    for pid in pids:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
        # The name, in parentheses, may hold spaces; utime and stime are fields 14 and 15.
        fields = stat.rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_SECOND


def wait_quiet(pids: list[int]) -> float:
    """Return when the servers have done what the last load left them, a topic's removal above all,
    or after a while whatever they do; with the seconds that took."""
    began = time.monotonic()
    while time.monotonic() - began < QUIET_SECONDS_MAX:
        before = cpu_seconds(pids)
        time.sleep(QUIET_STEP_SECONDS)
        if cpu_seconds(pids) - before < QUIET_CORES_MAX * QUIET_STEP_SECONDS:
            break
    return time.monotonic() - began


def rss_mb(pids: list[int]) -> float:
    """Resident memory of the largest of the processes."""
    pages = (Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1] for pid in pids)
    return max(int(count) for count in pages) * PAGE_BYTES / 1e6


def io_bytes(pid: int, field: str) -> int:
    """`read_bytes` or `write_bytes` of a process: what it caused to be read from a disk, or made
    dirty in the page cache, whole pages; a page that is synced and written again counts twice."""
    for line in Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(": ")
        if name == field:
            return int(value)
    raise KeyError(field)
