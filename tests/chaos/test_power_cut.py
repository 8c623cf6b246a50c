"""Power cuts under load: unsynced data is really gone from the servers' disks.

Each server has an ext4 of its own, which is shut down without flushing its log before the process
is killed, and mounted again. One, two or all three servers lose power at a time, some a second time
while they start. The draw depends on SEED, which is printed.

CUTS sets the number of cuts: 20 by default, 200 for the full form (`make chaos CUTS=200`).
"""

from __future__ import annotations

import os
import random
import statistics
import time

from tests.chaos.conftest import Figure, MakeDiskSet
from tests.chaos.harness.cluster import create_topic, wait_equal, wait_healthy
from tests.chaos.harness.copies import assert_equal, read_copies
from tests.chaos.harness.disk_set import BATCHES_THAT_FIT, DiskSet
from tests.chaos.harness.load import IDEMPOTENT, PLAIN, Load, assert_kept, audit, read_back

CUTS = int(os.environ.get("CUTS", "20"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
CUTS_A_TOPIC = 10
"""Number of cuts after which the next topic begins, so that reading all of one back stays cheap."""
SIZES = (1, 1, 2, 2, 3)
"""Number of servers that lose power at once, drawn evenly from these."""
AGAIN_PROBABILITY = 0.25
AGAIN_SECONDS_MAX = 1.5
"""A start takes about a second: the second cut comes while the servers read their data."""
ACKS_BETWEEN = 60
RESTART_SECONDS_MAX = 30.0


def cut(servers: DiskSet, load: Load, rng: random.Random) -> float:
    """Cut the power at a random moment, and restart.

    Return the seconds until all servers are healthy again.
    """
    struck = rng.sample(list(servers.server_ids), rng.choice(SIZES))
    load.wait_acknowledged(rng.randint(1, ACKS_BETWEEN))
    servers.power_cut(*struck)
    began = time.monotonic()
    for server_id in struck:
        servers.start(server_id)
    if rng.random() < AGAIN_PROBABILITY:
        time.sleep(rng.uniform(0, AGAIN_SECONDS_MAX))
        servers.power_cut(*struck)
        began = time.monotonic()
        for server_id in struck:
            servers.start(server_id)
    load.wait_acknowledged(1)
    wait_healthy(servers)
    seconds = time.monotonic() - began
    # Values in flight are not judged yet; those acknowledged by now must be there.
    audit(load.acks[:], read_back(servers.bootstrap, load.topic))
    return seconds


def test_power_cuts_of_one_two_or_all_servers_lose_nothing(
    make_disk_set: MakeDiskSet, figure: Figure
) -> None:
    """Servers start by themselves after each cut, with every acknowledged record at its offset.

    At the end order was kept and the three copies are equal. No replica was replaced: what it had
    acknowledged was on its disk.
    """
    print(f"SEED={SEED} CUTS={CUTS}")
    rng = random.Random(SEED)
    servers = make_disk_set()
    servers.up()
    restarts: list[float] = []
    acknowledged = 0
    while len(restarts) < CUTS:
        topic = f"power-{len(restarts) // CUTS_A_TOPIC}"
        create_topic(servers, topic)
        variant = rng.choice((IDEMPOTENT, PLAIN))
        load = Load(servers.bootstrap, topic, variant, **BATCHES_THAT_FIT)
        load.start()
        cuts = min(CUTS_A_TOPIC, CUTS - len(restarts))
        try:
            restarts += [cut(servers, load, rng) for _ in range(cuts)]
        finally:
            load.stop()
        assert load.failures == {}
        assert len(load.acks) == load.sent
        assert_kept(load, read_back(servers.bootstrap, topic))
        acknowledged += len(load.acks)
        print(f"{len(restarts)} cuts, {acknowledged} acknowledged, none lost", flush=True)
    wait_equal(servers)
    servers.kill(*servers.server_ids)
    copies = read_copies(servers.stores)
    figure("seed", SEED)
    figure("cuts", len(restarts))
    figure("acknowledged", acknowledged)
    figure("restart_seconds_median", round(statistics.median(restarts), 2))
    figure("restart_seconds_max", round(max(restarts), 2))
    figure("entries_equal_on_three_disks", assert_equal(copies, replicas=servers.nodes))
    assert len(copies) == servers.nodes * len({copy.group_id for copy in copies})
    assert max(restarts) <= RESTART_SECONDS_MAX
