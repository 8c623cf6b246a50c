"""Bit flips in one server's files, while it runs and while it is stopped.

In any file: no client receives a byte that was not written, nothing acknowledged is lost, and the
server needs no operator. Damaged data is read again from the others, or the replica is removed and
replaced. The server under test leads the topic, so that clients read from it.

FLIPS sets the number of bits: 12 by default, 300 for the full form (`make chaos FLIPS=300`). KINDS,
such as "journal,segment", selects some files only. The draw depends on SEED, which is printed.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections import Counter

import pytest

from tests.chaos.conftest import Figure, MakeDiskSet
from tests.chaos.harness.cluster import create_topic, leader, numbers, wait_equal, wait_healthy
from tests.chaos.harness.copies import assert_equal, read_copies
from tests.chaos.harness.disk_set import BATCHES_THAT_FIT, SMALL_FILES, DiskSet
from tests.chaos.harness.flips import KINDS, flip
from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, audit, read_back

pytestmark = pytest.mark.takes_turns(parts=2)

FLIPS = int(os.environ.get("FLIPS", "12"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
STRUCK = os.environ.get("KINDS", ",".join(KINDS)).split(",")
FLIPS_A_TOPIC = 12
"""Number of flips after which the next topic begins, so that reading all of one back stays cheap.
"""
VICTIM = 1
FLIPS_NOTICED = 100
"""With this number of flips, some are in data that is read."""
FIRST_ACKS = 400
"""Acknowledgements that make sealed segments, in which bits can flip."""
ACKS_BETWEEN = 60
HEALED_SECONDS_MAX = 30.0
START_SECONDS_MAX = 20.0
PASSES_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1
NOTICED = ("entries_damaged", "entries_repaired", "index_damaged", "replica_lost")
"""Events that the server logs when it finds damage.

Their number is random: a flip may be in data that is no longer read.
"""
SETTINGS = {**SMALL_FILES, "storage.cache_bytes": "8MiB"}


def strike(servers: DiskSet, load: Load, kind: str, *, is_live: bool, rng: random.Random) -> float:
    """Flip one bit, and check that it has no effect.

    Return the seconds until all copies were good.
    """
    load.wait_acknowledged(rng.randint(1, ACKS_BETWEEN))
    store = servers.stores[VICTIM - 1]
    if not is_live:
        servers.end(VICTIM)
    flipped = flip(store, kind, rng)
    print(f"{kind} {'live' if is_live else 'at rest'}: {flipped}", flush=True)
    if not is_live:
        servers.start(VICTIM)
        servers.wait_serving(VICTIM, seconds_max=START_SECONDS_MAX)
    # Everything is read, from the victim when it leads: damage is found here.
    audit(load.acks[:], read_back(servers.bootstrap, load.topic))
    return wait_healed(servers)


def wait_healed(servers: DiskSet) -> float:
    """Wait until no replica is lost and no damaged range is known on the victim.

    Return the seconds. A process that has ended is restarted, as a supervisor does.
    """
    began = time.monotonic()
    while True:
        if VICTIM not in servers.running():
            print(f"the server ended: {servers.log(VICTIM)[-400:]}", flush=True)
            servers.start(VICTIM)
            servers.wait_serving(VICTIM, seconds_max=START_SECONDS_MAX)
        found = numbers(servers, VICTIM)
        damage = {
            name: found.get(f"vdl_store_{name}", -1.0) for name in ("logs_lost", "damaged_ranges")
        }
        if not any(damage.values()):
            break
        assert time.monotonic() - began < HEALED_SECONDS_MAX, damage
        time.sleep(POLL_SECONDS)
    wait_healthy(servers)
    return time.monotonic() - began


def wait_scrubbed(servers: DiskSet) -> None:
    """Wait until the victim has read all its segments once more, from beginning to end."""
    name = "vdl_store_scrub_passes_total"
    deadline = time.monotonic() + PASSES_SECONDS_MAX
    # The running pass may already be past the last flip.
    wanted = numbers(servers, VICTIM).get(name, 0.0) + 2
    while numbers(servers, VICTIM).get(name, 0.0) < wanted:
        assert time.monotonic() < deadline, "the scrubber does not get round"
        time.sleep(POLL_SECONDS)


def test_flipped_bits_of_one_server_are_served_to_nobody_and_healed(
    make_disk_set: MakeDiskSet, figure: Figure
) -> None:
    """Flips in journal, segments, index and meta, live and at rest, are harmless.

    0 acknowledged records are lost, 0 corrupt bytes delivered, all is healed within 30 s, and at
    the end all copies are equal.
    """
    print(f"SEED={SEED} FLIPS={FLIPS}")
    rng = random.Random(SEED)
    servers = make_disk_set(settings=SETTINGS)
    servers.up()
    plan = [(kind, is_live) for is_live in (False, True) for kind in STRUCK]
    struck: Counter[str] = Counter()
    healed: list[float] = []
    loads: list[Load] = []
    while len(healed) < FLIPS:
        wait_healthy(servers)
        load = Load(servers.bootstrap, f"flips-{len(loads)}", IDEMPOTENT, **BATCHES_THAT_FIT)
        create_topic(servers, load.topic, first_on=VICTIM)
        loads.append(load)
        load.start()
        try:
            load.wait_acknowledged(FIRST_ACKS)
            for _ in range(min(FLIPS_A_TOPIC, FLIPS - len(healed))):
                kind, is_live = plan[len(healed) % len(plan)]
                healed.append(strike(servers, load, kind, is_live=is_live, rng=rng))
                struck[kind] += 1
        finally:
            load.stop()
        assert load.failures == {}
        assert len(load.acks) == load.sent
    # Data in no cache is read from the victim's disk, completely.
    servers.end(VICTIM)
    servers.start(VICTIM)
    servers.wait_serving(VICTIM)
    wait_healed(servers)
    for load in loads:
        wait_led_by_victim(servers, load.topic)
        assert_kept(load, read_back(servers.bootstrap, load.topic))
    wait_scrubbed(servers)
    wait_healed(servers)
    wait_equal(servers)
    servers.kill(*servers.server_ids)
    figure("seed", SEED)
    figure("flips", dict(struck))
    figure("acknowledged", sum(len(load.acks) for load in loads))
    log = servers.log(VICTIM)
    noticed = {event: log.count(f"event={event} ") for event in NOTICED}
    figure("noticed", noticed)
    figure("healed_seconds_median", round(statistics.median(healed), 2))
    figure("healed_seconds_max", round(max(healed), 2))
    if FLIPS >= FLIPS_NOTICED and "segment" in STRUCK:
        assert noticed["entries_repaired"], "no flip was ever noticed"
    copies = read_copies(servers.stores)
    figure("entries_equal_on_three_disks", assert_equal(copies, replicas=servers.nodes))


def wait_led_by_victim(servers: DiskSet, topic: str) -> None:
    """Wait until leadership returns to the first replica, one group a second."""
    deadline = time.monotonic() + HEALED_SECONDS_MAX
    while leader(servers, topic) != VICTIM:
        assert time.monotonic() < deadline, f"{topic} does not return to its first replica"
        time.sleep(POLL_SECONDS)
