"""Disks that really fail: each server's data on an ext4 of its own, over a loop device.

A disk is a sparse image on a small tmpfs of its own, formatted with ext4 and mounted through a loop
device. That gives the real kernel, page cache and file system three ways to fail:

* `cut_power`: EXT4_IOC_SHUTDOWN without flushing the log. Unsynced data is gone when the file
  system is mounted again; synced data is there after ext4 has replayed its journal.
* `fail`: the device shrinks to one block, so that every read and write of it is an I/O error.
* `fail_new_blocks`: it shrinks to what it has ever stored. The file system still reports free
  space; writes to new blocks succeed, their sync fails, and later syncs succeed although the data
  is gone. The file system's own blocks are at the beginning, so that it continues to work.

A full tmpfs cannot be used as such a disk: a loop device reports a partly stored write as done, and
no store survives a device that misreports its contents.

A small image is soon full, with the regular error: writes are refused.

ext4 is mounted so that it compensates for no missing sync: no flush at a rename, no commit of its
journal every few seconds.

Nothing remains, whatever happens to the tests. Everything is below one folder a session,
`vdl-disks-…` among the temporary files, with the servers' own folders. Sweeping it ends its
servers, undoes its mounts and removes its files. It is swept at the end of the session; by `python
-m tests.chaos.harness.disks FOLDER`, a child that waits for the session's end on a pipe and so
outlives a SIGKILL of the tests; and by the next session. A lock file shows which sessions are
alive.

Does not depend on what the servers write.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

from vdl.commands.servers.replica_set import is_server_process

ROOT = Path(__file__).resolve().parents[3]
PREFIX = "vdl-disks-"
MIB = 1 << 20
EXT4_IOC_SHUTDOWN = 0x8004587D
SHUTDOWN_WITHOUT_LOG_FLUSH = 2
LOOP_SET_STATUS64, LOOP_GET_STATUS64 = 0x4C04, 0x4C05
LOOP_INFO_BYTES, LOOP_SIZE_LIMIT_AT = 232, 32
FORMAT_OPTIONS = "packed_meta_blocks=1,lazy_itable_init=0,lazy_journal_init=0,nodiscard"
MOUNT_OPTIONS = "loop,noatime,noauto_da_alloc,commit=300"
SPARE_BYTES = 8 * MIB
"""Space of a tmpfs beyond its image, for its own pages."""
BUSY_SECONDS_MAX = 10.0
COMMAND_SECONDS_MAX = 60.0
POLL_SECONDS = 0.01
ONE_BLOCK = 4096
FORMATTED_END_BYTES = MIB
"""Bytes at the end of a device that a format writes, to wipe data of other formats."""
INODES = 4096


class DiskError(Exception):
    """Raised when a mount, a format or a check failed; the text is the command's own."""


class Disk:
    """One ext4 and its backing files. Mounted at `mount_point` as soon as it exists."""

    def __init__(self, folder: Path, mount_point: Path, image_bytes: int) -> None:
        self.mount_point = mount_point
        self._backing = folder
        self._image = folder / "image"
        self._image_bytes = image_bytes
        folder.mkdir()
        mount_point.mkdir(parents=True, exist_ok=True)
        options = f"size={image_bytes + SPARE_BYTES},mode=700"
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
        with self._image.open("wb") as image:
            image.truncate(image_bytes)
        _run(
            "mkfs.ext4", "-q", "-F", "-b", str(ONE_BLOCK), "-m", "0", "-N", str(INODES),
            "-J", "size=4", "-O", "^uninit_bg", "-E", FORMAT_OPTIONS, str(self._image),
            environment={"UNIX_IO_NOZEROOUT": "1"},
        )  # fmt: skip
        self.mount()

    def mount(self) -> None:
        """Mount the disk; ext4 replays its journal if necessary."""
        _run("mount", "-t", "ext4", "-o", MOUNT_OPTIONS, str(self._image), str(self.mount_point))

    def unmount(self) -> None:
        """Unmount the file system and drop the system's cache of it.

        It must be unused; a process that was just killed is waited for.
        """
        deadline = time.monotonic() + BUSY_SECONDS_MAX
        while True:
            try:
                _run("umount", str(self.mount_point))
            except DiskError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return

    def cut_power(self) -> None:
        """Cut the power: drop later writes, and data only in the system's memory."""
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            how = struct.pack("I", SHUTDOWN_WITHOUT_LOG_FLUSH)
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, how)
        finally:
            os.close(descriptor)

    def fail(self) -> None:
        """Fail all later reads and writes of data that the system does not have in memory."""
        self._shrink(ONE_BLOCK)

    def fail_new_blocks(self) -> None:
        """Fail all later writes except to blocks that have been stored before."""
        end = at = 0
        with self._image.open("rb") as image, contextlib.suppress(OSError):  # no more data
            while at < self._image_bytes - FORMATTED_END_BYTES:
                end = os.lseek(image.fileno(), at, os.SEEK_HOLE)
                at = os.lseek(image.fileno(), end, os.SEEK_DATA)
        self._shrink(end)

    def _shrink(self, size: int) -> None:
        """Truncate the device there, until it is mounted again."""
        descriptor = os.open(f"/dev/{self.loop_device}", os.O_RDONLY)
        try:
            info = bytearray(LOOP_INFO_BYTES)
            fcntl.ioctl(descriptor, LOOP_GET_STATUS64, info)
            struct.pack_into("<Q", info, LOOP_SIZE_LIMIT_AT, size)
            fcntl.ioctl(descriptor, LOOP_SET_STATUS64, info)
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """Repair the unmounted file system, as a machine does at boot after errors."""
        done = subprocess.run(
            ["e2fsck", "-p", str(self._image)],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        # 1: errors were corrected.
        if done.returncode not in {0, 1}:
            raise DiskError(f"e2fsck: {done.stdout}{done.stderr}")

    def discard(self) -> None:
        """Remove the disk, and free its memory."""
        for point in (self.mount_point, self._backing):
            if point.is_mount():
                _unmount_at_last(point)

    @property
    def loop_device(self) -> str:
        """Return the name of the block device, as in the kernel's messages."""
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
            source, point, *_ = line.split()
            if point == str(self.mount_point):
                return source.removeprefix("/dev/")
        raise DiskError(f"{self.mount_point} is not mounted")


class Disks:
    """All disks of a test session. Used in `with`, or with `close`."""

    def __init__(self) -> None:
        for stale in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
            sweep_if_abandoned(stale)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        self._lock = _lock(self.folder)
        self._count = 0
        self._sweeper = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.harness.disks", str(self.folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            # Outside of the tests' process group, because it has to survive its kill.
            start_new_session=True,
        )
        atexit.register(self.close)

    @staticmethod
    def missing() -> str:
        """Return the reason why disks cannot be made here; empty if they can."""
        if os.geteuid() != 0:
            return "needs root, to mount file systems"
        commands = ("mount", "umount", "mkfs.ext4", "e2fsck")
        absent = [command for command in commands if shutil.which(command) is None]
        if absent:
            return f"needs {', '.join(absent)}"
        if not Path("/dev/loop-control").exists():
            return "needs loop devices"
        with tempfile.TemporaryDirectory() as folder:
            try:
                _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
            except DiskError as error:
                return f"may not mount: {error}"
            _run("umount", folder)
        return ""

    def make_folder(self) -> Path:
        """Return an empty folder, for the servers of one test."""
        self._count += 1
        folder = self.folder / f"set-{self._count}"
        folder.mkdir()
        return folder

    def make(self, mount_point: Path, image_bytes: int) -> Disk:
        """Return a formatted, mounted disk. `mount_point` must be in a folder of `make_folder`."""
        assert mount_point.is_relative_to(self.folder), mount_point
        self._count += 1
        return Disk(self.folder / f"disk-{self._count}", mount_point, image_bytes)

    def close(self) -> None:
        if self._lock < 0:
            return
        try:
            sweep(self.folder)
        finally:
            os.close(self._lock)
            self._lock = -1
            # The sweeper removes anything that is left.
            assert self._sweeper.stdin is not None
            self._sweeper.stdin.close()
            self._sweeper.wait(COMMAND_SECONDS_MAX)
            atexit.unregister(self.close)

    def __enter__(self) -> Disks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


# --- cleaning up ----------------------------------------------------------------------------------


def release(folder: Path) -> None:
    """End the servers whose files are in `folder`, and undo all mounts below it."""
    pids = []
    for file in folder.rglob("server.pid"):
        text = file.read_text(encoding="ascii").strip()
        if text.isdigit() and is_server_process(int(text), file.parent / "vdl.toml"):
            pids.append(int(text))
            # A paused process as well: SIGKILL needs no SIGCONT.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text), signal.SIGKILL)
    for point in reversed(_mounts_below(folder)):
        _unmount_at_last(point)


def sweep(folder: Path) -> None:
    """Remove a session's folder with its processes, mounts and files."""
    release(folder)
    shutil.rmtree(folder, ignore_errors=True)


def sweep_if_abandoned(folder: Path, *, is_ending: bool = False) -> None:
    """Sweep the rest of a session whose process is gone.

    With `is_ending` wait for the process: a dying process closes its files one after the other.
    """
    try:
        lock = _lock(folder, wait=is_ending)
    except OSError:
        return
    try:
        sweep(folder)
    finally:
        os.close(lock)


def _lock(folder: Path, *, wait: bool = False) -> int:
    """Return a descriptor that holds the session's lock.

    Raises OSError when another process holds it and `wait` is false, or when the session's folder
    is gone.
    """
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _mounts_below(folder: Path) -> list[Path]:
    """Return the mount points below `folder`, in the order in which they were mounted."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    points = [Path(line.split()[1]) for line in lines]
    return [point for point in points if point != folder and point.is_relative_to(folder)]


def _unmount_at_last(point: Path) -> None:
    """Wait for processes that use it; then unmount it by force."""
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            _run("umount", str(point))
        except DiskError:
            if time.monotonic() > deadline:
                _run("umount", "--lazy", str(point))
                return
            time.sleep(POLL_SECONDS)
        else:
            return


def _run(*command: str, environment: Mapping[str, str] = MappingProxyType({})) -> None:
    """Run a command. Raises DiskError."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        raise DiskError(f"{' '.join(command)}: {done.stderr.strip() or os.strerror(errno.EIO)}")


def main() -> None:
    """Wait until the session that started this process ends in any way; then sweep its folder."""
    folder = Path(sys.argv[1])
    sys.stdin.buffer.read()
    sweep_if_abandoned(folder, is_ending=True)


if __name__ == "__main__":
    main()
