"""Files of the audit log: readable by their owner alone, rotated by size, losses reported."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

from tests.hangs import HANG_SECONDS
from vdl.server.audit_file import QUEUE_BYTES, AuditFile

ACT = b"a" * 2_000 + b"\n"
ALICE, EVE = "User:alice", "User:eve"


def opened(path: Path, losses: list[str] | None = None, **limits: int) -> AuditFile:
    limits = {"bytes_max": 1 << 20, "files_max": 3} | limits
    return AuditFile(path, on_loss=(losses if losses is not None else []).append, **limits)


def test_lines_are_appended_and_only_their_owner_may_read_them(tmp_path: Path) -> None:
    """Lines are appended, also behind those of an earlier process.

    Only the owner may read the file.
    """
    path = tmp_path / "audit.log"
    for life in (b"one\n", b"two\n"):
        file = opened(path)
        file.write(life)
        file.close()
    assert path.read_bytes() == b"one\ntwo\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_are_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    """The retained size is bounded; whole lines remain, in order."""
    path = tmp_path / "audit.log"
    for number in range(60):
        file = opened(path, bytes_max=100, files_max=2)
        file.write(b"%09d\n" % number)
        file.close()
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["audit.log", "audit.log.1", "audit.log.2"]
    lines = b"".join((tmp_path / name).read_bytes() for name in reversed(names)).splitlines()
    assert [int(line) for line in lines] == list(range(60 - len(lines), 60))
    assert all((tmp_path / name).stat().st_size <= 100 for name in names)


def test_lines_that_find_no_room_are_counted(tmp_path: Path) -> None:
    """The disk does not keep up.

    The loop goes on, and the next line holds the number of lost lines. No audited action is lost:
    its requester has to wait.
    """
    path = tmp_path / "audit.log"
    os.mkfifo(path)
    reader: list[bytes] = []

    def read() -> None:
        with path.open("rb") as pipe:
            started.set()
            may_read.wait()
            reader.append(pipe.read())

    started, may_read = threading.Event(), threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    file = opened(path, bytes_max=1 << 40)
    started.wait()
    line = b"x" * 1_000 + b"\n"
    count = 3 * QUEUE_BYTES // len(line)
    for _ in range(count):
        file.write(line)
    acts = 2 * QUEUE_BYTES // len(ACT)
    waited = 0
    supers_waited = 0
    for _ in range(acts):
        waited += file.is_full(EVE)
        supers_waited += file.is_full(EVE, is_super=True)
        file.write(ACT, act_of=EVE)
    assert 0 < supers_waited < waited < acts
    may_read.set()
    file.write(b"last\n")
    file.close(HANG_SECONDS)
    thread.join()
    lines = reader[0].splitlines()
    assert lines.count(ACT[:-1]) == acts
    assert not file.is_full(EVE)
    lost = sum(json.loads(one)["count"] for one in lines if one.startswith(b"{"))
    assert lost > 0
    assert lines.count(line[:-1]) + (b"last" in lines) + lost == count + 1


def test_acts_of_one_do_not_make_others_wait(tmp_path: Path) -> None:
    """A disk refuses lines: a principal that uses half of the space waits, and others may act.

    Once the lines are written no principal holds any.
    """
    path = tmp_path / "audit.log"
    losses: list[str] = []
    file = opened(path, losses, bytes_max=1 << 40)
    descriptor = file._file
    file._file = os.open(path, os.O_RDONLY)
    count = 0
    while not file.is_full(EVE):
        file.write(ACT, act_of=EVE)
        count += 1
    assert QUEUE_BYTES // 2 <= count * len(ACT) < QUEUE_BYTES // 2 + 2 * len(ACT)
    assert not file.is_full(ALICE)
    file.write(b"alice's\n", act_of=ALICE)
    while not losses:
        pass
    assert file.is_full(EVE)
    assert not file.is_full(ALICE)
    refusing, file._file = file._file, descriptor
    file.close(HANG_SECONDS)
    os.close(refusing)
    assert path.read_bytes() == count * ACT + b"alice's\n"
    assert not file.is_full(EVE)


def test_lines_that_the_disk_refuses_are_told_of(tmp_path: Path) -> None:
    """Losses are logged in the server's own log at once, and later in the file."""
    path = tmp_path / "audit.log"
    losses: list[str] = []
    file = opened(path, losses)
    descriptor = file._file
    file._file = os.open(path, os.O_RDONLY)
    file.write(b"refused\n")
    while not losses:
        pass
    os.close(file._file)
    file._file = descriptor
    file.write(b"taken\n")
    file.close()
    assert path.read_bytes() == b'{"event": "lost", "count": 1}\ntaken\n'


def test_acts_that_the_disk_refuses_are_written_when_it_takes_lines_again(tmp_path: Path) -> None:
    """Refused lines are written later in order, together with the number of lost ones."""
    path = tmp_path / "audit.log"
    losses: list[str] = []
    file = opened(path, losses)
    descriptor = file._file
    file._file = os.open(path, os.O_RDONLY)
    file.write(b"act 1\n", act_of=EVE)
    while not losses:
        pass
    file.write(b"act 2\n", act_of=EVE)
    file.write(b"refused\n")
    while len(losses) < 2:
        pass
    refusing, file._file = file._file, descriptor
    file.close(HANG_SECONDS)
    os.close(refusing)
    assert path.read_bytes() == b'{"event": "lost", "count": 1}\nact 1\nact 2\n'


def test_thread_outlives_an_error_that_no_disk_makes(tmp_path: Path) -> None:
    """The writer thread survives lack of memory, and a failing server log.

    Actions would otherwise wait for ever, without a report.
    """
    path = tmp_path / "audit.log"
    losses: list[str] = []

    def told(cause: str) -> None:
        losses.append(cause)
        raise RuntimeError("the log fails as well")

    file = AuditFile(path, bytes_max=1 << 20, files_max=3, on_loss=told)
    append, tries = file._append, iter([MemoryError()])

    def failing(data: bytes) -> None:
        for error in tries:
            raise error
        append(data)

    file._append = failing  # type: ignore[method-assign]
    file.write(b"act\n", act_of=EVE)
    while not losses and file._thread.is_alive():
        pass
    file.write(b"next\n", act_of=EVE)
    file.close(HANG_SECONDS)
    assert path.read_bytes() == b"act\nnext\n"
    assert losses == ["MemoryError: "]


def test_line_that_a_full_disk_took_half_of_is_taken_back(tmp_path: Path) -> None:
    """The next line begins on a line of its own and is not appended to an incomplete one.

    The disk is really full: a limit on the size of files, in a separate process.
    """
    path = tmp_path / "audit.log"
    program = f"""
import resource, signal
from pathlib import Path
from vdl.server.audit_file import AuditFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
losses = []
file = AuditFile(Path({str(path)!r}), bytes_max=1 << 20, files_max=3, on_loss=losses.append)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
file.write(b"a" * 60 + b"\\n")
while file._size != 61: pass
file.write(b"b" * 60 + b"\\n")
while not losses: pass
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
file.write(b"c\\n")
file.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=HANG_SECONDS)
    assert path.read_bytes().splitlines() == [
        b"a" * 60,
        b'{"event": "lost", "count": 1}',
        b"c",
    ]


def test_older_files_stay_while_there_is_no_room_for_a_new_one(tmp_path: Path) -> None:
    """There is no space for another file.

    Existing files are not removed one by one without effect, and lines without space are counted.
    """
    path = tmp_path / "audit.log"
    older = {path.with_name(f"audit.log.{n}"): b"older %d\n" % n for n in (1, 2, 3)}
    for name, text in older.items():
        name.write_bytes(text)
    losses: list[str] = []
    file = opened(path, losses, bytes_max=20)
    file.write(b"present present\n")
    while file._size != 16:
        pass
    # Occupy the new file's name, which has the same effect as a disk without space for it.
    obstacle = path.with_name("audit.log.new")
    (obstacle / "in the way").mkdir(parents=True)
    for count in range(1, 6):
        file.write(b"finds no room\n")
        while len(losses) < count:
            pass
    assert {name: name.read_bytes() for name in older} == older
    (obstacle / "in the way").rmdir()
    obstacle.rmdir()
    file.write(b"next\n")
    file.close()
    assert path.read_bytes() == b'{"event": "lost", "count": 5}\nnext\n'
    assert path.with_name("audit.log.1").read_bytes() == b"present present\n"
    assert path.with_name("audit.log.3").read_bytes() == b"older 2\n"
