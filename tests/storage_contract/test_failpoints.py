"""A real process killed at every failpoint, and the state that the next one finds.

At each failpoint a child runs until it is killed there. The directory is then opened and compared
with the model, which has executed the same steps: exactly what was acknowledged is there, the step
under way is there as a whole or not at all, and no operator has to act. The same directory is then
used again, and its process dies at the same failpoint once more.
"""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from segments.io import failpoint
from tests.storage_contract.conftest import DiskHarness, MemoryHarness
from tests.storage_contract.steps import OPTIONS, Step, applied, create, draw, stage

pytestmark = pytest.mark.takes_turns(parts=2)

ROOT = Path(__file__).resolve().parents[2]
STAGED = ("append", "hard", "reset", "trim")
PLACES = [name for name in failpoint.POINTS if not name.startswith("compact.")]
"""Failpoints that steps pass; test_compaction.py covers the others."""
CHILD = Path(__file__).with_name("live_until_killed.py")


class Doing:
    """Harness that executes steps."""

    def do(self, step):
        if step.kind in {"create", "renew"}:
            create(self.store, step, lambda log: None)
            self.pump()
        elif step.kind == "checkpoint":
            self.collect(*applied(self.store, step))
            self.checkpoint()
        else:
            staged = []
            if stage(self.store, step, lambda: staged.append(True)):
                self.pump()
                if not staged:  # the store has failed
                    self.token = self.store.durable_token + 1
                    return
            self.submit()


class Model(Doing, MemoryHarness):
    """Memory store that executes the steps that the child reported."""


class Engine(Doing, DiskHarness):
    """Disk engine in this process, for failures that it reports itself."""

    def submit(self):
        self.token = self.store.submit()
        self.pump()

    def checkpoint(self):
        self.store.checkpoint()
        self.workers.advance(200)


def run_child(directory, seed, failpoints):
    """Return (exit code, steps begun, steps done) of a child that runs until it is killed."""
    child = subprocess.run(
        [sys.executable, str(CHILD), str(directory), seed],
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), failpoint.VARIABLE: failpoints},
        text=True,
        timeout=60,
        check=False,
    )
    said = re.findall(r"^(begun|done) (\d{8})$", child.stdout, re.MULTILINE)
    begun = sum(word == "begun" for word, _ in said)
    assert child.returncode == -signal.SIGKILL, (failpoints, child.returncode, child.stderr)
    return begun, len(said) - begun


def seen(harness):
    """Return everything that a store shows of its logs."""
    return {
        log_id: (
            log.group_id, log.replica_number, log.first_index, log.last_index, log.hard_state,
            log.log_start_offset, log.next_offset, log.installed_state, log.applied_index,
            [log.term(n) for n in range(log.first_index - 1, log.last_index + 1)],
            log.offset_after(log.first_index - 1),
            harness.all_entries(log), harness.store.load_meta(log),
        )
        for log_id, log in harness.store.logs.items()
    }  # fmt: skip


def at(where):
    """Return the failpoints of the loop, of jobs, or of the start."""
    return [name for name in PLACES if failpoint.POINTS[name].startswith(where)]


def settle(model, found, step):
    """Bring the model to the state in which the store was found, if that is an allowed one."""
    if seen(model) == found:
        return
    if step.kind == "append" and step.count > 1:
        # If it is too large for a file, a prefix of it may have been written.
        last = found[step.log_id][3]
        assert step.index <= last < step.index + step.count, (step, last)
        step = Step("append", step.log_id, last + 1 - step.index, step.size, step.index, step.term)
    model.do(step)
    model.reopen()
    assert seen(model) == found, step


@pytest.mark.parametrize("name", PLACES)
def test_store_killed_at_a_failpoint_has_exactly_what_was_acknowledged(name, tmp_path):
    """A store killed at any step has exactly what was acknowledged.

    The kill is -9, at every step of append, checkpoint, roll, truncate, install, trim, delete,
    recycling, identity and meta writes; and again after the recovery from that.
    """
    directory = tmp_path / "data"
    model = Model(OPTIONS)
    model.start()
    for life in range(2):
        seed = f"{name} {life}"
        nth = 1 if name.startswith("open.") else 1 + (zlib.crc32(seed.encode()) % 4)
        begun, done = run_child(directory, seed, f"{name}:kill@{nth}")
        rng = random.Random(seed)
        for _ in range(done):
            model.do(draw(rng, model.store.logs))
        assert begun - done in {0, 1}
        under_way = draw(rng, model.store.logs)
        model.reopen()
        store = DiskHarness(OPTIONS, directory=str(directory))
        store.start()
        assert not any(log.lost for log in store.store.logs.values())
        if begun > done:
            settle(model, seen(store), under_way)
        assert seen(store) == seen(model)
        assert store.fatal == []
        store.crash()


@pytest.mark.parametrize("name", at("job"))
def test_store_told_of_a_failure_says_so_once_and_acknowledges_nothing_after(
    name, tmp_path, request
):
    """A failed write, sync or rename is fatal and is reported once through `on_fatal`.

    A start by reading the disk finds what had been acknowledged.
    """
    request.addfinalizer(lambda: failpoint.arm(""))
    model = Model(OPTIONS)
    engine = Engine(OPTIONS, directory=str(tmp_path / "data"))
    model.start()
    engine.start()
    failpoint.arm(f"{name}:error@3")
    rng = random.Random(name)
    while not engine.fatal:
        step = draw(rng, model.store.logs)
        engine.do(step)
        is_acknowledged = step.kind in STAGED and engine.store.durable_token >= engine.token
        if not engine.fatal or is_acknowledged:
            model.do(step)
    durable = engine.store.durable_token
    engine.store.submit()
    engine.workers.advance(5000)
    assert engine.store.durable_token == durable
    assert len(engine.fatal) == 1
    failpoint.arm("")
    engine.reopen()
    model.reopen()
    if is_acknowledged:
        assert seen(engine) == seen(model)
    else:
        settle(model, seen(engine), step)
    engine.crash()


@pytest.mark.parametrize("name", at("start"))
def test_start_that_failed_can_be_tried_again(name, tmp_path, request):
    """The next start finds the same state, however far the failed one got."""
    request.addfinalizer(lambda: failpoint.arm(""))
    model = Model(OPTIONS)
    engine = Engine(OPTIONS, directory=str(tmp_path / "data"))
    rng = random.Random(name)
    model.start()
    engine.start()
    for _ in range(120):
        step = draw(rng, model.store.logs)
        engine.do(step)
        model.do(step)
    engine.crash()
    model.reopen()
    for _ in range(3):
        failpoint.arm(f"{name}:error")
        with pytest.raises(OSError, match=name):
            engine.start()
    failpoint.arm("")
    engine.start()
    assert seen(engine) == seen(model)
    engine.crash()


def test_failpoints_named_are_those_passed():
    """The table and the code name the same failpoints."""
    passed = set()
    for source in (ROOT / "segments").rglob("*.py"):
        if source.name != "failpoint.py":
            passed |= set(
                re.findall(r'failpoint\.(?:hit|is_due|act)\(\s*"([a-z_.]+)"', source.read_text())
            )
    assert passed | {"truncate.staged", "append.staged"} == set(failpoint.POINTS)


def test_failpoints_are_parsed_and_counted(request):
    """Syntax: name:action[@n], separated by commas; a name that is not in the table is refused."""
    request.addfinalizer(lambda: failpoint.arm(""))
    failpoint.arm("trim.begun:error@2, meta.committed:enospc,identity.written:delay(1)")
    failpoint.hit("trim.begun")
    with pytest.raises(OSError, match=r"trim\.begun"):
        failpoint.hit("trim.begun")
    failpoint.hit("trim.begun")
    for _ in range(2):
        with pytest.raises(OSError) as caught:
            failpoint.hit("meta.committed")
        assert caught.value.errno == errno.ENOSPC
    failpoint.hit("identity.written")
    failpoint.hit("open.done")
    for wrong in ("nowhere:kill", "trim.begun", "trim.begun:explode", "trim.begun:delay"):
        with pytest.raises(ValueError, match=failpoint.VARIABLE):
            failpoint.arm(wrong)
