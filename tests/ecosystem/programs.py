"""Programs of Kafka's ecosystem, unmodified, fetched from Maven Central and run as processes.

Libraries are fetched once into `.cache/ecosystem`. A program is a process of its own. Its output
goes to a file, and is part of the message of a failed wait.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.clients.go_program import BUILD_SECONDS_MAX, digest

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "ecosystem"
HERE = Path(__file__).parent
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"
WAIT_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 30.0
TOOL_SECONDS_MAX = 90
POLL_SECONDS = 0.1
LOG_BYTES_SHOWN = 4_000
# The serial collector and the first compiler only: these processes run for seconds.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m")
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"


def libraries(project: str) -> Path:
    """Return the folder with everything that `<project>/pom.xml` names.

    Skip the test if it is unavailable.
    """
    pom = HERE / project / "pom.xml"
    folder = CACHE / f"{project}-{digest([pom])}"
    if not folder.exists():
        require("mvn")
        partial = _fresh(folder)
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={partial}"]
        fetched = subprocess.run(
            command, check=False, timeout=BUILD_SECONDS_MAX, capture_output=True, text=True
        )
        if fetched.returncode:
            pytest.skip(f"Maven Central cannot be reached: {fetched.stdout[-300:].strip()}")
        partial.rename(folder)
    return folder


def classes(project: str) -> str:
    """Return a class path with the libraries of a project and its own sources, compiled."""
    jars = libraries(project)
    sources = sorted((HERE / project / "src").rglob("*.java"))
    folder = CACHE / f"{project}-classes-{digest(sources)}"
    if not folder.exists():
        require("javac")
        partial = _fresh(folder)
        command = ["javac", "-d", str(partial), "-cp", f"{jars}/*", *map(str, sources)]
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX)
        partial.rename(folder)
    return f"{folder}:{jars}/*"


def fetch(path: str) -> Path:
    """Return a file of Maven Central; skip the test if it is unavailable."""
    target = CACHE / path.rpartition("/")[2]
    CACHE.mkdir(parents=True, exist_ok=True)
    try:
        with (
            urllib.request.urlopen(f"{MAVEN_CENTRAL}/{path}", timeout=BUILD_SECONDS_MAX) as answer,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(answer, file)
    except OSError as error:
        pytest.skip(f"Maven Central cannot be reached: {error}")
    return target


def require(tool: str) -> None:
    """Skip the test if this machine lacks the tool."""
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")


def free_port() -> int:
    """Return an unused port of loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Return True if a port of loopback accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(what: str, holds: Callable[[], bool], *, seconds: float = WAIT_SECONDS_MAX) -> None:
    """Wait until `holds()`; fail the test with `what` when that takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(POLL_SECONDS)


class Program:
    """Process that runs until it is stopped. Use in a `with`."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        directory: Path | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        require(command[0])
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=os.environ | (environment or {}),
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait as `wait_until`; show the output on failure, or if the program has ended."""

        def check() -> bool:
            assert self._process.poll() is None, f"{what}: it ended\n{self.tail()}"
            return holds()

        try:
            wait_until(what, check)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from None

    def wait_for_count(self, what: str, count: Callable[[], int], expected: int) -> None:
        """Wait until `count()` reaches `expected`; fail only if it does not grow for long.

        How long a long test takes depends on the machine.
        """
        reached = 0

        def has_grown() -> bool:
            nonlocal reached
            before, reached = reached, count()
            return reached > before or reached >= expected

        while reached < expected:
            self.wait_for(f"{what}: {reached} of {expected}", has_grown)

    def wait_for_end(self, what: str) -> None:
        """Wait until it has ended by itself; fail the test with `what` if that takes too long."""
        try:
            self._process.wait(WAIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{what}\n{self.tail()}") from None

    def says(self, word: str) -> bool:
        """Return True if a line of its output is `word`."""
        return word in self.log.read_text(errors="replace").splitlines()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_BYTES_SHOWN:]

    def stop(self) -> None:
        """Stop it as a service is stopped: SIGTERM, then SIGKILL if that has no effect."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.send_signal(signal.SIGCONT)
        self._end()

    def kill(self) -> None:
        """Kill it, as a failing machine does."""
        self._process.kill()
        self._end()

    def pause(self) -> None:
        """Suspend it; it cannot detect this."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end_input(self) -> int:
        """Close its standard input and wait until it ends; return its exit code."""
        return self._end()

    def _end(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def java(class_path: str, main: str, *arguments: str) -> list[str]:
    """Return the command that runs a class."""
    return ["java", *JVM_FLAGS, QUIET, "-cp", class_path, main, *arguments]


def run_tool(main: str, *arguments: str) -> str:
    """Run one of Kafka's own tools, which has to succeed; return its output."""
    done = _run(main, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def run_refused(main: str, *arguments: str) -> str:
    """Run one of Kafka's own tools, which has to fail; return its output and errors."""
    done = _run(main, *arguments)
    assert done.returncode != 0, f"{done.stdout}\n{done.stderr}"
    return f"{done.stdout}\n{done.stderr}"


def _run(main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        java(f"{libraries('java')}/*", main, *arguments),
        check=False,
        timeout=TOOL_SECONDS_MAX,
        capture_output=True,
        text=True,
    )


def _fresh(folder: Path) -> Path:
    """Return an empty folder beside `folder`, to be renamed to it when complete."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial
