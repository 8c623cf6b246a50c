"""Transactions while servers are killed: each is complete, or absent."""

from __future__ import annotations

import os
import random
import time

from tests.chaos.conftest import Figure
from tests.chaos.harness.cluster import create_topic, wait_healthy
from tests.chaos.harness.replica_set import ReplicaSet
from tests.chaos.harness.transactions import Fate, Transactor, problems, read_committed

TOPIC, PARTITIONS, TRANSACTORS = "transactions", 3, 6
KILLS = int(os.environ.get("VDL_TRANSACTION_KILLS", "4"))
SECONDS_BETWEEN = 2.0
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))


def test_transactions_are_all_or_nothing_while_servers_die(
    replica_set: ReplicaSet, figure: Figure
) -> None:
    """Transactions at every step survive the death of coordinators, leaders, or both.

    The other servers complete decided ones and abort the rest.
    """
    create_topic(replica_set, TOPIC, partitions=PARTITIONS)
    transactors = [
        Transactor(replica_set.bootstrap, TOPIC, PARTITIONS, number)
        for number in range(TRANSACTORS)
    ]
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    for transactor in transactors:
        transactor.start()
    try:
        for _ in range(KILLS):
            time.sleep(SECONDS_BETWEEN * rng.uniform(0.5, 1.5))
            replica_set.kill(rng.choice(replica_set.server_ids))
            time.sleep(SECONDS_BETWEEN * rng.uniform(0.5, 1.5))
            replica_set.up()
            wait_healthy(replica_set)
        time.sleep(SECONDS_BETWEEN)
    finally:
        for transactor in transactors:
            transactor.stop()
        for transactor in transactors:
            transactor.join()
    fates = {name: fate for one in transactors for name, fate in one.fates.items()}
    found = read_committed(replica_set.bootstrap, TOPIC, PARTITIONS)
    told = problems(fates, found, PARTITIONS)
    counts = {fate.value: sum(f is fate for f in fates.values()) for fate in Fate}
    figure("transactions", counts)
    assert told == []
    assert counts["committed"] > 10 * KILLS
    assert counts["aborted"] > 0
