"""The servers of a test cluster, and what can be done to them; see `command_loop.py`."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from vdl.testing.errors import ClusterError
from vdl.testing.node import HOST, Node
from vdl.testing.views import Views

NODES_MAX = 9
PARTITIONS_MAX = 1_000
MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
MEMORY_BYTES_MIN = 1 << 30

DEFAULTS: Mapping[str, object] = {
    "admin.listen": "off",
    "http.listen": "off",
    "kafka.group.initial.rebalance.delay.ms": 0,
    "kafka.group.min.session.timeout.ms": 100,
    "kafka.group.consumer.heartbeat.interval.ms": 500,
    "kafka.group.consumer.session.timeout.ms": 5_000,
    "clock.hold": "5s",
    "raft.replace_after": "1s",
    "retention.check_interval": "200ms",
    "compaction.check_interval": "500ms",
    "storage.cache_bytes": "16MiB",
    "storage.checkpoint_bytes": "4MiB",
    "storage.journal_file_bytes": "4MiB",
    "storage.journal_first_file_bytes": "2MiB",
    "cluster.coordinators": 3,
}
"""Settings of a test cluster where they differ from a server's: small files, no ports that tests do
not use, and short intervals of what tests wait for."""


class Supervisor:
    """The servers of one cluster."""

    def __init__(
        self, nodes: int, settings: Mapping[str, object], directory: Path | None = None
    ) -> None:
        """Prepare a cluster. `directory`: an existing folder below which everything is kept; None
        for memory, if there is enough. Raises ClusterError, ConfigError."""
        if not 1 <= nodes <= NODES_MAX:
            raise ClusterError(f"a cluster has 1 to {NODES_MAX} servers, not {nodes}")
        self.folder = Path(tempfile.mkdtemp(prefix="vdl-test-", dir=directory or _folder()))
        self._views = Views(HOST)
        self._topics = 0
        self.is_disturbed = False
        """True if a command that may be a fault was given since the servers were whole."""
        self._prefix = f"t-{secrets.token_hex(3)}"
        self.nodes = [Node(number, self.folder / str(number)) for number in range(1, nodes + 1)]
        try:
            for node in self.nodes:
                node.configure(self.nodes, {**DEFAULTS, **settings})
        except BaseException:
            self.close()
            raise

    @property
    def bootstrap(self) -> str:
        """Addresses of all servers, for `bootstrap.servers`."""
        return ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def close(self) -> None:
        """End all servers and remove everything."""
        for node in self.nodes:
            node.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- commands ---------------------------------------------------------------------------------
    def start(self, *words: str) -> None:
        """Start servers; without a number, all that do not run."""
        chosen = self._chosen(words) or [node for node in self.nodes if not node.is_running()]
        for node in chosen:
            node.start()

    def wait(self) -> None:
        """Wait until all running servers serve, and every group has a coordinator."""
        self._views.wait_ready(self._ports(), len(self.nodes))

    def kill(self, *words: str) -> None:
        """Kill servers: SIGKILL; without a number, all that run."""
        chosen = self._chosen(words) or self._running()
        for node in chosen:
            node.signal(signal.SIGKILL)
        for node in chosen:
            node.wait_ended()

    def stop(self, *words: str) -> None:
        """Stop servers as an operator does: SIGTERM, which hands leaderships over."""
        chosen = self._chosen(words) or self._running()
        for node in chosen:
            node.signal(signal.SIGTERM)
        for node in chosen:
            node.wait_ended()

    def pause(self, *words: str) -> None:
        """Pause servers: SIGSTOP."""
        for node in self._chosen(words):
            node.pause()

    def resume(self, *words: str) -> None:
        """Resume paused servers; without a number, all."""
        for node in self._chosen(words) or self.nodes:
            if node.is_paused:
                node.resume()

    def partition(self, first: str, second: str, ways: str = "both") -> None:
        """Cut the link between two servers; `one-way`: only from the first to the second."""
        if ways not in {"both", "one-way"}:
            raise ClusterError(f"a link is cut both or one-way, not {ways}")
        sender, receiver = self._node(first), self._node(second)
        if sender is receiver:
            raise ClusterError("a server has no link to itself")
        is_whole = ways == "both"
        _, receives = sender.faults.cut.get(receiver.id, (False, False))
        sender.faults.cut[receiver.id] = True, receives or is_whole
        sends, _ = receiver.faults.cut.get(sender.id, (False, False))
        receiver.faults.cut[sender.id] = sends or is_whole, True
        self._apply(sender, receiver)

    def isolate(self, server: str) -> None:
        """Cut the links between a server and all others."""
        alone = self._node(server)
        for node in self.nodes:
            if node is not alone:
                self.partition(server, str(node.id))

    def heal(self) -> None:
        """Heal all links."""
        for node in self.nodes:
            node.faults.cut = dict.fromkeys(node.faults.cut, (False, False))
        self._apply(*self.nodes)

    def slow_disk(self, server: str, seconds: str) -> None:
        """Add seconds to each sync of a server's disk; 0 ends it."""
        delay = _number(seconds)
        if not 0 <= delay <= 60:
            raise ClusterError("a sync is delayed by 0 to 60 seconds")
        self._node(server).faults.delay_seconds = delay
        self._apply(self._node(server))

    def lose_disk(self, *words: str) -> None:
        """Kill servers and empty their data directories."""
        chosen = self._chosen(words)
        self._kill(chosen)
        for node in chosen:
            node.lose_disk()

    def advance_time(self, seconds: str, *words: str) -> None:
        """Set the time of day of servers forward, or back; without a number, of all."""
        chosen = self._chosen(words) or self.nodes
        for node in chosen:
            node.faults.ahead_ms += round(_number(seconds) * 1_000)
        self._apply(*chosen)

    def power_cut(self, *words: str) -> dict[str, object]:
        """Kill servers and take back what they had not synced; without a number, all."""
        chosen = self._chosen(words) or self.nodes
        self._kill(chosen)
        return {"lost": {str(node.id): node.take_back() for node in chosen}}

    def restore(self) -> None:
        """End all faults but set clocks, start all servers, and wait until they serve. It is free
        if no command has changed anything since the last time."""
        if not self.is_disturbed and len(self._running()) == len(self.nodes):
            return
        for node in self.nodes:
            node.faults.cut = dict.fromkeys(node.faults.cut, (False, False))
            node.faults.delay_seconds = 0.0
        self._apply(*self.nodes)
        self.resume()
        self.start()
        self.wait()
        self.is_disturbed = False

    def topic(self, *words: str) -> dict[str, object]:
        """Create a topic with a name of its own: `topic [PARTITIONS] [NAME=VALUE…]`."""
        return {"topic": self._create(1, words)[0]}

    def topics(self, count: str, *words: str) -> dict[str, object]:
        """Create several at once: `topics COUNT [PARTITIONS] [NAME=VALUE…]`."""
        return {"topics": self._create(int(_number(count)), words)}

    def _create(self, count: int, words: tuple[str, ...]) -> list[str]:
        numbers = [word for word in words if "=" not in word]
        partitions = int(_number(numbers[0])) if numbers else 1
        if len(numbers) > 1 or not 1 <= partitions <= PARTITIONS_MAX:
            raise ClusterError(f"a topic has 1 to {PARTITIONS_MAX} partitions")
        if not 1 <= count * partitions <= PARTITIONS_MAX:
            raise ClusterError(f"topics are made with 1 to {PARTITIONS_MAX} partitions in all")
        pairs = [word.partition("=") for word in words if "=" in word]
        configs = {key: value for key, _, value in pairs}
        names = [f"{self._prefix}-{self._topics + number}" for number in range(1, count + 1)]
        self._topics += count
        self._views.create_topics(self._sound_ports(), names, partitions, configs)
        return names

    def grow_topic(self, name: str, partitions: str) -> None:
        """Add partitions to a topic, up to this number."""
        self._views.grow_topic(self._sound_ports(), name, int(_number(partitions)))

    def delete_topics(self, *names: str) -> None:
        """Delete topics."""
        if names:
            self._views.delete_topics(self._ports(), list(names))

    def leader(self, topic: str, partition: str) -> dict[str, object]:
        """Find the leader of a partition; 0 if there is none."""
        return {"leader": self._views.leader(self._ports(), topic, int(_number(partition)))}

    def status(self) -> dict[str, object]:
        """Describe the servers."""
        return {"servers": self.servers()}

    # --- about the servers ------------------------------------------------------------------------
    def servers(self) -> list[dict[str, object]]:
        """Return id, port, process id (0: none), pause and other faults of each server."""
        return [
            {
                "id": node.id,
                "port": node.port,
                "pid": node.pid if node.is_running() else 0,
                "paused": node.is_paused,
                "cut": [one for one, ways in sorted(node.faults.cut.items()) if any(ways)],
                "sync_delay_seconds": node.faults.delay_seconds,
                "ahead_seconds": node.faults.ahead_ms / 1_000,
            }
            for node in self.nodes
        ]

    def _node(self, word: str) -> Node:
        for node in self.nodes:
            if word == str(node.id):
                return node
        raise ClusterError(f"there is no server {word}")

    def _chosen(self, words: tuple[str, ...]) -> list[Node]:
        return [self._node(word) for word in dict.fromkeys(words)]

    def _kill(self, nodes: list[Node]) -> None:
        running = [node for node in nodes if node.is_running()]
        for node in running:
            node.signal(signal.SIGKILL)
        for node in running:
            node.wait_ended()

    def _running(self) -> list[Node]:
        return [node for node in self.nodes if node.is_running()]

    def _ports(self) -> list[int]:
        """Return the ports of the servers that can answer."""
        return [node.port for node in self._running() if not node.is_paused]

    def _sound_ports(self) -> list[int]:
        """Return the ports of the servers that no fault keeps from learning of a change; of all
        that can answer, if there are none."""
        sound = [
            node.port
            for node in self._running()
            if not (node.is_paused or any(map(any, node.faults.cut.values())))
        ]
        return sound or self._ports()

    def _apply(self, *nodes: Node) -> None:
        for node in nodes:
            node.apply_faults()


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        raise ClusterError(f"{text} is no number") from None
    if not -1e12 < found < 1e12:
        raise ClusterError(f"{text} is out of range")
    return found


def _folder() -> Path:
    """Return where files lie: in memory, if there is room."""
    try:
        found = os.statvfs(MEMORY_FOLDER)
    except OSError:
        return Path(tempfile.gettempdir())
    has_room = found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN
    if has_room and os.access(MEMORY_FOLDER, os.W_OK):
        return MEMORY_FOLDER
    return Path(tempfile.gettempdir())
