"""Random changes of a MariaDB's table, and the history of each key that they make."""

from __future__ import annotations

import datetime
import random
import threading
from collections import defaultdict
from decimal import Decimal
from typing import Any

from tests.ecosystem.mariadb_server import DATABASE, MariaDbServer

CREATE = f"""
CREATE TABLE {DATABASE}.items (
  id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40) CHARACTER SET utf8mb4, price DECIMAL(12,3),
  seen TIMESTAMP(6) NULL, made DATETIME NULL, day DATE, data VARBINARY(20)
)
"""
ALTER = f"ALTER TABLE {DATABASE}.items ADD COLUMN note TEXT"
COLUMNS = ("id", "name", "price", "seen", "made", "day", "data", "note")
"""After ALTER."""
NAMES = ("", "ärgerlich", "日本", 'a"b\\c', "🙂 x")
ROWS_OF_TRANSACTION_MAX = 30
ROLLBACKS, NULLS = 0.05, 0.05
DELETIONS, MOVES = 0.25, 0.05
WAIT_SECONDS = 0.01

Change = tuple[str, str | None, str | None]
"""Operation (Debezium's), name and note of the row after it."""


class Load(threading.Thread):
    """Inserts, updates, deletions and changes of keys, with ALTER in the middle.

    Each written row has a unique name, so the history of a key distinguishes its changes.
    """

    def __init__(self, server: MariaDbServer, *, changes: int, keys: int, seed: int) -> None:
        """Set the parameters. `keys`: number of initial rows, which is also the maximum."""
        super().__init__()
        self.done = 0
        self.history: defaultdict[int, list[Change]] = defaultdict(list)
        """History of each key, of committed transactions. Read it after `join`."""
        self._changes = changes
        self._keys = keys
        self._rng = random.Random(seed)
        self._connection = server.connect()
        self._rows: dict[int, str] = {}
        self._written = 0
        self._is_altered = False
        self._aborting = threading.Event()
        server.run(CREATE)
        with self._connection.cursor() as cursor:
            self._connection.begin()
            for key in range(0, keys, 2):
                self._insert(cursor, key, "r")
            self._connection.commit()
        self.snapshot = len(self._rows)

    def run(self) -> None:
        with self._connection, self._connection.cursor() as cursor:
            while self.done < self._changes and not self._aborting.is_set():
                if not self._is_altered and self.done >= self._changes // 2:
                    cursor.execute(ALTER)
                    self._is_altered = True
                self._transaction(cursor)

    def wait_for(self, done: float) -> None:
        """Return when that many changes are committed."""
        while self.is_alive() and self.done < done:
            self.join(WAIT_SECONDS)
        assert self.done >= done, self.done

    def abort(self) -> None:
        """End it early; no effect on one that has ended."""
        self._aborting.set()
        if self.is_alive():
            self.join()

    def _transaction(self, cursor: Any) -> None:
        rows, history = dict(self._rows), self.history
        self.history = defaultdict(list)
        self._connection.begin()
        for _ in range(self._rng.randrange(1, ROWS_OF_TRANSACTION_MAX)):
            self._change(cursor)
        made, self.history = self.history, history
        if self._rng.random() < ROLLBACKS:
            self._connection.rollback()
            self._rows = rows
            return
        self._connection.commit()
        for key, changes in made.items():
            history[key] += changes
        self.done += sum(map(len, made.values()))

    def _change(self, cursor: Any) -> None:
        rng = self._rng
        key, kind = rng.randrange(self._keys), rng.random()
        if key not in self._rows:
            self._insert(cursor, key, "c")
        elif kind < DELETIONS:
            cursor.execute("DELETE FROM items WHERE id = %s", (key,))
            del self._rows[key]
            self.history[key].append(("d", None, None))
        elif kind < DELETIONS + MOVES:
            self._move(cursor, key, rng.randrange(self._keys))
        else:
            values = self._values()
            names = COLUMNS[1 : 1 + len(values)]
            updates = ", ".join(f"{name} = %s" for name in names)
            cursor.execute(f"UPDATE items SET {updates} WHERE id = %s", (*values, key))
            self._note(key, "u", values)

    def _insert(self, cursor: Any, key: int, op: str) -> None:
        values = self._values()
        places = ", ".join(["%s"] * (1 + len(values)))
        cursor.execute(f"INSERT INTO items VALUES ({places})", (key, *values))
        self._note(key, op, values)

    def _move(self, cursor: Any, key: int, to: int) -> None:
        """Change the key and the name of a row: Debezium makes a deletion and a row of it."""
        if to in self._rows:
            return
        values = self._values()
        sql = "UPDATE items SET id = %s, name = %s WHERE id = %s"
        cursor.execute(sql, (to, values[0], key))
        cursor.execute("SELECT * FROM items WHERE id = %s", (to,))
        _, name, *others = cursor.fetchone()
        del self._rows[key]
        self.history[key].append(("d", None, None))
        self._note(to, "c", [name, *others])

    def _note(self, key: int, op: str, values: list[Any]) -> None:
        name, note = values[0], values[6] if len(values) > 6 else None
        self._rows[key] = name
        self.history[key].append((op, name, note))

    def _values(self) -> list[Any]:
        """Return values of all columns but the key. The name is new."""
        rng = self._rng
        self._written += 1
        at = datetime.datetime(2013, 1, 1) + datetime.timedelta(  # noqa: DTZ001 - as MariaDB's
            microseconds=rng.randrange(6 * 10**14)
        )
        values: list[Any] = [
            Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-3),
            at,
            at.replace(microsecond=0),
            at.date(),
            rng.randbytes(rng.randrange(20)),
        ]
        if self._is_altered:
            values.append("x" * rng.randrange(100))
        values = [None if rng.random() < NULLS else value for value in values]
        return [f"{rng.choice(NAMES)}{self._written}", *values]
