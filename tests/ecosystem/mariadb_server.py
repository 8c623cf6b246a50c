"""MariaDB server for tests, on loopback, in a folder, with a row-based binlog."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ecosystem.programs import Program, accepts, free_port

INSTALL_SECONDS_MAX = 120
USER = "vdl"
PASSWORD = "secret"
DATABASE = "shop"
RIGHTS = "SELECT, RELOAD, LOCK TABLES, SHOW DATABASES, REPLICATION SLAVE, REPLICATION CLIENT"


class MariaDbServer:
    """Server started on creation; skips the test if MariaDB is not installed. Use in a `with`."""

    def __init__(self, folder: Path) -> None:
        import pymysql

        self._connect_with = pymysql.connect
        server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
        install = shutil.which("mariadb-install-db")
        if server is None or install is None:
            pytest.skip("needs MariaDB: apt-get install mariadb-server")
        folder.mkdir()
        data = folder / "data"
        who = ["--user=root", f"--datadir={data}"]
        subprocess.run(
            [install, "--no-defaults", "--auth-root-authentication-method=normal",
             "--skip-test-db", *who],
            check=True, timeout=INSTALL_SECONDS_MAX, capture_output=True,
        )  # fmt: skip
        self.port = free_port()
        self._socket = str(folder / "socket")
        self._command = [
            server, "--no-defaults", *who, f"--port={self.port}", "--bind-address=127.0.0.1",
            f"--socket={self._socket}", f"--log-bin={data / 'binlog'}", "--server-id=1",
            "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--binlog-row-image=FULL",
            "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M",
            f"--pid-file={folder / 'pid'}",
        ]  # fmt: skip
        self._log = folder / "log"
        self._program = Program(self._command, self._log)

    def __enter__(self) -> MariaDbServer:
        self._program.wait_for("MariaDB answers", lambda: accepts(self.port))
        self.run(
            f"CREATE DATABASE {DATABASE}",
            f"CREATE USER {USER}@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'",
            f"CREATE USER {USER}@'localhost' IDENTIFIED BY '{PASSWORD}'",
            *(f"GRANT {RIGHTS} ON *.* TO {USER}@'{host}'" for host in ("127.0.0.1", "localhost")),
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._program.stop()

    def connect(self, database: str = DATABASE) -> Any:
        return self._connect_with(
            unix_socket=self._socket, user="root", database=database, autocommit=True,
            charset="utf8mb4", init_command="SET time_zone = '+00:00'",
        )  # fmt: skip

    def run(self, *statements: str) -> None:
        connection = self.connect("")
        with connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        connection = self.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())
