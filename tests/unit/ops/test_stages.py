"""Execution of the stages of `make test`, which end exactly the processes that they start.

Each test has a small project of its own, whose stages are targets of its Makefile. Some leave a
process that detached itself, as the servers of `vdl up --detach` do: it holds a named pipe open, so
that the test detects its end without knowing its process id.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hangs import HANG_SECONDS

CI = Path(__file__).resolve().parents[3] / ".ci"
HOURS = 36_000
MAKEFILE = """
setup:
	@echo setting up
broken:
	@exit 1
passes:
	@true
leaves:
	@setsid --fork sh -c 'echo here; echo > up; exec sleep 3600' > held 2> /dev/null < /dev/null
	@read line < up
stays: leaves
	@sleep 3600
is-killed: leaves
	@kill -KILL $$PPID
"""
TEST_PART = """
import os
def test_tea_of_part_is_made():
    assert os.environ["PART"] == "17"
"""
TEST_SKIPPED = """
import pytest
@pytest.mark.parametrize("case", range(3))
def test_tea_without_kettle_is_skipped(case):
    if case:
        pytest.skip("no kettle: get one at the shop")
"""


@pytest.fixture(autouse=True)
def _hang_ups_count():
    """Restore SIGHUP, which children inherit: the tests may be run with it ignored (nohup)."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


class Project:
    """Stages in a directory of their own."""

    def __init__(self, folder):
        self.folder = folder
        self._rows = []
        self.stage_seconds = self.run_seconds = HOURS
        (folder / ".ci").mkdir()
        for name in ("stages.py", "scope.py"):
            shutil.copy(CI / name, folder / ".ci")
        (folder / "Makefile").write_text(MAKEFILE)
        os.mkfifo(folder / "held")
        os.mkfifo(folder / "up")
        self._held = os.open(folder / "held", os.O_RDONLY | os.O_NONBLOCK)

    def close(self):
        os.close(self._held)

    def stage(self, name, *, cpu_seconds=HOURS, setup="setup", more=""):
        lines = [
            "[[stage]]",
            f'name = "{name}"',
            f"cpu_seconds = {cpu_seconds}",
            f'setup = "{setup}"',
            more,
        ]
        self._rows += [*lines, ""]
        return self

    def start(self, **variables):
        limits = [f"stage_seconds = {self.stage_seconds}", f"run_seconds = {self.run_seconds}"]
        (self.folder / ".ci" / "budgets.toml").write_text("\n".join([*limits, *self._rows]))
        environment = {name: value for name, value in os.environ.items() if name != "CI"}
        return subprocess.Popen(
            [sys.executable, str(self.folder / ".ci" / "stages.py")],
            env=environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables):
        """Run the stages; return (exit code, output)."""
        return ended(self.start(**variables))

    def next_of_detached(self):
        """Wait for the detached process; return what it wrote, or nothing when it has ended."""
        poll = select.poll()
        poll.register(self._held, select.POLLIN)
        assert poll.poll(HANG_SECONDS * 1_000), "it neither came nor went"
        return os.read(self._held, 100)


def ended(process):
    text, _ = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, text


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("more", ["", "beside = true"], ids=["alone", "beside"])
def test_stages_that_are_ended_leave_no_process(project, number, more):
    """^C, a stopped service, a closed terminal, and SIGKILL."""
    process = project.stage("stays", more=f'make = "stays"\n{more}').start()
    assert project.next_of_detached() == b"here\n"
    process.send_signal(number)
    code, _ = ended(process)
    assert project.next_of_detached() == b""
    assert code == (-number if number == signal.SIGKILL else 130)


def test_stage_that_hangs_leaves_no_process(project):
    """A stage that hangs in CI is ended with all its processes."""
    project.stage_seconds = 1
    code, text = project.stage("stays", more='make = "stays"').run(CI="true")
    assert (project.next_of_detached(), project.next_of_detached()) == (b"here\n", b"")
    assert code == 1
    assert "ended after " in text


def test_run_that_takes_too_long_begins_no_stage(project):
    """The limit of the whole run ends what runs then, here a set-up; no stage follows."""
    project.run_seconds = 0
    project.stage("leaves", more='make = "leaves"').stage("other", more='make = "passes"')
    code, text = project.run(CI="true")
    assert code == 1
    assert "0 passed, 2 failed, 0 skipped" in text


@pytest.mark.parametrize(("target", "expected"), [("leaves", 0), ("is-killed", 1)])
def test_stage_that_ends_leaves_no_process(project, target, expected):
    """A stage that ends, also by SIGKILL, leaves no process.

    No fixture stops anything then. Remaining processes are named.
    """
    code, text = project.stage(target, more=f'make = "{target}"').run()
    assert (project.next_of_detached(), project.next_of_detached()) == (b"here\n", b"")
    assert code == expected
    assert "ended what was left running: " in text


def test_stages_end_only_what_they_started(project):
    """A server with the same command line that was started elsewhere continues."""
    with subprocess.Popen(["sleep", "3600"], start_new_session=True) as bystander:
        code, _ = project.stage("leaves", more='make = "leaves"').run()
        assert code == 0
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("ci", ["true", "false"])
def test_stage_over_its_budget_is_named_and_no_failure(project, ci):
    """The machine's speed says nothing about the code."""
    code, text = project.stage("slow", cpu_seconds=0, more='make = "passes"').run(CI=ci)
    assert code == 0
    assert "over their budgets of processor time: slow\n" in text


def test_limits_end_nothing_outside_ci(project):
    """A contributor's machine may be as slow as it is."""
    project.stage_seconds = project.run_seconds = 0
    code, _ = project.stage("passes", more='make = "passes"').run()
    assert code == 0


def test_stage_whose_set_up_fails_does_not_run(project):
    """A stage is skipped if its set-up fails, because its tests would report that failure.

    Others run.
    """
    project.stage("lame", setup="broken", more='make = "leaves"')
    code, text = project.stage("sound", more='make = "passes"').run()
    assert code == 1
    assert "its set-up failed: make broken" in text
    assert "1 passed, 1 failed, 0 skipped" in text


def test_stages_say_at_the_end_what_was_skipped(project):
    """One line a reason, at the end of the output; it explains how to get what is missing."""
    (project.folder / "test_kettle.py").write_text(TEST_SKIPPED)
    code, text = project.stage("tea", more='pytest = ["test_kettle.py"]').run()
    assert code == 0
    assert "2 skipped: no kettle: get one at the shop\n1 passed, 0 failed, 2 skipped\n" in text


def test_stages_get_the_part_of_long_lists_and_say_which(project):
    """The part is a number of the commit; PART repeats one."""
    (project.folder / "test_part.py").write_text(TEST_PART)
    project.stage("parts", more='pytest = ["test_part.py"]')
    code, text = project.run(PART="17")
    assert code == 0, text
    assert "ran with PART=17;" in text
    git = ["git", "-C", str(project.folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=a"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    code, text = project.run(PART="")
    assert f"ran with PART={int(head.stdout[:4], 16)};" in text
