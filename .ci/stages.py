"""Runs the test stages of budgets.toml, and names those that became slow.

First the set-ups of the stages run sequentially, and show their output. Then the stages run in the
order of the file, one after the other. Stages marked `beside` need one processor and no idle
machine: consecutive ones run two at a time. Their output appears when they end.

A budget is processor time on a quiet machine. A shared one may be half as fast for hours, so a
small fixed piece of work is timed all through a stage, and the stage's time is divided by how much
longer that piece took than on a quiet machine. A stage over its budget is named at the end; it
fails nothing. In CI two wide limits in seconds end what hangs: one for each stage, one for the run.

Long lists of tests run in parts, which take turns (tests/parts.py). The variable PART selects one,
by default a number from the name of the commit; the closing lines say which. `PART=all` runs whole
lists.

Each stage runs in a scope (scope.py) that ends everything the stage started, however the stage
ends. ^C, SIGTERM and SIGHUP end the running stages, and then this process.

    stages.py [--ci] [NAME...]

Every stage writes a JUnit file from which the counts are read, so that the last line, `N passed, N
failed, N skipped`, is the sum of the tests that really ran. Exits with 1 when a test failed, a
stage hung or broke down, when a set-up failed, or when no test ran at all: silence is not success.
Skipped tests are listed after the table, one line for each reason.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import IO, Any

from scope import GRACE_SECONDS, KILL_SECONDS_MAX

ROOT = Path(__file__).resolve().parent.parent
SCOPE = Path(__file__).with_name("scope.py")
RESULTS = ROOT / "build" / "test-results"
LOOPS = 250_000
LOOPS_SECONDS = 0.005
"""Time of `LOOPS` empty loops on the machine for which the budgets are set."""
LOOPS_EVERY_SECONDS = 5.0
BESIDE = min(2, os.cpu_count() or 1)
"""Number of `beside` stages that run at a time."""
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
MEMORY_BYTES_MIN = 4 << 30
POLL_SECONDS = 0.05
END_SECONDS_MAX = 2 * (GRACE_SECONDS + KILL_SECONDS_MAX)
"""Time limit within which a terminated scope has ended."""


@dataclass
class Stage:
    """One row of budgets.toml."""

    name: str
    cpu_seconds: int
    """The budget: processor time on a quiet machine."""
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
        # Without the cache of last failures: concurrent stages would share its files.
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        return [sys.executable, "-m", "pytest", *options, *self.pytest]


@dataclass
class Outcome:
    """Result of one stage. `problem` is empty unless the stage as a whole failed."""

    stage: Stage
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Reasons for skipped tests, and their numbers."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Processor time of the stage and of all that it started."""
    slowness: float = 1.0
    """How much longer a fixed piece of work took meanwhile than on a quiet machine."""
    problem: str = ""

    @property
    def is_slow(self) -> bool:
        return self.cpu_seconds / self.slowness > self.stage.cpu_seconds


@dataclass(frozen=True)
class Limits:
    """Times after which a stage, and the whole run, are taken for hanging."""

    stage_seconds: float
    run_ends: float
    """By the monotonic clock."""

    def deadline(self) -> float:
        """Return the time at which a stage that begins now is ended."""
        return min(time.monotonic() + self.stage_seconds, self.run_ends)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the test stages of budgets.toml.")
    parser.add_argument("--ci", action="store_true", help="also the stages marked `ci = true`")
    parser.add_argument("names", nargs="*", help="only these stages")
    arguments = parser.parse_args()
    began = time.monotonic()
    with (ROOT / ".ci" / "budgets.toml").open("rb") as file:
        budgets: dict[str, Any] = tomllib.load(file)
    stages = [Stage(**row) for row in budgets["stage"]]
    unknown = sorted(set(arguments.names) - {stage.name for stage in stages})
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}")
    wanted = [
        stage
        for stage in stages
        if (stage.name in arguments.names if arguments.names else arguments.ci or not stage.ci)
    ]
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, signal.default_int_handler)
    try:
        limits = Limits(math.inf, math.inf)
        if arguments.ci or os.environ.get("CI") == "true":
            limits = Limits(budgets["stage_seconds"], began + budgets["run_seconds"])
        return run(wanted, limits)
    except KeyboardInterrupt:
        print("\nended before its time", file=sys.stderr)
        return 130


def run(stages: Sequence[Stage], limits: Limits) -> int:
    """Set up and run the stages; return the exit code."""
    began = time.monotonic()
    scopes = Scopes()
    problems = {
        setup: set_up(setup, scopes, limits)
        for setup in dict.fromkeys(stage.setup for stage in stages)
    }
    outcomes: list[Outcome] = []
    ready = [stage for stage in stages if not problems[stage.setup]]
    for beside, group in groupby(ready, key=lambda stage: stage.beside):
        if beside:
            outcomes += run_beside(list(group), scopes, limits)
        else:
            outcomes += [run_alone(stage, scopes, limits) for stage in group]
    outcomes += [
        Outcome(stage, problem=problems[stage.setup]) for stage in stages if problems[stage.setup]
    ]
    return report(outcomes, time.monotonic() - began)


class Scopes:
    """Running scopes; several threads start them, one ends them all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._started: list[subprocess.Popen[bytes]] = []
        self._ended = False

    def start(
        self, command: list[str], env: dict[str, str] | None = None, output: IO[bytes] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a scope.

        Its session is its own: ^C reaches it through this process. Raises KeyboardInterrupt after
        `end_all`.
        """
        with self._lock:
            if self._ended:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                [sys.executable, str(SCOPE), str(os.getpid()), *command],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
            )
            self._started.append(process)
            return process

    def end_all(self) -> None:
        """Terminate every scope; no further one is started."""
        with self._lock:
            self._ended = True
            for process in self._started:
                process.terminate()


def set_up(target: str, scopes: Scopes, limits: Limits) -> str:
    """Run a set-up, which shows its output; return what went wrong, or nothing."""
    process = scopes.start([*make(target), "--silent"])
    try:
        wait(process, limits.deadline())
    except subprocess.TimeoutExpired:
        return f"its set-up did not end: make {target}"
    finally:
        end(process)
    return f"its set-up failed: make {target}" if process.returncode else ""


def make(target: str) -> list[str]:
    return ["make", "--no-print-directory", target]


def slowness() -> float:
    """Return how much longer the loops take now than on a quiet machine."""
    before = time.thread_time()
    for _ in range(LOOPS):
        pass
    return (time.thread_time() - before) / LOOPS_SECONDS


def run_alone(stage: Stage, scopes: Scopes, limits: Limits) -> Outcome:
    """Run one stage, which prints as it runs."""
    print(head(stage), flush=True)
    return run_stage(stage, scopes, limits)


def run_beside(stages: Sequence[Stage], scopes: Scopes, limits: Limits) -> list[Outcome]:
    """Run stages concurrently; return the outcomes in the order of `stages`."""
    print(f"\n=== {BESIDE} at a time: {', '.join(stage.name for stage in stages)}", flush=True)

    def run(stage: Stage) -> Outcome:
        with tempfile.TemporaryFile() as output:
            outcome = run_stage(stage, scopes, limits, output)
            output.seek(0)
            text = output.read().decode(errors="replace")
        print(f"{head(stage)}\n{text}", end="", flush=True)
        return outcome

    with ThreadPoolExecutor(BESIDE) as pool:
        futures = [pool.submit(run, stage) for stage in stages]
        try:
            return [future.result() for future in futures]
        except BaseException:
            # ^C: running stages are ended, waiting ones do not begin.
            pool.shutdown(wait=False, cancel_futures=True)
            scopes.end_all()
            raise


def head(stage: Stage) -> str:
    return f"\n=== {stage.name} (budget: {stage.cpu_seconds} s of processor time)"


def run_stage(
    stage: Stage, scopes: Scopes, limits: Limits, output: IO[bytes] | None = None
) -> Outcome:
    """Run one stage in a scope of its own, so that nothing it started outlives it.

    It prints to `output` if given.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = RESULTS / f"{stage.name.replace(' ', '-')}.xml"
    results.unlink(missing_ok=True)
    outcome = Outcome(stage)
    started, deadline = time.monotonic(), limits.deadline()
    if started >= deadline:
        outcome.problem = "not run: the run took too long"
        return outcome
    with files_of(stage) as temporary:
        env = {**environment(), **temporary, **stage.env}
        process = scopes.start(stage.command(results), env, output)
        try:
            outcome.cpu_seconds, outcome.slowness = wait(process, deadline)
            code = process.returncode
        except subprocess.TimeoutExpired:
            outcome.problem = f"ended after {time.monotonic() - started:.0f} s"
            code = -1
        finally:
            end(process)
    outcome.seconds = time.monotonic() - started
    if stage.make:
        outcome.passed, outcome.failed = (1, 0) if code == 0 else (0, 1)
    else:
        read_counts(results, outcome)
    if not outcome.problem and code != 0 and not outcome.failed:
        outcome.problem = "no test ran" if code == 5 else f"ended with exit code {code}"
    return outcome


def part() -> str:
    """Return the number that selects the parts of long lists: from the name of the commit."""
    if os.environ.get("PART"):
        return os.environ["PART"]
    command = ["git", "rev-parse", "--short=4", "HEAD"]
    head = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return str(int(head.strip()[:4] or "0", 16))


def environment() -> dict[str, str]:
    """Return the environment, in which Python may write bytecode, and which selects the parts.

    A stage starts hundreds of servers, workers and clients: without bytecode each compiles all that
    it loads, which is half of a server's start time, and pytest rewrites the assertions of all
    tests anew.
    """
    environment = {**os.environ, "PART": part()}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def has_memory() -> bool:
    """Return True if a file system in memory has enough space and may hold programs."""
    if not MEMORY.is_dir() or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN


@contextmanager
def files_of(stage: Stage) -> Iterator[dict[str, str]]:
    """Yield the variables that name the folder of a stage's temporary files.

    For a stage marked `memory` it is a folder in memory if there is enough, else the default.
    """
    if not stage.memory or not has_memory():
        yield {}
        return
    with tempfile.TemporaryDirectory(
        prefix="vdl-stage-", dir=MEMORY, ignore_cleanup_errors=True
    ) as name:
        yield {"TMPDIR": name}


def wait(process: subprocess.Popen[bytes], deadline: float) -> tuple[float, float]:
    """Wait until it has ended; return its processor time, and the machine's slowness meanwhile.

    Raises TimeoutExpired at the deadline.
    """
    measured = [slowness()]
    measure_next = time.monotonic() + LOOPS_EVERY_SECONDS
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime, max(1.0, fmean(measured))
        now = time.monotonic()
        if now > deadline:
            raise subprocess.TimeoutExpired(process.args, 0)
        if now > measure_next:
            measured.append(slowness())
            measure_next = now + LOOPS_EVERY_SECONDS
        time.sleep(POLL_SECONDS)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a scope, if it still runs, and everything that its command started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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
        for skip in suite.iter("skipped"):
            outcome.reasons[skip.get("message", "")] += 1


def report(outcomes: list[Outcome], seconds: float) -> int:
    """Print one line a stage and the closing line; return the exit code. `seconds`: total time."""
    print(
        f"\n{'stage':<20}{'seconds':>9}{'CPU':>8}{'slowness':>10}{'budget':>8}"
        f"{'passed':>8}{'failed':>8}{'skipped':>9}"
    )
    for outcome in outcomes:
        print(
            f"{outcome.stage.name:<20}{outcome.seconds:>9.1f}{outcome.cpu_seconds:>8.0f}"
            f"{outcome.slowness:>10.2f}{outcome.stage.cpu_seconds:>8}"
            f"{outcome.passed:>8}{outcome.failed:>8}{outcome.skipped:>9}  {outcome.problem}"
        )
    passed = sum(outcome.passed for outcome in outcomes)
    # A stage that broke down without a failed test counts as one failure.
    failed = sum(outcome.failed or bool(outcome.problem) for outcome in outcomes)
    skipped = sum(outcome.skipped for outcome in outcomes)
    reasons = sum((outcome.reasons for outcome in outcomes), Counter[str]())
    slow = [outcome.stage.name for outcome in outcomes if outcome.is_slow]
    cpu_seconds = sum(outcome.cpu_seconds for outcome in outcomes)
    print(f"{'all':<20}{seconds:>9.1f}{cpu_seconds:>8.0f}\n")
    if slow:
        print("over their budgets of processor time:", ", ".join(slow))
    print(f"ran with PART={part()}; PART=all runs whole lists")
    for reason, count in sorted(reasons.items()):
        print(f"{count} skipped: {reason}")
    if passed + failed == 0:
        print("no test ran")
        return 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
