"""Debezium on Kafka Connect: each change of a MariaDB's table is in the topic once, in order.

CHANGES, LEADERS and KILLS set the number of changes, and how often a leader and Connect are killed
meanwhile (`make cdc`).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.debezium import Debezium
from tests.ecosystem.mariadb_load import Change, Load
from tests.ecosystem.mariadb_server import MariaDbServer
from tests.ecosystem.records import Record, Topics

pytestmark = pytest.mark.takes_turns(parts=2)

CHANGES = int(os.environ.get("CHANGES", "3000"))
LEADERS = int(os.environ.get("LEADERS", "1"))
KILLS = int(os.environ.get("KILLS", "1"))
KEYS = max(50, CHANGES // 20)
LEADER, CONNECT = "leader", "connect"


def test_debezium_writes_each_change_once_over_kills_of_connect_and_a_leader(
    servers: ReplicaSet | None, topics: Topics, tmp_path: Path
) -> None:
    """A snapshot, then inserts, updates, deletions, changes of keys and a new column.

    Connect and the leader of a partition are killed meanwhile.
    """
    with (
        MariaDbServer(tmp_path / "mariadb") as mariadb,
        Debezium(mariadb, topics, tmp_path, name="debezium") as debezium,
    ):
        load = Load(mariadb, changes=CHANGES, keys=KEYS, seed=1)
        topic = debezium.capture("debezium", with_schemas=True)
        debezium.program.wait_for("the topic is there", lambda: topic in topics.names())
        with topics.follow(topic) as found:
            debezium.program.wait_for_count("the snapshot", found.count, load.snapshot)
            try:
                load.start()
                for stop, victim in stops():
                    load.wait_for(stop * CHANGES)
                    if victim == CONNECT:
                        debezium.kill()
                        debezium.start()
                    elif servers is not None:
                        leader = topics.leader(topic, 0)
                        servers.kill(leader)
                        servers.start(leader)
                        servers.wait_serving(leader)
                load.join()
            finally:
                load.abort()
            # Each deletion is two records: the envelope and a tombstone.
            changes = [change for key in load.history.values() for change in key]
            expected = len(changes) + sum(op == "d" for op, *_ in changes)
            debezium.program.wait_for_count("all changes", found.count, expected)
            assert history_of(found.records) == load.history
            assert len(found.records) == expected
    print(f"\n{len(changes)} changes of {KEYS} keys, {LEADERS} leaders and {KILLS} workers killed")


def stops() -> list[tuple[float, str]]:
    """Return the shares of the changes at which a victim is killed, in order."""
    leaders = [((n + 1) / (LEADERS + 1), LEADER) for n in range(LEADERS)]
    return sorted(leaders + [((n + 0.5) / (KILLS + 1), CONNECT) for n in range(KILLS)])


def history_of(records: Iterable[Record]) -> dict[int, list[Change]]:
    """Return the changes of each key, in order."""
    found: defaultdict[int, list[Change]] = defaultdict(list)
    ended: set[int] = set()
    for record in records:
        assert record.key is not None
        key = json.loads(record.key)["payload"]["id"]
        if record.value is None:
            assert found[key][-1][0] == "d", key
            assert key not in ended
            ended.add(key)
            continue
        ended.discard(key)
        envelope = json.loads(record.value)["payload"]
        row = envelope["after"] or {}
        found[key].append((envelope["op"], row.get("name"), row.get("note")))
    return found
