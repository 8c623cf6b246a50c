"""Three Kafka servers on loopback: the reference for comparisons of answers.

Jars come from Maven Central once, into `.cache`; they are listed in the peer's `pom.xml` in the
folder that KAFKA_PEER names. KAFKA_LIB names a folder that holds the jars already. Ports are chosen
as for VDL's servers. Each JVM has a small heap, because the load is small.

Does not depend on the requests.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.harness.replica_set import ROOT, free_base_port

PEER = Path(os.environ.get("KAFKA_PEER") or ROOT.parent / "shared" / "peers" / "kafka")
VERSION = "4.3.1"
LIBRARIES = Path(os.environ.get("KAFKA_LIB") or ROOT / ".cache" / f"kafka-{VERSION}-libraries")
JAR_SECONDS_MAX = 600
UP_SECONDS_MAX = 180.0
POLL_SECONDS = 0.1
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
CONTROLLER_STEP = 10
"""Offset from a server's port for clients to its controller's."""
LOGIN_STEP = 20
"""Offset to its port for authenticated clients."""
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

JVM = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOGS = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"

SETTINGS: Mapping[str, object] = {
    "default.replication.factor": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 3,
    "share.coordinator.state.topic.replication.factor": 3,
    "share.coordinator.state.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
}


def why_not() -> str:
    """Return the reason why Kafka cannot be started here; empty if it can."""
    missing = [command for command in ("java", "mvn") if shutil.which(command) is None]
    if missing:
        return f"needs {' and '.join(missing)}"
    if not LIBRARIES.is_dir() and not (PEER / "pom.xml").is_file():
        return f"there is neither {LIBRARIES} nor {PEER}/pom.xml (KAFKA_LIB, KAFKA_PEER)"
    return ""


def libraries() -> Path:
    """Return the folder with Kafka's jars and tools, filled once.

    Raises CalledProcessError offline.
    """
    if not LIBRARIES.is_dir():
        LIBRARIES.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=LIBRARIES.parent) as name:
            shutil.copy(PEER / "pom.xml", name)
            command = ["mvn", "-q", "-B", "-f", f"{name}/pom.xml"]
            command += ["dependency:copy-dependencies", f"-DoutputDirectory={name}/lib"]
            subprocess.run(command, check=True, timeout=JAR_SECONDS_MAX, stdout=subprocess.DEVNULL)
            (Path(name) / "lib").rename(LIBRARIES)
    return LIBRARIES


class KafkaCluster:
    """Servers 1 to 3, each a broker and a controller.

    Created stopped; `up` starts it on no data.
    """

    nodes = range(1, 4)

    def __init__(
        self,
        settings: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        is_encrypted: bool = False,
        jvm: Sequence[str] = JVM,
    ) -> None:
        """Create the cluster.

        `users`: passwords of the users, where clients have to log in. `is_encrypted`, with users:
        encrypts connections of clients and between servers; `settings` name the certificate
        (`ssl.*`).
        """
        self._settings = {**SETTINGS, **(settings or {})}
        self._users = users or {}
        self._is_encrypted = is_encrypted
        self._jvm = (*jvm, _LOGS)
        self._directory = Path(tempfile.mkdtemp(prefix="kafka-test-"))
        self._base_port = free_base_port(len(self.nodes), random.Random())
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        step = LOGIN_STEP if self._users else 0
        return ",".join(f"127.0.0.1:{self._port(node) + step}" for node in self.nodes)

    def _port(self, node: int) -> int:
        return self._base_port + node - 1

    def up(self) -> None:
        """Start the cluster; return when all three accept connections."""
        jars = libraries()
        for node in self.nodes:
            self._properties_file(node).write_text(self._properties(node), encoding="ascii")
        self._format(jars)
        for node in self.nodes:
            self._start(node, jars)
        deadline = time.monotonic() + UP_SECONDS_MAX
        for node in self.nodes:
            self._wait(node, deadline)

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def close(self) -> None:
        """End the processes and remove the data."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def log(self, node: int) -> str:
        """Return a server's output."""
        path = self._directory / f"{node}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _properties_file(self, node: int) -> Path:
        return self._directory / f"{node}.properties"

    def _data(self, node: int) -> Path:
        return self._directory / f"data-{node}"

    def _properties(self, node: int) -> str:
        port = self._port(node)
        voters = ",".join(
            f"{other}@127.0.0.1:{self._port(other) + CONTROLLER_STEP}" for other in self.nodes
        )
        listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + CONTROLLER_STEP}"
        rows: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": node,
            "controller.quorum.voters": voters,
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._data(node),
            **self._settings,
        }
        if self._users:
            login = f"SASL_PLAINTEXT://127.0.0.1:{port + LOGIN_STEP}"
            known = " ".join(f'user_{name}="{word}"' for name, word in self._users.items())
            rows["listeners"] = f"{listeners},{login}"
            rows["advertised.listeners"] = f"{rows['advertised.listeners']},{login}"
            rows["listener.security.protocol.map"] = (
                "PLAINTEXT:SSL,CONTROLLER:SSL,SASL_PLAINTEXT:SASL_SSL"
                if self._is_encrypted
                else "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
            )
            rows["inter.broker.listener.name"] = "PLAINTEXT"
            rows["sasl.enabled.mechanisms"] = "PLAIN"
            module = f"{_PLAIN} required {known};"
            rows["listener.name.sasl_plaintext.plain.sasl.jaas.config"] = module
        return "".join(f"{name}={value}\n" for name, value in rows.items())

    def _format(self, jars: Path) -> None:
        """Format the three data directories in parallel, as a JVM starts slowly."""
        tool = ["java", *self._jvm, "-cp", f"{jars}/*", "kafka.tools.StorageTool", "format"]
        formatting = []
        for node in self.nodes:
            command = [*tool, "-t", CLUSTER_ID, "-c", str(self._properties_file(node))]
            log = (self._directory / f"{node}.log").open("ab")
            with log:
                formatting.append(subprocess.Popen(command, stdout=log, stderr=log))
        for node, process in zip(self.nodes, formatting, strict=True):
            if process.wait(UP_SECONDS_MAX) != 0:
                raise RuntimeError(f"server {node} was not formatted: {self.log(node)}")

    def _start(self, node: int, jars: Path) -> None:
        command = ["java", *self._jvm, "-cp", f"{jars}/*", "kafka.Kafka"]
        command.append(str(self._properties_file(node)))
        with (self._directory / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _wait(self, node: int, deadline: float) -> None:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port(node)), timeout=1).close()
            except OSError:
                has_ended = self._processes[node].poll() is not None
                if has_ended or time.monotonic() > deadline:
                    raise RuntimeError(f"Kafka {node} does not serve: {self.log(node)}") from None
                time.sleep(POLL_SECONDS)
            else:
                return
