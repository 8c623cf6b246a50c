"""One server of a test cluster, as the supervisor sees it: folder, ports, process, faults.

Its two ports are reserved for the life of the cluster by bound sockets that never listen. No other
program can get them meanwhile, and while the server is down its clients are refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from vdl.config.settings import Config, load_config
from vdl.testing.errors import ClusterError
from vdl.testing.server_process import END_SIGNALS, Faults, run_server
from vdl.testing.undo import take_back

HOST = "127.0.0.1"
ANSWER_SECONDS_MAX = 10.0
END_SECONDS_MAX = 10.0
POLL_SECONDS = 0.002
LOG_TAIL_LINES = 5


def reserve_port() -> socket.socket:
    """Return a socket that keeps a free port of loopback from everyone but our servers."""
    reserved = socket.socket()
    # A server binds the same port with the same option; that is allowed as long as only it listens.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


def toml(settings: Mapping[str, object]) -> str:
    """Return dotted keys as a configuration file: `kafka.num.partitions` is in table `[kafka]`."""
    tables: dict[str, list[str]] = {}
    for name, value in settings.items():
        table, _, key = name.partition(".")
        if not key:
            raise ClusterError(f"a setting has the form table.key, not {name}")
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        tables.setdefault(table, []).append(f"{key} = {text}")
    return "\n".join(f"[{name}]\n" + "\n".join(rows) + "\n" for name, rows in tables.items())


class Node:
    """A server, running or not. Created stopped."""

    def __init__(self, server_id: int, folder: Path) -> None:
        self.id = server_id
        self.folder = folder
        self.faults = Faults()
        self.pid = 0
        self.is_paused = False
        self._kafka, self._peer = reserve_port(), reserve_port()
        self._others: list[socket.socket] = []
        """Reserved ports of settings with port 0."""
        self._control: socket.socket | None = None
        folder.mkdir(mode=0o700)

    @property
    def port(self) -> int:
        """Port for Kafka clients."""
        return int(self._kafka.getsockname()[1])

    @property
    def peer_port(self) -> int:
        """Port for other servers."""
        return int(self._peer.getsockname()[1])

    @property
    def store(self) -> Path:
        """Data directory."""
        return self.folder / "store"

    def configure(self, nodes: Sequence[Node], settings: Mapping[str, object]) -> None:
        """Write and check the configuration file. Raises ConfigError."""
        seeds = {
            f"cluster.seeds.{node.id}": f"{HOST}:{node.peer_port}"
            for node in nodes
            if len(nodes) > 1
        }
        own: dict[str, object] = {
            "server.id": self.id,
            "server.data_dir": "store",
            "server.rack": f"rack{self.id}",
        }
        listener = f'[[listeners]]\nname = "PLAINTEXT"\nlisten = "{HOST}:{self.port}"\n'
        text = toml({**own, **seeds, **self._with_ports(settings)})
        (self.folder / "vdl.toml").write_text(f"{text}\n{listener}", encoding="utf-8")
        self._config: Config = load_config(self.folder / "vdl.toml")

    def _with_ports(self, settings: Mapping[str, object]) -> dict[str, object]:
        """Return the settings, with a free port in place of each port 0."""
        found = dict(settings)
        for key, value in settings.items():
            if value == f"{HOST}:0":
                self._others.append(reserve_port())
                found[key] = f"{HOST}:{self._others[-1].getsockname()[1]}"
        return found

    # --- the process ------------------------------------------------------------------------------
    def start(self) -> None:
        """Fork the server's process. Raises ClusterError if it runs."""
        if self.is_running():
            raise ClusterError(f"server {self.id} runs already")
        own, theirs = socket.socketpair()
        own.settimeout(ANSWER_SECONDS_MAX)
        # A signal between the fork and the server's first lines must not end it as if it were this
        # process, whose end ends all servers.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        pid = os.fork()
        if not pid:
            run_server(self._config, self.folder, self.faults, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.pid, self._control = pid, own

    def is_running(self) -> bool:
        """Return True if the process has not ended."""
        if not self.pid:
            return False
        ended, _ = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self._ended()
        return not ended

    def _ended(self) -> None:
        self.pid, self.is_paused = 0, False
        if self._control is not None:
            self._control.close()
            self._control = None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. Raises ClusterError if it does not run."""
        if not self.is_running():
            raise ClusterError(f"server {self.id} does not run{self.log_tail()}")
        os.kill(self.pid, number)

    def wait_ended(self) -> None:
        """Wait for the process that got a signal. Raises ClusterError."""
        deadline = time.monotonic() + END_SECONDS_MAX
        while self.is_running():
            if time.monotonic() > deadline:
                raise ClusterError(f"server {self.id} did not end")
            time.sleep(POLL_SECONDS)

    def pause(self) -> None:
        """Stop the process without ending it."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process continue, with the faults that are in force now."""
        assert self._control is not None
        self._send(self._all_faults())
        self.signal(signal.SIGCONT)
        self.is_paused = False
        self._await_answers(len(self._all_faults()))

    # --- faults -----------------------------------------------------------------------------------
    def apply_faults(self) -> None:
        """Put the current faults in force, unless the process is paused or does not run."""
        if self.is_running() and not self.is_paused:
            commands = self._all_faults()
            self._send(commands)
            self._await_answers(len(commands))

    def _all_faults(self) -> list[str]:
        faults = self.faults
        return [
            f"disk {faults.delay_seconds}",
            f"clock {faults.ahead_ms}",
            *(
                f"link {server_id} {int(sends)} {int(receives)}"
                for server_id, (sends, receives) in sorted(faults.cut.items())
            ),
        ]

    def _send(self, commands: Sequence[str]) -> None:
        assert self._control is not None
        self._control.sendall("".join(f"{command}\n" for command in commands).encode())

    def _await_answers(self, count: int) -> None:
        assert self._control is not None
        received = b""
        try:
            while received.count(b"\n") < count:
                data = self._control.recv(4_096)
                if not data:
                    raise ClusterError(f"server {self.id} has ended{self.log_tail()}")
                received += data
        except OSError as error:
            raise ClusterError(f"server {self.id} does not answer: {error}") from error

    # --- the disk ---------------------------------------------------------------------------------
    def take_back(self) -> int:
        """Take back what no sync covered; return the number of lost changes."""
        lost = take_back(self.folder / "undo.log", self.store)
        shutil.rmtree(self.folder / "trash", ignore_errors=True)
        return lost

    def lose_disk(self) -> None:
        """Empty the data directory."""
        shutil.rmtree(self.store, ignore_errors=True)
        self.take_back()

    def log_tail(self) -> str:
        """Return the last lines of the log, for a message; empty if there are none."""
        try:
            text = (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        lines = text.splitlines()[-LOG_TAIL_LINES:]
        return "".join(f"\n  {line}" for line in lines)

    def close(self) -> None:
        """End the process and free the ports."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._ended()
        for reserved in (self._kafka, self._peer, *self._others):
            reserved.close()
