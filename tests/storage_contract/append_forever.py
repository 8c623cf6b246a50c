"""Child process of test_kill.

Appends and commits entries, and prints each one that is durable, until it is killed.
"""

import asyncio
import random
import sys

from segments.api import HardState, StoredEntry
from segments.io.fs import RealFileSystem
from segments.io.workers import ThreadWorkers
from segments.store import DiskStore
from tests.storage_contract.test_kill import OPTIONS


async def run(directory):
    loop = asyncio.get_running_loop()
    workers = ThreadWorkers(
        loop.call_soon_threadsafe, lambda delay_ms, fn: loop.call_later(delay_ms / 1000, fn)
    )
    store = DiskStore.open(RealFileSystem(), directory, workers, OPTIONS, random.Random())
    if not store.logs:
        created = loop.create_future()
        store.create_log(9, 1, on_created=created.set_result)
        await created
    (log,) = store.logs.values()
    rng = random.Random()
    waiting = []

    def durable(token):
        while waiting and waiting[0][0] <= token:
            _, last = waiting.pop(0)
            store.set_hard_state(log, HardState(1, 1, max(last, log.commit_index)))
            print(f"{last:012d}", flush=True)
        loop.call_soon(append)

    def append():
        first = log.last_index + 1
        offset = log.next_offset
        entries = [
            StoredEntry(1, n, 0, f"{n}:".encode() * (n % 300), offset + n - first, 1, n)
            for n in range(first, first + rng.randint(1, 9))
        ]
        store.append(log, entries)
        waiting.append((store.submit(), log.last_index))

    store.on_durable = durable
    append()
    await asyncio.Event().wait()


asyncio.run(run(sys.argv[1]))
