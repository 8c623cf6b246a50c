"""Spark standalone cluster on this machine: a master and workers, each a process of its own.

Workers have addresses of their own on loopback. Spark takes an address for a machine, and runs a
slow task again only on another one. With the workers of `local-cluster`, which share one address,
it never does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

START_SECONDS_MAX = 240
DEPLOY = "org.apache.spark.deploy"
EXECUTOR = b"CoarseGrainedExecutorBackend"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """Cluster of processes. Use in a `with`.

    `url` is the master's; executors have the environment at the time of creation.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"),
        *,
        cores: int = 1,
        memory: str = "1g",
    ) -> None:
        self._folder = folder
        self._hosts = hosts
        self._worker = ["--cores", str(cores), "--memory", memory]
        self._port, self._ui = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _start(self) -> None:
        master = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._ui)]
        self._launch("Master", "127.0.0.1", master)
        for number, host in enumerate(self._hosts):
            place = ["--host", host, "--webui-port", str(free_port())]
            place += ["--work-dir", str(self._folder / f"work-{number}"), self.url]
            self._launch("Worker", host, [*self._worker, *place])
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._workers() < len(self._hosts):
            assert time.monotonic() < deadline, (self._folder / "Master-0.log").read_text()[-2000:]
            time.sleep(0.5)

    def _launch(self, role: str, host: str, arguments: Sequence[str]) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_HOSTNAME": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self._folder / f"{role}-{len(self._processes)}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [home / "bin" / "spark-class", f"{DEPLOY}.{role.lower()}.{role}", *arguments],
                    env=environment, stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _workers(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            url = f"http://127.0.0.1:{self._ui}/json/"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return len(json.load(answer)["workers"])
        return 0

    def executors(self) -> list[int]:
        """Return the process ids of all drivers' executors."""
        found = []
        for pid in (p for process in self._processes for p in tree(process.pid)):
            with contextlib.suppress(OSError):
                if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def close(self) -> None:
        """Stop it with all executors."""
        for process in reversed(self._processes):
            signal_all(reversed(tree(process.pid)), signal.SIGKILL)
            process.wait()
        self._processes.clear()


def tree(root: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(rest[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def signal_all(pids: Iterator[int] | Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
