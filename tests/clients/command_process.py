"""The `vdl` command as a process, for tests of commands that work with any cluster.

Most of a short command's time goes into imports. So one process has imported everything, and each
command is a fork of it, with files for its input and output. Commands that talk with a test while
they run are processes of their own (`start`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.chaos.harness.replica_set import ROOT

_PROGRAM = """
import json, os, sys
import confluent_kafka.admin, rich.progress
import vdl.commands.consume, vdl.commands.produce
from vdl.cli import main
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        for number, name in enumerate(("input", "output", "errors")):
            os.dup2(os.open(asked[name], os.O_RDONLY if not number else os.O_WRONLY), number)
        os.environ.update(asked["variables"])
        sys.argv = ["vdl", *asked["arguments"]]
        code = 70
        try:
            code = main()
            sys.stdout.flush()
        finally:
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""

_ALONE = """
import signal, sys
from vdl.cli import main
# A shell starts a job in the background with SIGINT ignored, and it would be ignored here, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    output: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.output.decode().splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        """Return the lines as JSON."""
        return [json.loads(line) for line in self.lines]


class Commands:
    """Runs commands against the brokers of one bootstrap; use it in a `with`."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="vdl-commands-")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def run(self, *arguments: str, data: bytes = b"", **variables: str) -> Done:
        """Run a command with `data` as its input."""
        paths = {name: Path(self._folder.name, name) for name in ("input", "output", "errors")}
        for name, path in paths.items():
            path.write_bytes(data if name == "input" else b"")
        asked = {
            "arguments": arguments,
            "variables": {"VDL_BOOTSTRAP": self.bootstrap, **variables},
            **{name: str(path) for name, path in paths.items()},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Done(code, paths["output"].read_bytes(), paths["errors"].read_text())

    def start(self, *arguments: str, output: int = subprocess.PIPE) -> Running:
        """Start a command as a process with pipes; use it in a `with`."""
        return Running(arguments, {"VDL_BOOTSTRAP": self.bootstrap}, output)


class Running(subprocess.Popen[bytes]):
    """A command that runs; it is killed at the end of a `with` if it has not ended."""

    def __init__(
        self, arguments: tuple[str, ...], variables: Mapping[str, str], output: int
    ) -> None:
        super().__init__(
            [sys.executable, "-c", _ALONE, *arguments],
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.PIPE,
        )

    def __exit__(self, *error: object) -> None:
        self.kill()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass
        self.wait()

    def write(self, data: bytes) -> None:
        assert self.stdin is not None
        self.stdin.write(data)
        self.stdin.flush()

    def end_of_input(self) -> None:
        assert self.stdin is not None
        self.stdin.close()

    def read_line(self) -> bytes:
        assert self.stdout is not None
        return self.stdout.readline()

    def rest(self) -> tuple[bytes, str]:
        """Return the rest of output and errors, which are short."""
        assert self.stderr is not None
        output = self.stdout.read() if self.stdout is not None and not self.stdout.closed else b""
        return output, self.stderr.read().decode()
