"""A capture as a TOML file: the tables of a MariaDB server, and the destination of their changes.

```toml
[capture]
name = "shop"                   # name of the producer's transactions and of the binlog place

[mariadb]
host = "127.0.0.1"
port = 3306
user = "vdl"                    # SELECT, REPLICATION SLAVE, BINLOG MONITOR
password = "env:PASSWORD"       # or "file:PATH"
server_id = 4711                # id of this replica, unique among that server's replicas
tables = ["shop.items"]         # each needs a primary key

[topics]
bootstrap = "127.0.0.1:9092"
prefix = "shop"                 # a table's topic is PREFIX.DATABASE.TABLE; the name by default
partitions = 1                  # of topics that are created here
tombstones = true               # after each deletion, for compacted topics
[topics.client]                 # librdkafka's settings: TLS, SASL
```

Does not depend on clients.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vdl.pipeline.client_secrets import PLACE, exposed
from vdl.pipeline.client_settings import unfit
from vdl.pipeline.errors import JobInvalid
from vdl.pipeline.settings_reader import Reader

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TABLE = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
SERVER_IDS = range(1, 1 << 32)


@dataclass(frozen=True, slots=True)
class Capture:
    """Settings of a capture. `tables`: (database, table); `password` names a secret."""

    name: str
    host: str
    port: int
    user: str
    password: str
    server_id: int
    tables: tuple[tuple[str, str], ...]
    bootstrap: str
    prefix: str
    partitions: int = 1
    tombstones: bool = True
    client: Mapping[str, str] = field(default_factory=dict)

    def topic(self, database: str, table: str) -> str:
        return f"{self.prefix}.{database}.{table}"

    @property
    def places(self) -> str:
        """Topic that records how far the binlog was read."""
        return f"{self.prefix}.places"


def load_capture(path: Path) -> Capture:
    """Read and check a capture file. Raises JobInvalid with all problems, OSError."""
    try:
        reader = Reader(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise JobInvalid(str(path), [str(error)]) from error
    problems = reader.problems
    name = reader.text("capture", "name")
    tables = reader.texts("mariadb", "tables")
    problems += [
        f"mariadb.tables: {one!r} is no database.table"
        for one in tables
        if not TABLE.fullmatch(one)
    ]
    found = Capture(
        name,
        reader.text("mariadb", "host", "127.0.0.1"),
        reader.count("mariadb", "port", 3306),
        reader.text("mariadb", "user"),
        reader.text("mariadb", "password", ""),
        reader.count("mariadb", "server_id", 0),
        tuple((one.partition(".")[0], one.partition(".")[2]) for one in tables),
        reader.text("topics", "bootstrap"),
        reader.text("topics", "prefix", "") or name,
        reader.count("topics", "partitions", 1),
        reader.switch("topics", "tombstones", default=True),
        reader.mapping("topics", "client"),
    )
    reader.finish()
    shown = "a secret does not stand in this file; env:NAME or file:PATH do"
    needs = {
        f"capture.name: {name!r} is no name": bool(NAME.fullmatch(name)),
        f"topics.prefix: {found.prefix!r} is no name": bool(NAME.fullmatch(found.prefix)),
        "mariadb.tables: at least one is needed": bool(tables),
        "mariadb.server_id: must be from 1 to 4294967295": found.server_id in SERVER_IDS,
        "topics.partitions: must be at least 1": found.partitions >= 1,
        f"mariadb.password: {shown}": not found.password or bool(PLACE.match(found.password)),
    }
    problems += [problem for problem, is_so in needs.items() if not is_so]
    problems += [f"topics.client: {one}: {why}" for one, why in unfit(found.client).items()]
    problems += [f"topics.client: {one}: {shown}" for one in exposed(found.client)]
    if problems:
        raise JobInvalid(str(path), problems)
    return found
