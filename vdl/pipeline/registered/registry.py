"""A schema registry, by Confluent's client: schemas by id, with all schemas that they refer to.

Does not depend on the use of a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. `references`: name → text of all schemas it refers to, dependencies first."""

    kind: str
    text: str
    references: Mapping[str, str]


class Registry:
    """Client of one registry. Its settings are those of NAMES."""

    def __init__(self, settings: Mapping[str, str], *, is_patient: bool = True) -> None:
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
        self._client = SchemaRegistryClient(given)

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        """Check that it responds and accepts the credentials. Raises RegistryFailed."""
        try:
            self._ask("its subjects", self._client.get_subjects)
        except ValueUnreadable:
            return  # it has no such list, but it responds

    def schema(self, schema_id: int) -> Schema:
        """Return a schema. Raises ValueUnreadable if the id is unknown, RegistryFailed."""
        found = self._ask(f"schema {schema_id}", self._client.get_schema, schema_id)
        references: dict[str, str] = {}
        self._follow(found, references, {})
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
            if error.http_status_code == NOT_FOUND:
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
