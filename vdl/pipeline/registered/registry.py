"""A schema registry, by Confluent's client: schemas by id, with all schemas that they refer to.

Does not depend on the use of a schema.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vdl.pipeline.registered.errors import RegistryFailed, ValueUnreadable

SETTINGS = {
    "url": "url",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
    "key_password": "ssl.key.password",
}
"""A job's setting → the client's. `user` and `password` are further settings."""
NAMES = (*SETTINGS, "user", "password")
REGISTRIES_MAX = 16
"""Limit on cached registry clients in a process."""
REFERENCES_MAX = 500
"""Limit on schemas that one refers to, directly or indirectly."""
REQUEST_SECONDS = 10
CHECK_SECONDS = 3
NOT_FOUND = 404
UNKNOWN_SECONDS = 10.0
"""Time for which an id counts as unknown: a copy of the registry may learn of it a moment later."""
UNKNOWN_MAX = 1_000
"""Limit on ids remembered as unknown."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. `references`: name → text of all schemas it refers to, dependencies first."""

    kind: str
    text: str
    references: Mapping[str, str]


class Registry:
    """Client of one registry. Its settings are those of NAMES."""

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        is_patient: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        given: dict[str, Any] = {
            SETTINGS[name]: value for name, value in settings.items() if name in SETTINGS
        }
        if "user" in settings:
            password = settings.get("password", "")
            given["basic.auth.user.info"] = f"{settings['user']}:{password}"
        given["timeout"] = REQUEST_SECONDS if is_patient else CHECK_SECONDS
        if not is_patient:
            given["max.retries"] = 0
        self._url = settings["url"]
        self._clock = clock
        self._unknown: dict[int, tuple[float, str]] = {}
        """Id → (time until which it is not asked for again, reason)."""
        self._client = SchemaRegistryClient(given)

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        """Check that it responds and accepts the credentials. Raises RegistryFailed."""
        try:
            self._ask("its subjects", self._client.get_subjects)
        except ValueUnreadable:
            return  # it has no such list, but it responds
        except RegistryFailed as error:
            if getattr(error.__cause__, "http_status_code", 0) != NOT_FOUND:
                raise

    def schema(self, schema_id: int) -> Schema:
        """Return a schema. Raises ValueUnreadable if the id is unknown, RegistryFailed."""
        until, reason = self._unknown.pop(schema_id, (0.0, ""))
        if reason and self._clock() < until:
            self._unknown[schema_id] = (until, reason)
            raise ValueUnreadable(reason)
        references: dict[str, str] = {}
        try:
            found = self._ask(f"schema {schema_id}", self._client.get_schema, schema_id)
            self._follow(found, references, {})
        except ValueUnreadable as error:
            if len(self._unknown) >= UNKNOWN_MAX:
                self._unknown.pop(next(iter(self._unknown)))
            self._unknown[schema_id] = (self._clock() + UNKNOWN_SECONDS, str(error))
            raise
        return Schema(found.schema_type or "AVRO", found.schema_str or "", references)

    def _follow(self, schema: Any, found: dict[str, str], on_the_way: dict[str, None]) -> None:
        for reference in schema.references or ():
            name = reference.name
            if name in found or name in on_the_way:
                continue
            if len(found) + len(on_the_way) >= REFERENCES_MAX:
                raise ValueUnreadable(
                    f"the schema refers to more than {REFERENCES_MAX} other schemas"
                )
            what = f"version {reference.version} of {reference.subject}"
            version = self._ask(
                what, self._client.get_version, reference.subject, reference.version
            )
            on_the_way[name] = None
            self._follow(version.schema, found, on_the_way)
            del on_the_way[name]
            found[name] = version.schema.schema_str or ""

    def _ask(self, what: str, question: Any, *arguments: Any) -> Any:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return question(*arguments)
        except SchemaRegistryError as error:
            # A proxy, or a wrong path, also answers 404: that says nothing about a schema.
            is_told = isinstance(error.error_code, int) and error.error_code != error.UNKNOWN
            if error.http_status_code == NOT_FOUND and is_told:
                raise ValueUnreadable(f"{what} is not known to the registry") from None
            raise RegistryFailed(f"the registry at {self._url}: {what}: {error}") from error
        except Exception as error:
            # Internal errors of the client's HTTP library, and responses that are not JSON.
            told = str(error) or type(error).__name__
            raise RegistryFailed(f"the registry at {self._url}: {what}: {told}") from error


@lru_cache(REGISTRIES_MAX)
def shared_registry(settings: tuple[tuple[str, str], ...]) -> Registry:
    """Return this process's client for sorted settings."""
    return Registry(dict(settings))
