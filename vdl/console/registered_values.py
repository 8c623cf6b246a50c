"""Values with schemas of a registry (Avro, Protobuf, JSON Schema), as JSON.

A child decodes them (`decoder_process.py`) and asks the registry. Schemas and values are clients'
choice: a few bytes may become gigabytes of JSON, take hours, or be nested deeper than a stack. Then
the child ends, and the page shows the bytes. It asks no address but that of the server's
configuration. It is started by the first page that needs it.

A page sends one line of JSON, `[value in base64, …]`, and gets one,
`[[text, problem], …]`, of which one is null.

Does not depend on records.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

CHILD_MODULE: Final = "vdl.console.decoder_process"
PREFIX_BYTES: Final = 5
"""A zero byte and the id of the schema, before the value."""
PAGE_BYTES_MAX: Final = 4 << 20
"""Bytes of a page's values that are decoded; the others are shown as they are."""
PAGE_SECONDS_MAX: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 << 20
PAUSE_SECONDS: Final = 15.0
"""Time for which nothing is decoded after the child has ended or hung."""
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded value. One of the two is empty."""

    text: str
    """JSON, cut to some more characters than are shown."""
    problem: str = ""


class RegisteredValues:
    """Decodes values by the schemas of one registry. Use: by several threads."""

    def __init__(self, url: str, login: str) -> None:
        """Start nothing yet. `login`: a file with `user:password`; empty: the registry has none."""
        self._arguments = (url, login)
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        """Folder for the child's temporary files: it may end before it removes them."""
        self._paused_until_s = 0.0

    def decoded(self, values: Iterable[bytes], seconds: float) -> Mapping[bytes, Decoded]:
        """Return those of the values that begin as one with a schema does, decoded or with the
        reason why not."""
        wanted: list[bytes] = []
        room = PAGE_BYTES_MAX
        for value in dict.fromkeys(values):
            if len(value) >= PREFIX_BYTES and value[0] == 0 and len(value) <= room:
                wanted.append(value)
                room -= len(value)
        if not wanted:
            return {}
        ends_s = time.monotonic() + min(seconds, PAGE_SECONDS_MAX)
        if not self._lock.acquire(timeout=max(0.0, ends_s - time.monotonic())):
            return _all(wanted, "the decoder is busy")
        try:
            if time.monotonic() < self._paused_until_s:
                return _all(wanted, "decoding took too long, or too much memory, a moment ago")
            try:
                found = self._ask(wanted, ends_s)
            except OSError as error:  # this process has no room for a child
                self._end()
                return _all(wanted, f"the decoder cannot be started: {error.strerror}")
            if found is None:
                self._end()
                self._paused_until_s = time.monotonic() + PAUSE_SECONDS
                return _all(wanted, "decoding took too long, or too much memory")
            return dict(zip(wanted, found, strict=True))
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._end()

    def _ask(self, values: list[bytes], ends_s: float) -> list[Decoded] | None:
        """Return the answers of the child; None if it does not answer in time."""
        question = json.dumps([base64.b64encode(value).decode() for value in values])
        for _ in range(2):  # an unused child may have ended meanwhile
            child = self._child or self._start()
            answer = _exchange(child, question.encode() + b"\n", ends_s)
            if answer or time.monotonic() >= ends_s or child.poll() != 0:
                break
            self._end()
        try:
            return [Decoded(text or "", problem or "") for text, problem in json.loads(answer)]
        except ValueError:  # it has ended in the middle of an answer
            return None

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", CHILD_MODULE, *self._arguments]
        self._folder = tempfile.TemporaryDirectory(
            prefix="vdl-decoder-", ignore_cleanup_errors=True
        )
        child = self._child = subprocess.Popen(  # noqa: S603 - a command of our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
            env={**os.environ, "TMPDIR": self._folder.name},
        )  # fmt: skip
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        return child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            with child:  # closes the pipes, and waits for its end
                pass
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()


def _exchange(child: subprocess.Popen[bytes], question: bytes, ends_s: float) -> bytes:
    """Return the line that the child answers; less if it ends or the time is over."""
    assert child.stdin is not None
    assert child.stdout is not None
    unsent, answer = memoryview(question), bytearray()
    poll = select.poll()
    poll.register(child.stdin, select.POLLOUT)
    poll.register(child.stdout, select.POLLIN)
    while not answer.endswith(b"\n") and len(answer) <= ANSWER_BYTES_MAX:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            break
        for descriptor, _ in poll.poll(left_s * 1_000):
            if descriptor == child.stdout.fileno():
                piece = os.read(descriptor, _PIECE_BYTES)
                if not piece:
                    child.wait()
                    return bytes(answer)
                answer += piece
                continue
            try:
                unsent = unsent[os.write(descriptor, unsent) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                unsent = memoryview(b"")
            if not unsent:
                poll.unregister(descriptor)
    return bytes(answer)


def _all(values: list[bytes], problem: str) -> Mapping[bytes, Decoded]:
    return dict.fromkeys(values, Decoded("", problem))
