"""Reader of a MariaDB server: its tables' current rows, and the changes in its binlog.

A place in the binlog is the end of a transaction and a number of rows taken of the next one, so a
transaction of any size can be taken in parts. It belongs to one server, whose files it names.

Reads with `mysql-replication`. Names and signedness of columns are in the binlog itself
(`binlog_row_metadata = FULL`), so a row has the columns of the time when it was written, whatever
ALTER TABLE has done since.

Does not depend on Kafka clients.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.cursors import SSCursor
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import HeartbeatLogEvent, MariadbGtidEvent, QueryEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from vdl.pipeline.client_secrets import looked_up
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.mariadb.changes import Change, plain
from vdl.pipeline.mariadb.settings import Capture

WANTED = {
    "log_bin": "1", "binlog_format": "ROW", "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
}  # fmt: skip
REFUSED = ("set", "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring")
"""Column types that the library does not read faithfully."""
HEARTBEAT_SECONDS = 0.5
CONNECT_SECONDS = 10
SNAPSHOT_ROWS = 1000
PURGED = 1236
"""MariaDB's error for a request of a binlog that it no longer has."""
STANDALONE = 1
"""Flag of a GTID whose group is one statement, such as DDL."""
TRUNCATES = re.compile(
    r"\s*(?:/\*.*?\*/\s*)*TRUNCATE\s+(?:TABLE\s+)?(?:`?([\w-]+)`?\s*\.\s*)?`?([\w-]+)`?",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Place after the transaction that ends at `position` of `file`, and `rows` rows of the next.

    `is_whole`: True if the initial snapshot of the tables has been read to its end.
    """

    server: int
    file: str
    position: int
    rows: int = 0
    is_whole: bool = False

    def to_json(self) -> bytes:
        names = ("server", "file", "position", "rows", "is_whole")
        return json.dumps({name: getattr(self, name) for name in names}).encode()

    @staticmethod
    def from_json(data: bytes) -> Place:
        """Parse a place. Raises ValueError, KeyError."""
        told = json.loads(data)
        return Place(
            int(told["server"]), str(told["file"]), int(told["position"]), int(told["rows"]),
            bool(told["is_whole"]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Change of one row of a table, and the place after it. `key`: names of the key columns."""

    database: str
    table: str
    key: tuple[str, ...]
    change: Change
    ts_ms: int
    source: Mapping[str, Any]
    place: Place


@dataclass(frozen=True, slots=True)
class Boundary:
    """Place between two transactions. `is_idle`: the binlog has no more at the moment."""

    place: Place
    is_idle: bool = False


class MariaDb:
    """Connection to a server, by `settings`. Use in `closing`."""

    def __init__(self, settings: Capture) -> None:
        self._settings = settings
        self._tables = frozenset(settings.tables)
        self._connection = self._connect()
        self._keys: dict[tuple[str, str], tuple[str, ...]] = {}
        self.server = self._check()

    def close(self) -> None:
        self._connection.close()

    def _login(self) -> dict[str, Any]:
        s = self._settings
        return {
            "host": s.host, "port": s.port, "user": s.user, "charset": "utf8mb4",
            "password": looked_up("mariadb.password", s.password),
            "connect_timeout": CONNECT_SECONDS,
        }  # fmt: skip

    def _connect(self) -> Any:
        zone = "SET time_zone = '+00:00'"
        try:
            return pymysql.connect(**self._login(), init_command=zone, autocommit=True)
        except pymysql.err.OperationalError as error:
            raise PipelineError(f"mariadb: {error.args[-1]}") from error

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)
            return list(cursor.fetchall())

    def _check(self) -> int:
        """Check that the binlog contains the required data; return the server's id.

        Raises PipelineError.
        """
        names = [*WANTED, "server_id"]
        (found,) = self._ask("SELECT " + ", ".join(f"@@global.{name}" for name in names))
        problems = [
            f"{name} is {value}, and must be {wanted}"
            for (name, wanted), value in zip(WANTED.items(), found, strict=False)
            if str(value) != wanted
        ]
        server = int(found[-1])
        if server == self._settings.server_id:
            problems.append(f"mariadb.server_id: {server} is the server's own")
        for database, table in self._settings.tables:
            kinds = dict(
                self._ask(
                    "SELECT column_name, data_type FROM information_schema.columns "
                    "WHERE table_schema = %s AND table_name = %s",
                    database, table,
                )
            )  # fmt: skip
            name = f"{database}.{table}"
            if not kinds:
                problems.append(f"there is no table {name}")
            elif not self.key(database, table):
                problems.append(f"{name} has no primary key")
            problems += [
                f"{name}.{column} is {kind}, which is not read"
                for column, kind in kinds.items()
                if kind in REFUSED
            ]
        if problems:
            raise PipelineError(f"mariadb: {'; '.join(problems)}")
        return server

    def key(self, database: str, table: str) -> tuple[str, ...]:
        """Return the columns of a table's primary key."""
        found = self._keys.get((database, table))
        if found is None:
            self._connection.ping()
            rows = self._ask(
                "SELECT column_name FROM information_schema.key_column_usage "
                "WHERE constraint_name = 'PRIMARY' AND table_schema = %s AND table_name = %s "
                "ORDER BY ordinal_position",
                database, table,
            )  # fmt: skip
            found = self._keys[database, table] = tuple(str(name) for (name,) in rows)
        return found

    # --- snapshot -------------------------------------------------------------------------------
    def snapshot(self) -> Iterator[Row | Boundary]:
        """Yield first the place, then all tables' rows as of that place."""
        with closing(self._connect()) as connection:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
                cursor.execute("SHOW STATUS LIKE 'binlog_snapshot_%'")
                told = {name.lower(): value for name, value in cursor.fetchall()}
            file, position = told["binlog_snapshot_file"], int(told["binlog_snapshot_position"])
            place = Place(self.server, file, position)
            yield Boundary(place)
            for database, table in self._settings.tables:
                yield from self._rows_of(connection, database, table, place)

    def _rows_of(self, connection: Any, database: str, table: str, place: Place) -> Iterator[Row]:
        key = self.key(database, table)
        with connection.cursor(SSCursor) as cursor:
            # `settings` has checked these names.
            cursor.execute(f"SELECT * FROM `{database}`.`{table}`")  # noqa: S608
            columns = [(told[0], told[1]) for told in cursor.description]
            source = self._source(database, table, place, snapshot="true")
            while rows := cursor.fetchmany(SNAPSHOT_ROWS):
                for values in rows:
                    pairs = zip(columns, values, strict=True)
                    row = {name: plain(value, kind) for (name, kind), value in pairs}
                    yield Row(database, table, key, Change("r", None, row), 0, source, place)

    def _source(self, database: str, table: str, place: Place, **more: object) -> dict[str, Any]:
        return {
            "connector": "mariadb", "name": self._settings.name, "db": database, "table": table,
            "server_id": self.server, "file": place.file, "pos": place.position, **more,
        }  # fmt: skip

    # --- changes --------------------------------------------------------------------------------
    def follow(self, place: Place, *, once: bool) -> Iterator[Row | Boundary]:
        """Yield the changes after a place; with `once`, up to the current end of the binlog.

        Raises PipelineError if the binlog has been purged, pymysql's errors if the server is
        unreachable.
        """
        if place.server != self.server:
            what = f"the place is of server {place.server}, this is {self.server}"
            raise PipelineError(f"mariadb: {what}: their binlogs are not the same")
        # With `is_mariadb` the library uses GTIDs only, and no place.
        stream = BinLogStreamReader(
            connection_settings=self._login(),
            server_id=self._settings.server_id,
            blocking=not once,
            resume_stream=True,
            log_file=place.file,
            log_pos=place.position,
            only_events=[
                WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, XidEvent, QueryEvent,
                MariadbGtidEvent, HeartbeatLogEvent,
            ],
            only_schemas=sorted({database for database, _ in self._tables}),
            only_tables=sorted({table for _, table in self._tables}),
            pymysql_wrapper=_connect,
            slave_heartbeat=HEARTBEAT_SECONDS,
            enable_logging=False,
        )  # fmt: skip
        try:
            yield from self._changes(stream, place)
        except pymysql.err.OperationalError as error:
            if error.args[0] == PURGED:
                what = "the binlog has been purged: the tables must be read anew, to new topics"
                raise PipelineError(f"mariadb: {error.args[-1]}: {what}") from error
            raise
        finally:
            stream.close()

    def _changes(self, stream: Any, place: Place) -> Iterator[Row | Boundary]:
        """Yield changes; `place.rows` of the first transaction were taken before."""
        taken, seen = place.rows, 0
        place = replace(place, rows=0)
        gtid, is_standalone = "", False
        for event in stream:
            if isinstance(event, HeartbeatLogEvent):
                yield Boundary(replace(place, rows=max(taken, seen)), is_idle=True)
            elif isinstance(event, MariadbGtidEvent):
                gtid, is_standalone = event.gtid, bool(event.flags & STANDALONE)
            elif isinstance(event, XidEvent | QueryEvent):
                if isinstance(event, QueryEvent):
                    if not is_standalone and event.query.upper() not in {"COMMIT", "ROLLBACK"}:
                        continue
                    self._keys.clear()  # It may have been ALTER TABLE.
                end = replace(place, file=stream.log_file, position=stream.log_pos)
                if isinstance(event, QueryEvent) and not taken:
                    yield from self._truncation(event, end, gtid)
                place, taken, seen = end, 0, 0
                yield Boundary(place)
            elif (event.schema, event.table) in self._tables:
                for change in _changes_of(event):
                    seen += 1
                    if seen <= taken:
                        continue
                    key = self.key(event.schema, event.table)
                    at = replace(place, rows=seen)
                    source = self._source(event.schema, event.table, place, row=seen, gtid=gtid)
                    ts_ms = event.timestamp * 1000
                    yield Row(event.schema, event.table, key, change, ts_ms, source, at)

    def _truncation(self, event: Any, place: Place, gtid: str) -> Iterator[Row]:
        found = TRUNCATES.match(event.query)
        if found is None:
            return
        database, table = found[1] or bytes(event.schema).decode(), found[2]
        if (database, table) in self._tables:
            source = self._source(database, table, place, gtid=gtid)
            change = Change("t", None, None)
            yield Row(database, table, (), change, event.timestamp * 1000, source, place)


def _connect(*, db: str | None = None, **settings: Any) -> Any:
    """Connect; the library uses argument names that PyMySQL has dropped."""
    return pymysql.connect(**settings, database=db)


def _changes_of(event: Any) -> Iterator[Change]:
    kinds = {column.name: column.type for column in event.columns}

    def row(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: plain(value, kinds[name]) for name, value in values.items()}

    for told in event.rows:
        if isinstance(event, UpdateRowsEvent):
            yield Change("u", row(told["before_values"]), row(told["after_values"]))
        elif isinstance(event, WriteRowsEvent):
            yield Change("c", None, row(told["values"]))
        else:
            yield Change("d", row(told["values"]), None)
