"""`make suites`: other projects' own tests of a Kafka cluster, unmodified, against VDL servers.

    python -m tests.suites.run                     all of them, each on servers of its own
    python -m tests.suites.run librdkafka          some
    python -m tests.suites.run javatools FILTER    one, and of it the tests that match the filter

The suites are programs in the folder that SUITES names: `run_<suite> BOOTSTRAP [FILTER]`, which
print `FAILED NAME (why)` and `skipped NAME (why)`, and at last `SUITE: N passed, N failed, N
skipped`. Where the folder is missing nothing runs, and the command reports that.

`expected.toml` names each test that is known to fail, with its reason. The command fails when a
test fails that is not named there, and when one that is named passes: so the list stays true.

Does not depend on what any of the tests does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.harness.replica_set import ROOT, ReplicaSet

FOLDER = Path(os.environ.get("SUITES") or ROOT.parent / "shared" / "suites")
EXPECTED_FILE = Path(__file__).with_name("expected.toml")
SUITES = ("librdkafka", "kafkapython", "javatools")
SETTINGS = {
    "kafka.num.partitions": 4,
    "security.authorizer": True,
    "kafka.allow.everyone.if.no.acl.found": True,
}
"""librdkafka's tests presume this number of partitions of a topic without a setting.

Tests of ACLs need an authorizer; the others one that allows everything.
"""

_OUTCOME = re.compile(r"(FAILED|skipped) (.+?)(?: \((.*)|)$")
_SUMMARY = re.compile(r"\w+: (\d+) passed, (\d+) failed, (\d+) skipped")


@dataclass(frozen=True, slots=True)
class Expected:
    """Known failures of one suite: test -> reason."""

    fails: dict[str, str] = field(default_factory=dict)
    """Tests that always fail. If one passes, the list is wrong."""
    may_fail: dict[str, str] = field(default_factory=dict)
    """Tests that fail sometimes; on Kafka as well where the reason says so."""


@dataclass(slots=True)
class Outcome:
    """Result of one run of a suite."""

    suite: str
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Test -> the suite's message."""
    skipped: set[str] = field(default_factory=set)
    is_complete: bool = False
    """True if it printed its number of passed tests; without that the run itself broke down."""

    def read(self, line: str) -> None:
        """Parse one line of the suite's output."""
        if found := _SUMMARY.fullmatch(line):
            self.passed, self.is_complete = int(found[1]), True
        elif found := _OUTCOME.fullmatch(line):
            if found[1] == "FAILED":
                self.failed[found[2]] = f"({found[3]}" if found[3] else ""
            else:
                self.skipped.add(found[2])

    def problems(self, expected: Expected, *, is_whole: bool) -> list[str]:
        """Return the problems that make the command fail.

        `is_whole`: no filter omitted anything.
        """
        found = [] if self.is_complete else [f"{self.suite}: did not say how many passed"]
        known = expected.fails.keys() | expected.may_fail.keys()
        found += [
            f"{self.suite}: {name} fails and is not in {EXPECTED_FILE.name} {why}".rstrip()
            for name, why in sorted(self.failed.items())
            if name not in known
        ]
        if is_whole and self.is_complete:
            found += [
                f"{self.suite}: {name} is in {EXPECTED_FILE.name} and does not fail"
                for name in sorted(expected.fails.keys() - self.failed.keys())
            ]
        return found


def load_expected(path: Path = EXPECTED_FILE) -> dict[str, Expected]:
    """Return the lists by suite."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return {suite: Expected(**tables) for suite, tables in document.items()}


def run_suite(suite: str, chosen: str) -> Outcome:
    """Run one suite on new servers; its output appears as it comes."""
    servers = ReplicaSet(3)
    outcome = Outcome(suite)
    try:
        servers.configure(SETTINGS)
        servers.up()
        command = [str(FOLDER / f"run_{suite}"), servers.bootstrap, *([chosen] if chosen else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                outcome.read(line.rstrip())
    finally:
        servers.close(failed="" if outcome.is_complete else f"suite-{suite}")
    return outcome


def report(outcomes: Iterable[Outcome], expected: dict[str, Expected], *, is_whole: bool) -> int:
    """Print each result and its problems; return the exit code."""
    problems: list[str] = []
    print()
    for outcome in outcomes:
        known = expected.get(outcome.suite, Expected())
        print(
            f"{outcome.suite}: {outcome.passed} passed, {len(outcome.failed)} failed, "
            f"{len(outcome.skipped)} skipped"
        )
        for name in sorted(outcome.failed):
            reason = known.fails.get(name) or known.may_fail.get(name) or "NOT NAMED"
            print(f"  {name}: {reason}")
        problems += outcome.problems(known, is_whole=is_whole)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Run other projects' tests of a Kafka cluster.")
    parser.add_argument("suite", nargs="?", choices=SUITES, help="only this one")
    parser.add_argument("filter", nargs="?", default="", help="of it, what matches")
    arguments = parser.parse_args()
    if not FOLDER.is_dir():
        print(f"suites: skipped: there is no folder {FOLDER} (SUITES names another)")
        return 0
    outcomes = []
    for suite in [arguments.suite] if arguments.suite else SUITES:
        began = time.monotonic()
        outcomes.append(run_suite(suite, arguments.filter))
        print(f"{suite}: {time.monotonic() - began:.0f} s", flush=True)
    return report(outcomes, load_expected(), is_whole=not arguments.filter)


if __name__ == "__main__":
    sys.exit(main())
