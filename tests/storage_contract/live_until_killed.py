"""Child process of test_failpoints: executes steps and reports them, until a failpoint ends it.

Prints "begun N" before step N is staged and "done N" when it is durable. The exit code is 3 when
all steps are done.
"""

import asyncio
import os
import random
import sys

import segments.store
from segments.io.fs import RealFileSystem
from segments.io.workers import ThreadWorkers
from segments.store import DiskStore
from tests.storage_contract.steps import OPTIONS, applied, create, draw, entries_of, stage

STEPS = 4000

segments.store.ROOM_LOOKS = 1
"""The room of a large entry often awaits the commit of the one before, which comes with a later
step here. All fifty looks take five seconds for each such entry."""


def say(word, number):
    os.write(1, f"{word} {number:08d}\n".encode())


async def live(directory, seed):
    loop = asyncio.get_running_loop()
    workers = ThreadWorkers(
        loop.call_soon_threadsafe, lambda delay_ms, fn: loop.call_later(delay_ms / 1000, fn)
    )
    store = DiskStore.open(RealFileSystem(), directory, workers, OPTIONS, random.Random(seed))
    store.on_fatal = lambda error: os._exit(4)
    waiting = {}

    def durable(token):
        for waited in [t for t in waiting if t <= token]:
            waiting.pop(waited).set_result(None)

    store.on_durable = durable
    rng = random.Random(seed)
    for number in range(STEPS):
        step = draw(rng, store.logs)
        say("begun", number)
        done = loop.create_future()
        if step.kind in {"create", "renew"}:
            create(store, step, done.set_result)
            await done
        elif step.kind == "checkpoint":
            await checkpoint(loop, store, step)
        else:
            entries = None
            if step.kind == "append" and step.size >= store.ahead_bytes_min:
                entries = entries_of(store, step)
                await write_ahead(loop, store, store.logs[step.log_id], *entries)
            stage(store, step, entries)
            token = store.submit()
            if token > store.durable_token:  # a step may change nothing
                waiting[token] = done
                await done
        say("done", number)
    os._exit(3)


async def write_ahead(loop, store, log, entry):
    """Write a large entry to its place before it is appended."""
    done = loop.create_future()
    store.write_ahead(
        log, entry.data, timestamp=entry.timestamp, is_wanted=lambda: True,
        done=lambda: done.set_result(None),
    )  # fmt: skip
    await done


async def checkpoint(loop, store, step):
    """Run until a checkpoint that includes the step's batches has ended."""
    taken = []

    def collect(logs):
        if taken:
            return []
        taken.append(True)
        return applied(store, step)

    store.collect_meta = collect
    was_taken = False
    while not was_taken:
        # A checkpoint that begins before this task resumes may include them and still be running.
        was_taken = bool(taken)
        done = loop.create_future()
        store.checkpoint(lambda done=done: done.set_result(None))
        await done
    store.collect_meta = lambda logs: []


asyncio.run(live(sys.argv[1], sys.argv[2]))
