"""Debezium's MariaDB connector on Kafka Connect, with the settings of `examples/pipeline/debezium`.

Only addresses and names differ from the example.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from tests.ecosystem.connect import ONCE_SETTINGS, Worker, worker_command
from tests.ecosystem.mariadb_server import DATABASE, PASSWORD, MariaDbServer
from tests.ecosystem.programs import ROOT, Program, free_port, libraries
from tests.ecosystem.records import Topics

EXAMPLE = ROOT / "examples" / "pipeline" / "debezium"
JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


class Debezium:
    """Worker and its connectors. A killed one is restarted with `start`. Use in a `with`."""

    def __init__(self, server: MariaDbServer, topics: Topics, folder: Path, *, name: str) -> None:
        self._server = server
        self._topics = topics
        self._folder = folder
        self._name = name
        self._connectors: list[str] = []
        self._starts = 0
        plugins = folder / "plugins"
        plugins.mkdir()
        (plugins / "debezium").symlink_to(libraries("debezium"))
        self.start()

    def __enter__(self) -> Debezium:
        return self

    def __exit__(self, *exc: object) -> None:
        self.program.stop()

    def start(self) -> None:
        """Start a worker with only the topics as its state, and wait for its connectors."""
        port = free_port()
        settings = self._folder / "worker.properties"
        settings.write_text(
            f"""{(EXAMPLE / "worker.properties").read_text()}
bootstrap.servers={self._topics.bootstrap}
listeners=http://127.0.0.1:{port}
plugin.path={self._folder / "plugins"}
group.id={self._name}-workers
config.storage.topic={self._name}-configs
offset.storage.topic={self._name}-offsets
status.storage.topic={self._name}-status
config.storage.replication.factor={self._topics.replication}
offset.storage.replication.factor={self._topics.replication}
status.storage.replication.factor={self._topics.replication}
{ONCE_SETTINGS}"""
        )
        self._starts += 1
        log = self._folder / f"worker.{self._starts}.log"
        environment = {"SHOP_PASSWORD": PASSWORD}
        self.program = Program(worker_command(settings), log, environment=environment)
        self._worker = Worker(port)
        self.program.wait_for("the worker is up", self._worker.is_up)
        for connector in self._connectors:
            self._wait_for(connector)

    def kill(self) -> None:
        self.program.kill()

    def capture(self, prefix: str, *, with_schemas: bool) -> str:
        """Start a connector of the table `items`; return the topic of its changes."""
        settings = json.loads((EXAMPLE / "items.json").read_text())
        replication = str(self._topics.replication)
        given = settings | {
            "database.port": str(self._server.port),
            "database.server.id": str(4711 + len(self._connectors)),
            "topic.prefix": prefix,
            "topic.creation.default.replication.factor": replication,
            "schema.history.internal.kafka.topic": f"{prefix}-history",
            "schema.history.internal.kafka.bootstrap.servers": self._topics.bootstrap,
        }
        for part in ("key", "value"):
            given[f"{part}.converter"] = JSON_CONVERTER
            given[f"{part}.converter.schemas.enable"] = str(with_schemas).lower()
        assert self._worker.ask("PUT", f"/connectors/{prefix}/config", given), self.program.tail()
        self._connectors.append(prefix)
        self._wait_for(prefix)
        return f"{prefix}.{DATABASE}.items"

    def _wait_for(self, connector: str) -> None:
        self.program.wait_for(f"{connector} runs", partial(self._worker.runs, connector))
