"""Records as bytes: by a template, or as JSON; and the file that they are written to.

Bytes for a terminal are made visible (`terminal_text.py`); those for a file or a pipe are exact.

Does not depend on a client.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from vdl.commands.interrupts import Interrupts
from vdl.commands.records.record_decoding import Form, Undecodable
from vdl.commands.records.record_json import (
    TIMESTAMP_TYPES,
    Received,
    bytes_field,
    header_documents,
)
from vdl.commands.records.record_template import Write, compile_template
from vdl.commands.terminal_text import visible, visible_json

BUFFER_BYTES = 1 << 16
"""Bytes that are collected before they are written."""
ROOM_MS = 250
"""Time between two looks for a signal that was held while a pipe is full."""


class Problems:
    """Keys and values that were not of the form that was asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def note(self, where: str, error: Undecodable) -> str:
        """Count one; return it in words."""
        self.count += 1
        told = f"{where}: {error}"
        self.first = self.first or told
        return told


def text_writer(
    template: str, *, key: Form, value: Form, null: bytes, for_terminal: bool, problems: Problems
) -> Write:
    """Return a function that writes a record by a template. `null` stands for a missing key or
    value. Raises BadTemplate."""
    clean: Callable[[bytes], bytes] = visible if for_terminal else bytes

    def shown(form: Form, name: str) -> Callable[[bytes | None], bytes]:
        def show(data: bytes | None) -> bytes:
            if data is None:
                return null
            try:
                return clean(form.text(data))
            except Undecodable as error:
                problems.note(name, error)
                return clean(data)

        return show

    def header(data: bytes | None) -> bytes:
        return null if data is None else clean(data)

    write = compile_template(
        template, key=shown(key, "key"), value=shown(value, "value"), header=header
    )
    if not for_terminal:
        return write
    # Names of headers come from a producer as well; the user's own template is not touched.
    return lambda record: write(
        record._replace(
            headers=[(visible(name.encode()).decode(), data) for name, data in record.headers or []]
        )
    )


def json_writer(*, key: Form, value: Form, for_terminal: bool, problems: Problems) -> Write:
    """Return a function that writes a record as one line of JSON (`record_json.py`)."""

    def write(record: Received) -> bytes:
        document: dict[str, object] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
        }
        if record.timestamp_type:
            document["timestamp"] = record.timestamp_ms
            document["timestamp_type"] = TIMESTAMP_TYPES[record.timestamp_type]
        told = []
        if record.headers is None:
            told.append(problems.note("headers", Undecodable("a name is no UTF-8")))
        document["headers"] = header_documents(record.headers or [])
        for name, data, form in (("key", record.key, key), ("value", record.value, value)):
            try:
                suffix, shown = ("", None) if data is None else form.field(data)
            except Undecodable as error:
                suffix, shown = bytes_field(data)
                told.append(problems.note(name, error))
            document[f"{name}{suffix}"] = shown
        if told:
            document["problem"] = "; ".join(told)
        line = msgspec.json.encode(document)
        return (visible_json(line) if for_terminal else line) + b"\n"

    return write


class RecordFile:
    """Where records are written: usually standard output. It has no thread and one buffer.

    A signal does not lose the number of bytes that the operating system took: the rest stays, and
    the next `flush` continues behind them.
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        buffer_bytes: int = BUFFER_BYTES,
        interrupts: Interrupts | None = None,
    ) -> None:
        """Write to `file`, which must not have a buffer of its own that is flushed at exit."""
        self._file = file
        self._parts: list[bytes] = []
        self._size = 0
        self._rest = memoryview(b"")
        """Bytes of a flush that did not end."""
        self._buffer_bytes = buffer_bytes
        self._interrupts = interrupts or Interrupts()
        self._watch = select.poll()
        self._watch.register(file.fileno(), 0)
        self._room = select.poll()
        self._room.register(file.fileno(), select.POLLOUT)
        # More than this may block in a pipe that has room, while signals are held.
        is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        self._piece_bytes = buffer_bytes if is_file else select.PIPE_BUF

    def write(self, data: bytes) -> None:
        """Write bytes, at the latest with the next `flush`. Raises BrokenPipeError, OSError."""
        self._parts.append(data)
        self._size += len(data)
        if self._size >= self._buffer_bytes:
            self.flush()

    def flush(self) -> None:
        """Return when all is with the operating system. Raises BrokenPipeError, OSError,
        KeyboardInterrupt."""
        while self._parts or self._rest:
            if not self._rest:
                self._gather()
            if not self._room.poll(ROOM_MS):
                self._interrupts.check(in_hold=True)
                continue
            self._write_piece()
            self._interrupts.check()

    def flush_at_once(self) -> bool:
        """Write what there is room for, without waiting. Return True if that was all. Raises
        BrokenPipeError, OSError."""
        while self._parts or self._rest:
            if not self._rest:
                self._gather()
            if not self._room.poll(0) or not self._write_piece():
                return False
        return True

    def _gather(self) -> None:
        with self._interrupts.held():
            self._rest = memoryview(b"".join(self._parts))
            self._parts.clear()
            self._size = 0

    def _write_piece(self) -> bool:
        """Write a piece of the rest; return False if another writer has taken the room."""
        with self._interrupts.held():
            try:
                taken = os.write(self._file.fileno(), self._rest[: self._piece_bytes])
            except BlockingIOError:  # another program has made the pipe non-blocking
                return False
            except OSError:
                self._parts.clear()
                self._size, self._rest = 0, memoryview(b"")
                raise
            self._rest = self._rest[taken:]
        return True

    @property
    def is_closed(self) -> bool:
        """True if the reader of a pipe has gone: a quiet topic must not keep a `tail | head`."""
        return any(event & select.POLLERR for _, event in self._watch.poll(0))
