"""Disk failures under load: a server must not rely on a second sync after a failed one.

After a failed sync the system drops the data that it could not write: the next sync succeeds, and
the data is gone. So the server ends at once and reads its disk again when it is started.

The server under test is the leader. Beside the topic on all three, another topic has its only
replica there: no other server could have kept what that one acknowledges.

SYNCS sets the number of disks that fail, for real and by injection each: two by default, twenty for
the full form (`make chaos SYNCS=20`), which checks the time limits, on an otherwise idle machine.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.conftest import Figure, MakeDiskSet
from tests.chaos.harness.cluster import create_topic, leader, wait_equal, wait_healthy
from tests.chaos.harness.copies import assert_equal, read_copies
from tests.chaos.harness.disk_set import BATCHES_THAT_FIT, DiskSet
from tests.chaos.harness.disks import MIB
from tests.chaos.harness.kernel_log import DeviceErrors
from tests.chaos.harness.load import IDEMPOTENT, Load, assert_kept, audit, read_back

pytestmark = pytest.mark.takes_turns(parts=2)

TOPIC = "failed-sync"
SYNCS = int(os.environ.get("SYNCS", "2"))
SEED = int(os.environ.get("SEED", random.randrange(1 << 32)))
LENIENCE = 1 if SYNCS >= 20 else 5
END_SECONDS_MAX = 1.0 * LENIENCE
GAP_MS_MAX = 3_000 * LENIENCE
FAILS_SECONDS_MAX = 180.0
"""Time until a disk that cannot store new blocks has to write one."""
SETTLED_ACKS = 100
DISK_BYTES = 128 * MIB
"""One block group: the smaller the file system, the sooner new blocks are needed."""
INJECTED = (("pwritev2", 40, ("EIO",)), ("fdatasync", 3, ("EIO", "ENOSPC")))
"""Calls, the maximum number to let pass, the errors.

`pwritev2` are the journal's writes, which are durable on return, and those to segments, which are
not: for these a full disk is a state.
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One failed disk: the server's remaining time, the gap, and its last log lines.

    The gap is the time without acknowledgements.
    """

    end_seconds: float
    gap_ms: float
    said: str


Fault = Callable[[DiskSet, int], float]
"""Makes the disk of a server fail and waits until the server has ended.

Returns the seconds between the first failure and its end.
"""


def fail_device(servers: DiskSet, server_id: int) -> float:
    """Make every access to the disk fail from one moment on."""
    servers.disks[server_id].fail()
    failed = time.monotonic()
    servers.wait_stopped(server_id, seconds_max=FAILS_SECONDS_MAX)
    return time.monotonic() - failed


def fail_new_blocks(servers: DiskSet, server_id: int) -> float:
    """Make writes to blocks that were never stored fail, although the file system has space."""
    disk = servers.disks[server_id]
    with DeviceErrors(disk.loop_device) as errors:
        disk.fail_new_blocks()
        servers.wait_stopped(server_id, seconds_max=FAILS_SECONDS_MAX)
        ended = time.monotonic()
    assert errors.first_at, "the server ended before its disk failed"
    return ended - errors.first_at


def strike(servers: DiskSet, load: Load, number: int, fault: Fault) -> Outcome:
    """Fail one disk, repair it, and restart the server."""
    wait_healthy(servers)
    victim = leader(servers, TOPIC)
    create_topic(servers, f"alone-{number}", alone_on=victim)
    alone = Load(servers.bootstrap, f"alone-{number}", IDEMPOTENT, **BATCHES_THAT_FIT)
    alone.start()
    try:
        alone.wait_acknowledged(SETTLED_ACKS)
        load.wait_acknowledged(SETTLED_ACKS)
        log_bytes = len(servers.log(victim))
        began_ns = time.monotonic_ns()
        end_seconds = fault(servers, victim)
        said = re.findall(r"event=disk_failed.*", servers.log(victim)[log_bytes:])
        assert len(said) == 1, servers.log(victim)[log_bytes:]
        acknowledged = alone.acks[:]
        load.wait_acknowledged(SETTLED_ACKS)
        gap_ms = load.longest_gap_ms(began_ns, time.monotonic_ns())
        # Data in the system's memory must not hide what is missing on the disk.
        servers.remount(victim, check=True)
        servers.start(victim)
        alone.wait_acknowledged(SETTLED_ACKS)
        audit(acknowledged, read_back(servers.bootstrap, alone.topic))
    finally:
        alone.stop()
    assert alone.failures == {}
    assert_kept(alone, read_back(servers.bootstrap, alone.topic))
    wait_healthy(servers)
    return Outcome(end_seconds, gap_ms, said[0])


def strike_again_and_again(
    servers: DiskSet, faults: list[Fault], figure: Figure, *, end_seconds_max: float
) -> None:
    """Fail leaders repeatedly.

    Then check that everything acknowledged is there, and the copies are equal.
    """
    create_topic(servers, TOPIC)
    load = Load(servers.bootstrap, TOPIC, IDEMPOTENT, **BATCHES_THAT_FIT)
    load.start()
    try:
        outcomes = [strike(servers, load, n, fault) for n, fault in enumerate(faults)]
    finally:
        load.stop()
    assert load.failures == {}
    assert_kept(load, read_back(servers.bootstrap, TOPIC))
    wait_equal(servers)
    servers.kill(*servers.server_ids)
    copies = read_copies(servers.stores)
    counts = Counter(copy.group_id for copy in copies)
    shared = [copy for copy in copies if counts[copy.group_id] > 1]
    assert len(copies) - len(shared) == len(faults)
    figure("acknowledged", len(load.acks))
    figure("entries_equal_on_three_disks", assert_equal(shared, replicas=servers.nodes))
    figure("failures", sorted({outcome.said for outcome in outcomes}))
    figure("end_seconds_max", round(max(outcome.end_seconds for outcome in outcomes), 3))
    figure("gaps_ms", [round(outcome.gap_ms) for outcome in outcomes])
    assert max(outcome.end_seconds for outcome in outcomes) <= end_seconds_max
    assert max(outcome.gap_ms for outcome in outcomes) <= GAP_MS_MAX


@pytest.mark.parametrize("fault", [fail_device, fail_new_blocks], ids=["device gone", "no blocks"])
def test_failed_sync_ends_the_server_and_nothing_acknowledged_is_lost(
    make_disk_set: MakeDiskSet, fault: Fault, figure: Figure
) -> None:
    """The disk really fails; the server logs it and ends, the others continue.

    Restarted on the repaired disk it has all that it had acknowledged, and becomes equal to the
    others.
    """
    if fault is fail_new_blocks and (missing := DeviceErrors.missing()):
        pytest.skip(missing)
    servers = make_disk_set(disk_bytes=DISK_BYTES)
    servers.up()
    count = max(1, SYNCS // 2)
    strike_again_and_again(servers, [fault] * count, figure, end_seconds_max=END_SECONDS_MAX)


# --- injected failures ----------------------------------------------------------------------------


def inject(call: str, n: int, error: str, trace: Path) -> Fault:
    """Return a fault that makes the n-th `call` of any thread fail, and all later ones."""

    def fault(servers: DiskSet, server_id: int) -> float:
        command = [
            # It injects only into calls that it traces.
            "strace", "-f", "-ttt", "-o", str(trace), "-e", f"trace={call},io_uring_enter",
            "-e", f"inject={call}:error={error}:when={n}+",
            # So that the server writes its journal by `pwritev2`, as where the kernel has no ring.
            "-e", "inject=io_uring_enter:error=EPERM", "-p", str(servers.pid(server_id)),
        ]  # fmt: skip
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as strace:
            try:
                servers.wait_stopped(server_id, seconds_max=FAILS_SECONDS_MAX)
                ended = time.time()
            finally:
                # strace may wait for ever for a thread that ended while it was being attached.
                strace.kill()
        injected = rf"^\d+ +([\d.]+) .*\b{call}\b.*\(INJECTED\)"
        failed = re.search(injected, trace.read_text(), re.MULTILINE)
        assert failed, f"no {call} failed: {trace.read_text()[-500:]}"
        if call == "pwritev2":
            said = re.findall(r"event=disk_failed.*", servers.log(server_id))[-1]
            assert "SyncFailed" in said, f"it was no block of the journal: {said}"
        return ended - float(failed[1])

    return fault


def strace_missing() -> str:
    """Return the reason why calls cannot be made to fail here; empty if they can."""
    if shutil.which("strace") is None:
        return "needs strace"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            done = subprocess.run(
                ["timeout", "1", "strace", "-p", str(sleeper.pid), "-e", "trace=none"],
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            sleeper.kill()
    return "" if "attached" in done.stderr else f"strace cannot attach: {done.stderr.strip()}"


def test_injected_failure_of_a_sync_ends_the_server_and_nothing_is_lost(
    make_disk_set: MakeDiskSet, figure: Figure, tmp_path: Path
) -> None:
    """A failed durable journal write, or fdatasync, ends the server.

    The error may well be ENOSPC: that is no full disk, where a refused write can be retried.
    """
    if missing := strace_missing():
        pytest.skip(missing)
    print(f"SEED={SEED}")
    rng = random.Random(SEED)
    servers = make_disk_set()
    servers.up()
    faults = []
    for number in range(SYNCS):
        call, n_max, errors = INJECTED[number % len(INJECTED)]
        trace = tmp_path / f"trace-{number}"
        faults.append(inject(call, rng.randint(1, n_max), rng.choice(errors), trace))
    figure("seed", SEED)
    strike_again_and_again(servers, faults, figure, end_seconds_max=END_SECONDS_MAX)
