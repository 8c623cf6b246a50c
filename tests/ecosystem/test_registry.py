"""A schema registry (Apicurio) that keeps all it knows in topics."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.programs import CACHE, JVM_FLAGS, Program, fetch, free_port
from tests.ecosystem.records import Topics

VERSION = "3.0.9"
"""The newest that runs on Java 17."""
ARCHIVE = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
HTTP_SECONDS_MAX = 60
JOURNAL = "kafkasql-journal"


class Registry:
    """Its interface as Confluent's clients use it."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def ask(self, path: str, body: object = None) -> Any:
        """The answer, or None: nobody answers yet, or what is asked for is not there."""
        request = urllib.request.Request(
            self._address + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_SECONDS_MAX) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError):
            return None

    def is_up(self) -> bool:
        return self.ask("/subjects") is not None

    def has(self, schemas: dict[str, list[str]]) -> bool:
        """Whether it knows these subjects, with as many versions each, and no others."""
        return sorted(self.ask("/subjects")) == sorted(schemas) and all(
            len(self.ask(f"/subjects/{subject}/versions") or ()) == len(versions)
            for subject, versions in schemas.items()
        )


def test_registry_knows_its_schemas_after_a_restart(topics: Topics, log: Path) -> None:
    """Schemas are registered in versions; a registry that starts with nothing but the topics
    answers as the one before."""
    schemas = {
        f"subject-{number}": [_schema(number, fields) for fields in range(1, 4)]
        for number in range(10)
    }
    ids: dict[str, list[int]] = {}
    for part in range(2):
        port = free_port()
        registry = Registry(port)
        log.unlink(missing_ok=True)
        with _program(topics, port, log) as program:
            program.wait_for("the registry is up", registry.is_up)
            if part == 0:
                for subject, versions in schemas.items():
                    ids[subject] = [
                        registry.ask(f"/subjects/{subject}/versions", {"schema": schema})["id"]
                        for schema in versions
                    ]
            # It serves while it still reads the topic.
            program.wait_for("all is known", partial(registry.has, schemas))
            for subject, versions in schemas.items():
                for number, schema in enumerate(versions, 1):
                    found = registry.ask(f"/subjects/{subject}/versions/{number}")
                    assert found["id"] == ids[subject][number - 1]
                    assert json.loads(found["schema"]) == json.loads(schema)
    assert topics.read(JOURNAL)


def _schema(number: int, fields: int) -> str:
    """An Avro record; each version has one optional field more."""
    return json.dumps(
        {
            "type": "record",
            "name": f"Record{number}",
            "fields": [
                {"name": f"field{field}", "type": ["null", "string"], "default": None}
                for field in range(fields)
            ],
        }
    )


def _program(topics: Topics, port: int, log: Path) -> Program:
    folder = _installed()
    return Program(
        ["java", *JVM_FLAGS, "-jar", str(folder / f"apicurio-registry-app-{VERSION}-runner.jar")],
        log,
        directory=folder,
        environment={
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_ENABLED": "false",
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": topics.bootstrap,
        },
    )


def _installed() -> Path:
    """The program, fetched once."""
    folder = CACHE / f"apicurio-{VERSION}"
    if not folder.exists():
        archive = fetch(ARCHIVE)
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        unpacked = subprocess.run(["tar", "xzf", archive, "-C", partial], check=False)
        archive.unlink()
        if unpacked.returncode:
            pytest.fail("the archive cannot be unpacked")
        partial.rename(folder)
    return folder
