"""Access to the catalog of an Iceberg table, and handling of catalogs that do not answer.

If the response to a commit is lost (the connection broke, a proxy returns 504) it is unknown if the
commit is made, or will be. Such failures are UNCLEAR, and the caller checks the table. PyIceberg
names only some of them: others are exceptions of the HTTP client or of the JSON parser.

A refusal is ambiguous too: if a proxy has sent a commit twice, the second one is refused because of
the first. PyIceberg removes the manifests of a refused commit, which would make a table that names
them unreadable. An `Attempt` keeps them until the table has been checked.

PyIceberg's REST client waits forever for a server that accepts a connection and stays silent; here
it times out after TIMEOUTS_SECONDS. It is configured to load all snapshots: of a table loaded
without unnamed snapshots, `vacuum` would remove files that they need. Scans are planned here from
the manifests, even if a server offers to do it: its plan leaves out rows deleted by keys that a
batch does not have, and a commit reads and writes manifests anyway.

Does not depend on Spark, Kafka, or how commits are made.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import (
    SCAN_PLANNING_MODE,
    SNAPSHOT_LOADING_MODE,
    RestCatalog,
    ScanPlanningMode,
)
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    NoSuchTableError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import RemoveSnapshotsUpdate
from requests import RequestException
from sqlalchemy.exc import SQLAlchemyError

from vdl.pipeline.catalog_settings import secrets_of
from vdl.pipeline.errors import PipelineError

Answer = TypeVar("Answer")

UNCLEAR = (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    RequestException,
    SQLAlchemyError,
    ValidationError,
)
"""Failures after which the request may have been done, or may be done later.

The last one: a response that violates the protocol, as from a proxy.
"""
WAITS_SECONDS = (0.2, 1.0, 3.0, 8.0, 15.0)
"""Delays before retries of a catalog that does not answer: it may be starting."""
TIMEOUTS_SECONDS = (20, 120)
"""Timeouts to connect, and between two bytes of a response."""
HIDDEN = "***"
_CATALOG_TABLES = 2
"""Number of tables of a database catalog, which another process may be creating."""


def catalog_of(settings: Mapping[str, str]) -> Catalog:
    """Return the catalog for PyIceberg's settings, with the secrets. Raises PipelineError."""
    found = dict(settings)
    name = found.pop("name", "default")
    try:
        return _loaded(name, found)
    except Exception as error:
        text = f"sink.catalog: {text_of(error, settings)}"
        if shown(error, settings) is None:
            raise PipelineError(text) from None
        raise PipelineError(text) from error


def _loaded(name: str, settings: Mapping[str, str]) -> Catalog:
    """Load a catalog; retry if another process creates its database tables meanwhile.

    A database catalog creates its tables if there are none, and fails if they appear at the same
    moment.
    """
    for _ in range(_CATALOG_TABLES):
        try:
            return load_catalog(name, **settings)
        except SQLAlchemyError as error:
            if "already exists" not in str(error):
                raise
    return load_catalog(name, **settings)


class BoundedRestCatalog(RestCatalog):
    """REST catalog with timeouts, which loads all snapshots and plans scans by itself.

    Whatever the server prefers.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # A server's settings override those given to PyIceberg, so these are set afterwards.
        self.properties[SNAPSHOT_LOADING_MODE] = "all"
        self.properties[SCAN_PLANNING_MODE] = ScanPlanningMode.CLIENT.value

    def _config_headers(self, session: Any) -> None:
        # Called for each new session before it is used, also for a token.
        session.request = functools.partial(session.request, timeout=TIMEOUTS_SECONDS)
        super()._config_headers(session)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        return super().commit_table(table, requirements, tuple(_one_by_one(updates)))

    @staticmethod
    def _delete_old_metadata(io: Any, base: Any, metadata: Any) -> None:
        # Most servers have removed it already, and PyIceberg would warn at every commit.
        RestCatalog._delete_old_metadata(_Removing(io), base, metadata)


def _one_by_one(updates: Iterable[Any]) -> Iterator[Any]:
    """Yield one update for each removed snapshot, as servers built on Iceberg 1.7 require."""
    for update in updates:
        if isinstance(update, RemoveSnapshotsUpdate):
            for one in sorted(update.snapshot_ids):
                yield RemoveSnapshotsUpdate(snapshot_ids=[one])
        else:
            yield update


class _Removing:
    """FileIO restricted to the removal of files, including missing ones."""

    def __init__(self, io: Any) -> None:
        self._io = io

    def delete(self, location: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._io.delete(location)


# PyIceberg looks here for the class of a catalog of this type, however it was selected.
AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, settings: BoundedRestCatalog(name, **settings)


def text_of(error: Exception, settings: Mapping[str, str]) -> str:
    """Return an error's text without the catalog's secrets, which a server may have quoted."""
    text = str(error)
    for secret in secrets_of(settings):
        text = text.replace(secret, HIDDEN)
    return text


@contextlib.contextmanager
def in_words(path: str, settings: Mapping[str, str]) -> Iterator[None]:
    """Convert failures of catalogs and files to PipelineError."""
    try:
        yield
    except (OSError, RESTError, NoSuchTableError, *UNCLEAR) as error:
        raise PipelineError(f"{path}: {text_of(error, settings)}") from shown(error, settings)


def shown(error: Exception, settings: Mapping[str, str]) -> Exception | None:
    """Return the error if a traceback may show it because it has no secrets, else None."""
    return error if text_of(error, settings) == str(error) else None


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Return a catalog's response, with retries; raise the last failure.

    Only for idempotent requests.
    """
    for seconds in WAITS_SECONDS:
        try:
            return ask()
        except UNCLEAR:
            time.sleep(seconds)
    return ask()


class Attempt:
    """Transaction that adds snapshots, and is committed once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        producers: list[Any] = list(transaction._snapshot_producers)
        self._ids = [one.snapshot_id for one in producers]
        self._cleaners = [one._clean_all_uncommitted for one in producers]
        for one in producers:
            one._clean_all_uncommitted = _nothing

    def commit(self) -> None:
        """Commit without removing files on failure. Raises CommitFailedException, and UNCLEAR."""
        self._transaction.commit_transaction()

    def is_in(self, table: Table) -> bool:
        """Return True if the table, as last seen, has the attempt's snapshots."""
        return all(table.metadata.snapshot_by_id(one) is not None for one in self._ids)

    def clean(self) -> None:
        """Remove the manifests of a commit that was refused and is not in the table."""
        for clean in self._cleaners:
            clean()


def _nothing() -> None:
    """Replace PyIceberg's removal of the files of a refused commit."""
