"""An Apache Kafka of one node (KRaft), to copy from and to."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.ecosystem.programs import (
    JVM_FLAGS,
    QUIET,
    Program,
    accepts,
    free_port,
    java,
    libraries,
)
from tests.ecosystem.records import Topics

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
FORMAT_SECONDS_MAX = 60


class Kafka:
    """Kafka node, started on creation. Use in a `with`."""

    def __init__(self, directory: Path) -> None:
        jars = f"{libraries('java')}/*"
        port, controller = free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{port}"
        settings = directory / "server.properties"
        settings.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={directory / "data"}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        tool = ["java", *JVM_FLAGS, QUIET, "-cp", jars, "kafka.tools.StorageTool", "format"]
        tool += ["-t", CLUSTER_ID, "-c", str(settings)]
        subprocess.run(tool, check=True, timeout=FORMAT_SECONDS_MAX, capture_output=True)
        self._program = Program(java(jars, "kafka.Kafka", str(settings)), directory / "kafka.log")

    def __enter__(self) -> Kafka:
        self._program.wait_for("Kafka serves", self._serves)
        return self

    def __exit__(self, *exc: object) -> None:
        self._program.stop()

    @property
    def topics(self) -> Topics:
        return Topics(self.bootstrap, replication=1)

    def _serves(self) -> bool:
        return accepts(int(self.bootstrap.rpartition(":")[2]))
