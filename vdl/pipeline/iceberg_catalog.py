"""The catalog of an Iceberg table: how it is asked, and what it means when it does not answer.

Of a commit whose answer is lost (the connection broke, a proxy says 504) nobody knows whether it is
made, or will be. Such failures are UNCLEAR, and who gets one looks at the table. PyIceberg has a
name for some of them only: others come as what the client of HTTP raises, or what reads JSON.

A refusal is not clear either: where a proxy has sent a commit twice, the second one is refused
because of the first. PyIceberg removes the manifests of what was refused, and a table that names
them could not be read any more. An `Attempt` keeps them until somebody has looked.

PyIceberg's client of REST catalogs waits for ever where a server accepts and says nothing; here it
gives up after TIMEOUTS_SECONDS. It is told to load all snapshots: of a table that comes without
those that have no name, `vacuum` would remove what they need.

Must not know: Spark, Kafka, how commits are made.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import SNAPSHOT_LOADING_MODE, RestCatalog
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
"""What was asked for may have been done, or be done later. The last one: an answer that is not what
the protocol says, as of a proxy."""
WAITS_SECONDS = (0.2, 1.0, 3.0, 8.0, 15.0)
"""Before a catalog that does not answer is asked again: it may be starting."""
TIMEOUTS_SECONDS = (20, 120)
"""To connect, and between two bytes of an answer."""
HIDDEN = "***"
_CATALOG_TABLES = 2
"""That a catalog in a database has, and somebody else may be making."""


def catalog_of(settings: Mapping[str, str]) -> Catalog:
    """By PyIceberg's settings, with the secrets. Raises PipelineError."""
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
    """A catalog in a database makes its tables where it finds none, and fails where somebody else
    makes them at the same moment: then they are there."""
    for _ in range(_CATALOG_TABLES):
        try:
            return load_catalog(name, **settings)
        except SQLAlchemyError as error:
            if "already exists" not in str(error):
                raise
    return load_catalog(name, **settings)


class BoundedRestCatalog(RestCatalog):
    """One that does not wait for ever, and loads all snapshots, whatever the server wants."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # A server's settings come first in PyIceberg, so this one comes behind.
        self.properties[SNAPSHOT_LOADING_MODE] = "all"

    def _config_headers(self, session: Any) -> None:
        # Of each new session this is asked before it is used, also for a token.
        session.request = functools.partial(session.request, timeout=TIMEOUTS_SECONDS)
        super()._config_headers(session)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        return super().commit_table(table, requirements, tuple(_one_by_one(updates)))

    @staticmethod
    def _delete_old_metadata(io: Any, base: Any, metadata: Any) -> None:
        # Most servers have done it by now, and PyIceberg would warn at every commit.
        RestCatalog._delete_old_metadata(_Removing(io), base, metadata)


def _one_by_one(updates: Iterable[Any]) -> Iterator[Any]:
    """Servers that are built on an older Iceberg (1.7) want one for each snapshot that goes."""
    for update in updates:
        if isinstance(update, RemoveSnapshotsUpdate):
            for one in sorted(update.snapshot_ids):
                yield RemoveSnapshotsUpdate(snapshot_ids=[one])
        else:
            yield update


class _Removing:
    """What of a FileIO removes files, also those that are gone."""

    def __init__(self, io: Any) -> None:
        self._io = io

    def delete(self, location: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._io.delete(location)


# Where PyIceberg looks when it knows that a catalog is of this type, by whatever of its settings.
AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, settings: BoundedRestCatalog(name, **settings)


def text_of(error: Exception, settings: Mapping[str, str]) -> str:
    """What an error says, without the secrets of a catalog, which a server may have quoted."""
    text = str(error)
    for secret in secrets_of(settings):
        text = text.replace(secret, HIDDEN)
    return text


@contextlib.contextmanager
def in_words(path: str, settings: Mapping[str, str]) -> Iterator[None]:
    """What catalogs and files say of a failure, as PipelineError."""
    try:
        yield
    except (OSError, RESTError, NoSuchTableError, *UNCLEAR) as error:
        raise PipelineError(f"{path}: {text_of(error, settings)}") from shown(error, settings)


def shown(error: Exception, settings: Mapping[str, str]) -> Exception | None:
    """An error where it may be in a traceback, because it has no secrets."""
    return error if text_of(error, settings) == str(error) else None


def patiently(ask: Callable[[], Answer]) -> Answer:
    """What a catalog answers, asked again where it does not. Raises what the last time did. Only
    for what may be done twice."""
    for seconds in WAITS_SECONDS:
        try:
            return ask()
        except UNCLEAR:
            time.sleep(seconds)
    return ask()


class Attempt:
    """A transaction that adds snapshots, and is committed once."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        producers: list[Any] = list(transaction._snapshot_producers)
        self._ids = [one.snapshot_id for one in producers]
        self._cleaners = [one._clean_all_uncommitted for one in producers]
        for one in producers:
            one._clean_all_uncommitted = _nothing

    def commit(self) -> None:
        """Raises CommitFailedException, and what is UNCLEAR. No file is removed then."""
        self._transaction.commit_transaction()

    def is_in(self, table: Table) -> bool:
        """Whether the table, as it was seen last, has what was to be committed."""
        return all(table.metadata.snapshot_by_id(one) is not None for one in self._ids)

    def clean(self) -> None:
        """Remove the manifests of a commit that was refused, and is not in the table."""
        for clean in self._cleaners:
            clean()


def _nothing() -> None:
    """What PyIceberg does of itself to the files of a commit that was refused."""
