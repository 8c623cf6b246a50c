"""Apicurio, a schema registry, and its Confluent-compatible interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.programs import CACHE, JVM_FLAGS, Program, fetch

VERSION = "3.0.9"
"""Newest version that runs on Java 17."""
ARCHIVE = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
HTTP_SECONDS_MAX = 60


class Registry:
    """The interface that Confluent's clients use."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"

    def ask(self, path: str, body: object = None) -> Any:
        """Return the answer, or None if there is none yet, or the resource does not exist."""
        request = urllib.request.Request(
            self.url + path,
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
        """Return True if it has exactly these subjects, with the same numbers of versions."""
        return sorted(self.ask("/subjects")) == sorted(schemas) and all(
            len(self.ask(f"/subjects/{subject}/versions") or ()) == len(versions)
            for subject, versions in schemas.items()
        )


def program(port: int, log: Path, *, bootstrap: str = "") -> Program:
    """Return a registry that stores its contents in topics, or, without `bootstrap`, in memory."""
    folder = installed()
    storage = {
        "APICURIO_STORAGE_KIND": "kafkasql",
        "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
    }
    return Program(
        ["java", *JVM_FLAGS, "-jar", str(folder / f"apicurio-registry-app-{VERSION}-runner.jar")],
        log,
        directory=folder,
        environment={
            "QUARKUS_HTTP_PORT": str(port),
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_ENABLED": "false",
            **(storage if bootstrap else {}),
        },
    )


def installed() -> Path:
    """Return the program's folder, fetched once."""
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
