"""`Cluster`: servers for tests, in a process tree of their own, with faults as methods."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import cache_from_source
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vdl.testing.errors import ClusterError

ANSWER_SECONDS_MAX = 120.0
CLOSE_SECONDS_MAX = 10.0


class Cluster:
    """Real servers on loopback, with free ports and data of their own.

    ```
    with Cluster(nodes=3) as cluster:
        topic = cluster.topic(partitions=2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        ...
        cluster.kill(cluster.leader(topic, 0))
    ```
    Servers have the ids 1 to `nodes`. Each method returns when its effect is in force, and raises
    ClusterError if that is not possible. The servers end, and their data is removed, when the
    `with` ends or the process that made the cluster does, by whatever cause.

    Not safe for use by several threads at once.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        settings: Mapping[str, object] | None = None,
        directory: Path | None = None,
    ) -> None:
        """Prepare a cluster; `start_up` or `with` starts it.

        `settings`: keys of docs/configure.md, such as {"kafka.message.max.bytes": 2_000_000}. For
        an address "127.0.0.1:0" each server gets a port of its own; `vdl.toml` has it.
        `directory`: where to make the cluster's folder; None: in memory, if there is a gigabyte.
        """
        self.nodes = nodes
        self._settings = dict(settings or {})
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._maker = os.getpid()
        self._asked = 0
        self._received = b""
        """Read of the supervisor's output, without a line's end."""
        self._about: dict[str, Any] = {}

    # --- its life ---------------------------------------------------------------------------------
    def start_up(self) -> Self:
        """Start all servers; return when they serve."""
        if self._process is not None:
            raise ClusterError("the cluster was started already")
        self._maker = os.getpid()
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [
                sys.executable,
                "-P",  # the working directory is the test's, and may have modules of any name
                "-m",
                "vdl.testing",
                str(self.nodes),
                str(self._directory.absolute()) if self._directory else "",
                json.dumps(self._settings),
                str(self._maker),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=_environment(),
        )
        self._received = b""
        try:
            self._about = self._answer(0)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all servers and remove their data. Does nothing the second time."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        if os.getpid() != self._maker:
            process.stdout.close()
            return  # a forked child: the cluster is its parent's
        # A child that was forked from this process may keep standard input open.
        process.terminate()
        try:
            process.wait(CLOSE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()  # its servers end with it
            process.wait()
        process.stdout.close()
        if self._about:
            self._remove()

    def _remove(self) -> None:
        """Remove the folder if the supervisor was killed and could not."""
        deadline = time.monotonic() + CLOSE_SECONDS_MAX
        while self.directory.exists() and time.monotonic() < deadline:
            # Servers that are just being killed may still write.
            shutil.rmtree(self.directory, ignore_errors=True)
            time.sleep(0.01)

    def __enter__(self) -> Self:
        return self.start_up()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- about it ---------------------------------------------------------------------------------
    @property
    def bootstrap(self) -> str:
        """Addresses of all servers, for `bootstrap.servers`."""
        return str(self._about["bootstrap"])

    @property
    def directory(self) -> Path:
        """Folder with a folder for each server: `vdl.toml`, `server.log`, `store/`."""
        return Path(self._about["directory"])

    @property
    def servers(self) -> range:
        """Ids of the servers."""
        return range(1, self.nodes + 1)

    def pid(self, server: int) -> int:
        """Return the process id of a server, 0 if it does not run."""
        rows = self._ask("status")["servers"]
        return int(rows[server - 1]["pid"])

    def log(self, server: int) -> str:
        """Return the log of a server."""
        file = self.directory / str(server) / "server.log"
        return file.read_text(encoding="utf-8", errors="replace")

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the server that leads a partition; 0 while there is none."""
        return int(self._ask("leader", topic, partition)["leader"])

    # --- topics -----------------------------------------------------------------------------------
    def topic(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic and return its name, which no other topic of this cluster has."""
        return str(self._ask("topic", partitions, *_pairs(configs))["topic"])

    def topics(
        self, count: int, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> list[str]:
        """Create `count` topics by one request and return their names. One by one they take six
        times as long."""
        return list(self._ask("topics", count, partitions, *_pairs(configs))["topics"])

    def grow_topic(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to this number."""
        self._ask("grow_topic", topic, partitions)

    def delete_topics(self, *topics: str) -> None:
        """Delete topics."""
        self._ask("delete_topics", *topics)

    # --- processes --------------------------------------------------------------------------------
    def kill(self, *servers: int) -> None:
        """Kill servers (SIGKILL) at once; without a number, all that run."""
        self._ask("kill", *servers)

    def stop(self, *servers: int) -> None:
        """Stop servers as an operator does (SIGTERM); without a number, all that run."""
        self._ask("stop", *servers)

    def start(self, *servers: int, wait: bool = True) -> None:
        """Start servers; without a number, all that do not run. `wait`: until they serve."""
        self._ask("start", *servers)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until all servers that run serve, and each group has a coordinator. Needs a
        majority of the servers."""
        self._ask("wait")

    def pause(self, *servers: int) -> None:
        """Pause servers (SIGSTOP): they keep their connections and answer nothing."""
        self._ask("pause", *servers)

    def resume(self, *servers: int) -> None:
        """Resume paused servers; without a number, all."""
        self._ask("resume", *servers)

    # --- the network between servers --------------------------------------------------------------
    def partition(self, first: int, second: int, *, one_way: bool = False) -> None:
        """Cut the link between two servers. `one_way`: what the second sends still arrives. Clients
        reach all servers."""
        self._ask("partition", first, second, "one-way" if one_way else "both")

    def isolate(self, server: int) -> None:
        """Cut the links between a server and all others."""
        self._ask("isolate", server)

    def heal(self) -> None:
        """Heal all links. What was sent meanwhile arrives now."""
        self._ask("heal")

    # --- disks and clocks -------------------------------------------------------------------------
    def slow_disk(self, server: int, seconds: float) -> None:
        """Add `seconds` to each sync of a server's disk; 0 ends it."""
        self._ask("slow_disk", server, seconds)

    def lose_disk(self, *servers: int) -> None:
        """Kill servers and empty their data directories. After `start` the others replace what they
        had."""
        self._ask("lose_disk", *servers)

    def power_cut(self, *servers: int) -> dict[int, int]:
        """Kill servers at once, and take back all that they had not synced; without a number, all.

        Return the number of lost changes of files by server.
        """
        lost: dict[str, int] = self._ask("power_cut", *servers)["lost"]
        return {int(server): count for server, count in lost.items()}

    def advance_time(self, seconds: float, *servers: int) -> None:
        """Set the time of day of servers forward; without a number, of all. Records, offsets and
        tokens age by it. Timeouts do not, as they use monotonic time."""
        self._ask("advance_time", seconds, *servers)

    def restore(self) -> None:
        """End all faults but advanced clocks, start all servers, and wait until they serve."""
        self._ask("restore")

    # --- the supervisor ---------------------------------------------------------------------------
    def _ask(self, command: str, *words: object) -> dict[str, Any]:
        process = self._process
        if process is None:
            raise ClusterError("the cluster is not running")
        assert process.stdin is not None
        line = " ".join([command, *map(str, words)])
        if "\n" in line or len(line.split()) != 1 + len(words):
            raise ClusterError(f"{words} have white space")
        self._asked += 1
        line = f"#{self._asked} {line}"
        try:
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
        except OSError as error:
            raise ClusterError(f"the cluster's supervisor is gone: {error}") from error
        return self._answer(self._asked)

    def _answer(self, number: int) -> dict[str, Any]:
        """Return the answer to a request, without those to earlier ones: an exception, such as
        KeyboardInterrupt, may have left them unread. The supervisor's own words have no number."""
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        answer: dict[str, Any] = json.loads(self._line(deadline))
        while answer.get("request", number) != number:
            answer = json.loads(self._line(deadline))
        if not answer.get("ok"):
            raise ClusterError(str(answer.get("error")))
        return answer

    def _line(self, deadline: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        output = process.stdout.fileno()
        while b"\n" not in self._received:
            if not select.select([output], [], [], max(deadline - time.monotonic(), 0.0))[0]:
                raise ClusterError(f"no answer within {ANSWER_SECONDS_MAX:.0f} s")
            data = os.read(output, 64 << 10)
            if not data:
                raise ClusterError(f"the supervisor ended with exit code {process.wait()}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line


def _environment() -> dict[str, str] | None:
    """Return the supervisor's environment; None for that of this process.

    To compile all modules takes longer than everything else at a start. Where compiled ones may not
    be written beside the sources (PYTHONDONTWRITEBYTECODE, often set in images), a folder of VDL's
    own in the user's cache has them.
    """
    is_compiled = Path(cache_from_source(__file__)).exists()
    if is_compiled or "PYTHONDONTWRITEBYTECODE" not in os.environ:
        return None
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home
        return None
    found = {**os.environ, "PYTHONPYCACHEPREFIX": str(caches.absolute() / "vdl" / "bytecode")}
    del found["PYTHONDONTWRITEBYTECODE"]
    return found


def _pairs(configs: Mapping[str, str] | None) -> list[str]:
    return [f"{key}={value}" for key, value in (configs or {}).items()]
