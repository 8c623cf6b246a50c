"""A schema registry (Apicurio) that stores everything in topics."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.ecosystem.apicurio import Registry, program
from tests.ecosystem.programs import free_port
from tests.ecosystem.records import Topics

pytestmark = pytest.mark.takes_turns(parts=2)

JOURNAL = "kafkasql-journal"


def test_registry_knows_its_schemas_after_a_restart(topics: Topics, log: Path) -> None:
    """Several versions of schemas are registered.

    A registry that starts with only the topics gives the same answers.
    """
    schemas = {
        f"subject-{number}": [_schema(number, fields) for fields in range(1, 4)]
        for number in range(10)
    }
    ids: dict[str, list[int]] = {}
    for part in range(2):
        port = free_port()
        registry = Registry(port)
        log.unlink(missing_ok=True)
        with program(port, log, bootstrap=topics.bootstrap) as running:
            running.wait_for("the registry is up", registry.is_up)
            if part == 0:
                for subject, versions in schemas.items():
                    ids[subject] = [
                        registry.ask(f"/subjects/{subject}/versions", {"schema": schema})["id"]
                        for schema in versions
                    ]
            # It serves while it still reads the topic.
            running.wait_for("all is known", partial(registry.has, schemas))
            for subject, versions in schemas.items():
                for number, schema in enumerate(versions, 1):
                    found = registry.ask(f"/subjects/{subject}/versions/{number}")
                    assert found["id"] == ids[subject][number - 1]
                    assert json.loads(found["schema"]) == json.loads(schema)
    assert topics.read(JOURNAL)


def _schema(number: int, fields: int) -> str:
    """Return an Avro record; each version has one optional field more."""
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
