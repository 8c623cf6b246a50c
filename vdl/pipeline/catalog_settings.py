"""Catalog of an Iceberg table, in PyIceberg's settings: `type`, `uri`, `warehouse` and more.

A catalog makes a commit atomic: it records which metadata file is the table's current one. Without
settings it is a SQLite file beside the table's folder, which suffices for one machine. A job file
contains no secrets: it refers to them as `env:NAME` or `file:PATH`, also for a `uri` with a
password.

Does not depend on PyIceberg.
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
"""Name of a table: its namespace, which may have parts, and its own name."""
LOCAL, NAMESPACE = "vdl", "default"
DEAD_SUFFIX = "_dead"


def local_catalog(path: str) -> dict[str, str]:
    """Return the catalog settings of a table in a folder."""
    return {"name": LOCAL, "type": "sql", "uri": f"sqlite:///{Path(path).parent}/catalog.db"}


def name_of(path: str) -> str:
    """Return a table's default name."""
    return f"{NAMESPACE}.{re.sub('[^A-Za-z0-9_-]', '_', Path(path).name)}"


def problems_of_catalog(settings: Mapping[str, str]) -> list[str]:
    what = "a job file must not contain secrets; use env:NAME or file:PATH"
    return [
        f"{name}: {what}"
        for name, value in settings.items()
        if not PLACE.match(value) and (SECRET.search(name) or WITH_PASSWORD.match(value))
    ]


def resolved_catalog(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with their secrets. Raises SecretMissing."""
    return {
        name: looked_up(name, value) if SECRET.search(name) or name == "uri" else value
        for name, value in settings.items()
    }


def secrets_of(settings: Mapping[str, str]) -> list[str]:
    """Return the secrets in resolved settings, the longest first.

    Includes the part of `id:secret` after the colon, and the password of a URI.
    """
    found = set()
    for name, value in settings.items():
        if SECRET.search(name):
            found |= {value, value.partition(":")[2]}
        elif WITH_PASSWORD.match(value):
            found.add(urlsplit(value).password or "")
    return sorted(found - {""}, key=len, reverse=True)
