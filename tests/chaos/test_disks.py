"""The tests' disks really lose data, fail and fill up; and nothing of them remains."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.chaos.harness.disks import MIB, PREFIX, ROOT, Disks

SWEPT_SECONDS_MAX = 20.0
DISK_BYTES = 32 * MIB

SESSION = """
import time
from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import Disks
disks = Disks()
servers = DiskSet(disks, nodes=1)
servers.up()
print(disks.folder, servers.pid(1), flush=True)
time.sleep(600)
"""


def write(path: Path, data: bytes, *, sync: bool) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def test_power_cut_loses_exactly_what_was_not_synced(disks: Disks) -> None:
    """The synced file is there, the one that was only written is not."""
    disk = disks.make(disks.make_folder() / "disk", DISK_BYTES)
    write(disk.mount_point / "synced", b"kept" * 1_000, sync=True)
    write(disk.mount_point / "written", b"lost" * 1_000, sync=False)
    disk.cut_power()
    with pytest.raises(OSError, match="Input/output error"):
        write(disk.mount_point / "after", b"never", sync=False)
    disk.unmount()
    disk.mount()
    names = {path.name for path in disk.mount_point.iterdir()}
    assert names == {"lost+found", "synced"}
    assert (disk.mount_point / "synced").read_bytes() == b"kept" * 1_000
    disk.discard()


def test_failed_disk_refuses_and_keeps_what_was_synced(disks: Disks) -> None:
    """Every sync fails; reconnected, the disk has its earlier contents."""
    disk = disks.make(disks.make_folder() / "disk", DISK_BYTES)
    path = disk.mount_point / "data"
    write(path, b"kept" * 1_000, sync=True)
    with path.open("r+b", buffering=0) as file:
        disk.fail()
        with pytest.raises(OSError) as failure:
            os.pwritev(file.fileno(), [b"lost" * 1_000], 0, os.RWF_DSYNC)
    assert failure.value.errno == errno.EIO
    disk.unmount()
    disk.check()
    disk.mount()
    assert path.read_bytes() == b"kept" * 1_000
    disk.discard()


def test_disk_without_new_blocks_accepts_writes_and_fails_their_sync(disks: Disks) -> None:
    """Writes succeed, the first sync fails, the next one succeeds wrongly.

    Data synced before is all there, once the disk is repaired and checked as at boot.
    """
    disk = disks.make(disks.make_folder() / "disk", DISK_BYTES)
    path = disk.mount_point / "data"
    data = bytes(range(256)) * 16_384
    with path.open("wb", buffering=0) as file:
        file.write(data[: 64 << 10])
        os.fsync(file.fileno())
        disk.fail_new_blocks()
        file.write(data[64 << 10 :])
        with pytest.raises(OSError) as failure:
            os.fdatasync(file.fileno())
        os.fdatasync(file.fileno())
    assert failure.value.errno == errno.EIO
    disk.unmount()
    disk.check()
    disk.mount()
    found = path.read_bytes()
    assert found[: 64 << 10] == data[: 64 << 10]
    assert found != data
    write(disk.mount_point / "after", b"kept", sync=True)
    disk.discard()


def test_killed_session_leaves_no_process_mount_or_file(disks: Disks) -> None:
    """SIGKILL of a session, beside which this one continues."""
    with subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as session:
        assert session.stdout is not None
        name, pid = session.stdout.readline().split()
        folder, server = Path(name), Path("/proc", pid)
        assert is_mounted(folder)
        assert server.exists()
        session.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + SWEPT_SECONDS_MAX
    while folder.exists() or server.exists() or is_mounted(folder):
        assert time.monotonic() < deadline, f"{folder} is not swept"
        time.sleep(0.05)
    assert disks.folder.exists()


def test_next_session_sweeps_what_an_abandoned_one_left(disks: Disks) -> None:
    """The next session sweeps an abandoned one whose sweeper is gone, too.

    Files of a live session stay.
    """
    abandoned = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    point = abandoned / "disk"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", point], check=True)
    with Disks() as other:
        assert not abandoned.exists()
        assert not is_mounted(abandoned)
        assert other.folder != disks.folder
        assert disks.folder.exists()


def is_mounted(folder: Path) -> bool:
    """Return True if anything is mounted below the folder."""
    return f" {folder}/" in Path("/proc/self/mounts").read_text(encoding="utf-8")
