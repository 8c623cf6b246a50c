"""Runs the test stages of budgets.toml, each within its budget.

Stages run in the order of the file, one after the other. Stages marked `beside` need one processor
and no quiet machine: those that follow one another run two at a time. What they print appears when
they end.

Budgets are for a quiet machine. A shared one may be half as fast for hours: what a fixed piece of
work takes then, in processor time, stretches them, at most to twice.

    stages.py [--ci] [NAME...]

Every stage writes a JUnit file; the counts are read from it, so that the last line, `N passed,
N failed, N skipped`, is a sum of what really ran. Exits with 1 when a test failed, a stage
outlived its budget or broke down, or when no test ran at all: silence is not success.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
LOOPS = 1_000_000
LOOPS_SECONDS = 0.02
"""What so many empty loops take on the machine that the budgets are for."""
STRETCH_MAX = 2.0
BESIDE = min(2, os.cpu_count() or 1)
"""Stages that run at one time, of those that may."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
MEMORY_BYTES_MIN = 4 << 30
POLL_SECONDS = 0.05
GRACE_SECONDS = 10
"""Between the request to end (SIGINT, so that fixtures stop their servers) and SIGKILL."""


@dataclass
class Stage:
    """One row of budgets.toml."""

    name: str
    seconds: int
    setup: str
    pytest: list[str] = field(default_factory=list)
    make: str = ""
    env: dict[str, str] = field(default_factory=dict)
    ci: bool = False
    beside: bool = False
    memory: bool = False

    def command(self, report: Path) -> list[str]:
        if self.make:
            return make(self.make)
        # Without the cache of last failures: stages that run at one time would share its files.
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        return [sys.executable, "-m", "pytest", *options, *self.pytest]


@dataclass
class Outcome:
    """What one stage came to. `problem` is empty unless the stage as a whole failed."""

    stage: Stage
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the stage and of all it waited for; of servers that go their own ways, as
    those of `vdl up` do, it knows nothing."""
    problem: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test stages of budgets.toml.")
    parser.add_argument("--ci", action="store_true", help="also the stages marked `ci = true`")
    parser.add_argument("names", nargs="*", help="only these stages")
    arguments = parser.parse_args()
    stages = load_stages()
    unknown = sorted(set(arguments.names) - {stage.name for stage in stages})
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}")
    wanted = [
        stage
        for stage in stages
        if (stage.name in arguments.names if arguments.names else arguments.ci or not stage.ci)
    ]
    began = time.monotonic()
    for setup in dict.fromkeys(stage.setup for stage in wanted if stage.setup):
        # What fails here is what its stage fails of, which needs the same.
        subprocess.run(make(setup), cwd=ROOT, check=False)
    outcomes: list[Outcome] = []
    for beside, group in groupby(wanted, key=lambda stage: stage.beside):
        if beside:
            outcomes += run_beside(list(group))
        else:
            outcomes += [run_alone(stage) for stage in group]
    return report(outcomes, time.monotonic() - began)


def make(target: str) -> list[str]:
    return ["make", "--no-print-directory", target]


def stretch() -> float:
    """How many times as long a piece of work takes as it should: the quickest of some."""
    taken: list[float] = []
    for _ in range(5):
        before = time.process_time()
        for _ in range(LOOPS):
            pass
        taken.append(time.process_time() - before)
    return min(max(min(taken) / LOOPS_SECONDS, 1.0), STRETCH_MAX)


def load_stages() -> list[Stage]:
    with (ROOT / ".ci" / "budgets.toml").open("rb") as file:
        rows: list[dict[str, Any]] = tomllib.load(file)["stage"]
    return [Stage(**row) for row in rows]


def run_alone(stage: Stage) -> Outcome:
    """Run one stage, which prints as it goes."""
    stage.seconds = round(stage.seconds * stretch())
    print(head(stage), flush=True)
    return run_stage(stage, [])


def run_beside(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages as many at a time as may; the outcomes in the order of `stages`."""
    stretched = stretch()
    for stage in stages:
        stage.seconds = round(stage.seconds * stretched)
    print(f"\n=== {BESIDE} at a time: {', '.join(stage.name for stage in stages)}", flush=True)
    processes: list[subprocess.Popen[bytes]] = []

    def run(stage: Stage) -> Outcome:
        with tempfile.TemporaryFile() as output:
            outcome = run_stage(stage, processes, output)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(f"{head(stage)}\n{text}", end="", flush=True)
        return outcome

    with ThreadPoolExecutor(BESIDE) as pool:
        futures = [pool.submit(run, stage) for stage in stages]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # ^C: what runs is ended, what waits does not begin.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                end_group(process)
            raise


def head(stage: Stage) -> str:
    return f"\n=== {stage.name} (at most {stage.seconds} s)"


def run_stage(
    stage: Stage, processes: list[subprocess.Popen[bytes]], output: IO[bytes] | None = None
) -> Outcome:
    """Run one stage in a process group of its own, so that nothing it started outlives it. Its
    process is added to `processes`. It prints to `output` if given."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / f"{stage.name.replace(' ', '-')}.xml"
    results.unlink(missing_ok=True)
    outcome = Outcome(stage)
    started = time.monotonic()
    with files_of(stage) as temporary:
        process = subprocess.Popen(
            stage.command(results),
            cwd=ROOT,
            env={**environment(), **temporary, **stage.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
        )
        processes.append(process)
        try:
            outcome.cpu_seconds = wait(process, stage.seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            outcome.problem = f"over its budget of {stage.seconds} s"
            code = -1
        finally:
            end_group(process)
    outcome.seconds = time.monotonic() - started
    if stage.make:
        outcome.passed, outcome.failed = (1, 0) if code == 0 else (0, 1)
    else:
        read_counts(results, outcome)
    if not outcome.problem and code != 0 and not outcome.failed:
        outcome.problem = "no test ran" if code == 5 else f"ended with exit code {code}"
    return outcome


def environment() -> dict[str, str]:
    """What there is, but that Python may keep bytecode. A stage starts servers, workers and clients
    by the hundred: without it each compiles all that it loads, which is half of what a server's
    start takes, and pytest rewrites the assertions of all tests anew."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def has_memory() -> bool:
    """Whether there is a file system in memory with room, from which programs may be run."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN


@contextmanager
def files_of(stage: Stage) -> Iterator[dict[str, str]]:
    """The variables that say where a stage's temporary files go: those of one marked `memory` into
    memory where there is enough of it, and else to where they always go."""
    if not stage.memory or not has_memory():
        yield {}
        return
    with tempfile.TemporaryDirectory(
        prefix="vdl-stage-", dir=MEMORY, ignore_cleanup_errors=True
    ) as name:
        yield {"TMPDIR": name}


def wait(process: subprocess.Popen[bytes], seconds: float) -> float:
    """Return when it has ended, with its processor time; raises TimeoutExpired after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, seconds)
        time.sleep(POLL_SECONDS)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End whatever is left of the stage's process group."""
    for number, wait_seconds in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=wait_seconds)
        except subprocess.TimeoutExpired:
            continue


def read_counts(results: Path, outcome: Outcome) -> None:
    """Add up the suites of a JUnit file; a missing file counts nothing."""
    if not results.exists():
        return
    root = ET.parse(results).getroot()  # noqa: S314 - written by our own pytest a moment ago
    for suite in root.iter("testsuite"):
        total, failures, errors, skipped = (
            int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
        )
        outcome.failed += failures + errors
        outcome.skipped += skipped
        outcome.passed += total - failures - errors - skipped


def report(outcomes: list[Outcome], seconds: float) -> int:
    """Print one line a stage and the closing line; the exit code. `seconds`: all of it took."""
    print(
        f"\n{'stage':<20}{'seconds':>9}{'budget':>8}{'CPU':>8}"
        f"{'passed':>8}{'failed':>8}{'skipped':>9}"
    )
    for outcome in outcomes:
        stage = outcome.stage
        print(
            f"{stage.name:<20}{outcome.seconds:>9.1f}{stage.seconds:>8}{outcome.cpu_seconds:>8.0f}"
            f"{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}  {outcome.problem}"
        )
    passed = sum(outcome.passed for outcome in outcomes)
    # A stage that broke down without a failed test is one failure of its own.
    failed = sum(outcome.failed or bool(outcome.problem) for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    cpu_seconds = sum(outcome.cpu_seconds for outcome in outcomes)
    print(f"{'all':<20}{seconds:>9.1f}{cpu_seconds:>16.0f}\n")
    if passed + failed == 0:
        print("no test ran")
        return 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
