"""Which catalog an Iceberg table is in, as PyIceberg is told: `type`, `uri`, `warehouse` and more.

A catalog is what makes a commit one step: it says which metadata file is the table's. Without any
settings it is a file of SQLite beside the table's folder, which is enough for one machine. A secret
never stands in a job file: it is `env:NAME` or `file:PATH`, and so is a `uri` that has a password.

Must not know: PyIceberg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from vdl.pipeline.client_secrets import PLACE, looked_up

SECRET = re.compile(
    r"(?i)password|secret|token|credential|authorization|access-key|account-key|sas"
)
WITH_PASSWORD = re.compile(r"[A-Za-z0-9+.-]+://[^/@]*:[^/@]+@")
NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
"""Of a table: its namespace, which may have parts, and itself."""
LOCAL, NAMESPACE = "vdl", "default"
DEAD_SUFFIX = "_dead"


def local_catalog(path: str) -> dict[str, str]:
    """Of a table in a folder."""
    return {"name": LOCAL, "type": "sql", "uri": f"sqlite:///{Path(path).parent}/catalog.db"}


def name_of(path: str) -> str:
    """A table's, where none is given."""
    return f"{NAMESPACE}.{re.sub('[^A-Za-z0-9_-]', '_', Path(path).name)}"


def problems_of_catalog(settings: Mapping[str, str]) -> list[str]:
    what = "a secret does not stand in a job file; env:NAME or file:PATH do"
    return [
        f"{name}: {what}"
        for name, value in settings.items()
        if not PLACE.match(value) and (SECRET.search(name) or WITH_PASSWORD.match(value))
    ]


def resolved_catalog(settings: Mapping[str, str]) -> dict[str, str]:
    """With the secrets. Raises SecretMissing."""
    return {
        name: looked_up(name, value) if SECRET.search(name) or name == "uri" else value
        for name, value in settings.items()
    }


def secrets_of(settings: Mapping[str, str]) -> list[str]:
    """The secrets in resolved settings, the longest first; of `id:secret` also what is behind the
    colon, and of a URI its password."""
    found = set()
    for name, value in settings.items():
        if SECRET.search(name):
            found |= {value, value.partition(":")[2]}
        elif WITH_PASSWORD.match(value):
            found.add(urlsplit(value).password or "")
    return sorted(found - {""}, key=len, reverse=True)
