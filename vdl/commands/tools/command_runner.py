"""Runs commands of `vdl` for tools, each as a process of its own, within bounds.

A command gets the connection that was resolved when the tools were started: the addresses as an
option, the client properties in a file in memory, which no other user can open. A profile that
is chosen meanwhile does not lead a later command to another cluster.

Bounds: RUNNING_MAX commands at a time, OUTPUT_BYTES_MAX and a time for each; a command that passes
one of them is killed. Words of a tool's user never become options: names stand behind `--`, values
behind `=`.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from vdl.commands.cluster.cluster_options import Cluster

RUNNING_MAX = 4
OUTPUT_BYTES_MAX = 4 << 20
ERROR_BYTES_MAX = 8 << 10
RUN_SECONDS_MAX = 60.0
_READ_BYTES = 64 << 10
_OF_STATUS = ("vdl.admin.certificate.location", "vdl.admin.key.location")
"""Files that librdkafka does not know, and `vdl status` uses."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Output of a command, and its end."""

    code: int
    output: bytes
    error: str
    ended: str = ""
    """Bound that it passed, and was killed for; empty: none."""


class CommandRunner:
    """Runs commands against one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        """Keep the connection. Raises click.UsageError if it cannot be passed on."""
        connection = cluster.connection
        self.bootstrap = connection.bootstrap
        properties = cluster.properties()
        for name in _OF_STATUS:
            if value := connection.properties.get(name):
                properties[name] = str(connection.folder / value)
        self._file = _memory("\n".join(map(_line, sorted(properties.items()))).encode())
        self._extra = [f"-X{name}={value}" for name, value in cluster.extra.items()]
        self._turns = threading.BoundedSemaphore(RUNNING_MAX)

    def run(
        self, *words: str, names: Sequence[str] = (), data: bytes = b"", has_extra: bool = True
    ) -> Ran:
        """Run `vdl WORDS --bootstrap … -- NAMES` with `data` as its input. `has_extra`: False for
        a command that takes no -X."""
        command = [
            sys.executable, "-P", "-m", "vdl.cli", *words,
            f"--bootstrap={self.bootstrap}", f"--config=/proc/self/fd/{self._file}",
            *(self._extra if has_extra else ()), "--", *names,
        ]  # fmt: skip
        with self._turns:
            source = _memory(data)
            try:
                process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(self._file,),
                    env=_environment(os.environ),
                    cwd=Path("/"),
                )
            finally:
                os.close(source)
            try:
                return _read(process)
            finally:
                process.kill()
                process.wait()
                for pipe in (process.stdout, process.stderr):
                    assert pipe is not None
                    pipe.close()


def _environment(found: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what would choose another cluster or draw a terminal."""
    chosen = {"VDL_BOOTSTRAP", "VDL_PROFILE"}
    return {
        **{name: value for name, value in found.items() if name not in chosen},
        "NO_COLOR": "1",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
    }


def _line(pair: tuple[str, str]) -> str:
    name, value = pair
    if value != value.strip() or "\n" in value or value.endswith("\\"):
        raise click.UsageError(f"{name} has a value that cannot be passed on to a command")
    return f"{name}={value}"


def _memory(data: bytes) -> int:
    """Return a descriptor of a file in memory with these bytes."""
    found = os.memfd_create("vdl-mcp", os.MFD_CLOEXEC)
    left = memoryview(data)
    while left:
        left = left[os.write(found, left) :]
    os.lseek(found, 0, os.SEEK_SET)
    return found


def _read(process: subprocess.Popen[bytes]) -> Ran:
    """Return what the process writes, until it ends or passes a bound."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + RUN_SECONDS_MAX
    output, error = bytearray(), bytearray()
    ended = ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, error)
        while selector.get_map() and not ended:
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            for key, _ in ready:
                data = os.read(key.fd, _READ_BYTES)
                if not data:
                    selector.unregister(key.fileobj)
                key.data.extend(data)
                if key.data is error:
                    del error[ERROR_BYTES_MAX:]
            if len(output) > OUTPUT_BYTES_MAX:
                ended = f"it wrote more than {OUTPUT_BYTES_MAX >> 20} MiB"
            elif time.monotonic() >= deadline:
                ended = f"it took more than {RUN_SECONDS_MAX:.0f} s"
    if ended:
        process.kill()
    code = process.wait()
    return Ran(code, bytes(output[:OUTPUT_BYTES_MAX]), error.decode(errors="replace"), ended)
