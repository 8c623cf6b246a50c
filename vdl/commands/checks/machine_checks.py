"""Checks of `vdl doctor` for a machine on which a server is to run.

Nothing is changed but one small file, which measures the disk and is removed.

Does not depend on a cluster.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vdl.commands.checks.finding import Finding, fail, ok, skip, warn
from vdl.commands.servers.open_files import FILES_KEPT
from vdl.config.settings import Config, ConfigError, load_config
from vdl.config.values import Address
from vdl.listening import listening_socket

PYTHON_MIN = (3, 11)
LIBRARIES = ("crc32c", "cramjam", "cryptography", "google-re2", "grpcio", "lmdb", "lz4", "msgspec",
             "prometheus-client", "protobuf", "zstandard")  # fmt: skip
FREE_BYTES_MIN = 1 << 30
"""The journal and its reserve are some 300 MB."""
FREE_SHARE_MIN = 0.2
INODES_SHARE_MIN = 0.01
MEMORY_MIN_BYTES = 512 << 20
"""A server has some 260 MB under load (docs/operate.md)."""
FILES_MIN = 1_024
SYNC_BYTES = 4_096
SYNCS_MAX = 200
SYNC_SECONDS_MAX = 2.0
SYNC_WARN_MS, SYNC_FAIL_MS = 25.0, 250.0
"""Bounds on the slowest hundredth, and on the median. Each acknowledgement waits for a sync; a
leader steps down after about a second without answers."""
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "afs", "lustre")
IN_MEMORY = ("tmpfs", "ramfs")
TESTED = ("ext4",)
_TIMEX_BYTES, _TIMEX_STATUS = 256, 40
"""Size that `struct timex` does not exceed, and the place of its `status` on 64-bit Linux."""
_TIME_ERROR, _STA_UNSYNC = 5, 0x40


def configuration(path: Path | None, data: Path | None) -> tuple[Config | None, Finding]:
    """Return the configuration to check for, and whether its file is sound."""
    name = "configuration"
    if path is None:
        return Config(data_dir=data or Path("data")), skip(
            name, "the defaults", "give --server-config FILE to check ports as they will be"
        )
    try:
        config = load_config(path)
    except ConfigError as error:
        return None, fail(name, str(error), f"correct {path}; `vdl serve --check` tells more")
    return config, ok(name, f"{path} is sound")


def machine_findings(config: Config, data: Path | None) -> Iterator[Finding]:
    """Yield the findings about this machine for a server with a configuration."""
    folder = data or config.data_dir
    yield from ports(config, is_running=is_in_use(folder))
    yield from disk(folder)
    yield descriptors(config)
    yield memory()
    yield clock()
    yield from programs()


def is_in_use(folder: Path) -> bool:
    """Return True if a server holds the data directory."""
    from segments.api import DirectoryInUse
    from segments.io.fs import RealFileSystem

    lock = folder / "lock"
    if not lock.exists():
        return False
    try:
        RealFileSystem().lock(str(lock)).release()
    except DirectoryInUse:
        return True
    except OSError:
        return False
    return False


# --- network --------------------------------------------------------------------------------------


def ports(config: Config, *, is_running: bool) -> Iterator[Finding]:
    """Yield a finding for each port that the server listens on."""
    places = [(listener.name, Address(listener.host, listener.port)) for listener in
              config.listeners]  # fmt: skip
    if config.peer is not None:
        places.append(("peer", config.peer.listen))
    if config.admin is not None:
        places.append(("admin", config.admin.listen))
    if config.http is not None:
        places.append(("http", config.http))
    for purpose, address in places:
        name = f"port {address.port}"
        try:
            listening_socket(address.host, address.port, 1).close()
        except OSError as error:
            if is_running:
                yield ok(name, f"{purpose} {address}: used; a server runs in this directory")
            else:
                yield fail(
                    name, f"{purpose} {address}: {error.strerror}",
                    f"find its user with `ss -ltnp 'sport = :{address.port}'`, or choose another",
                )  # fmt: skip
        else:
            yield ok(name, f"{purpose} {address}: free")


# --- disk -----------------------------------------------------------------------------------------


def disk(folder: Path) -> Iterator[Finding]:
    """Yield the findings about the disk of a data directory; the directory need not exist."""
    there = folder.resolve()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        yield fail("data directory", f"{there} is no directory", "choose another data directory")
        return
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    yield filesystem(there, mounts)
    yield from free_space(there)
    yield sync_speed(there)


def filesystem(folder: Path, mounts: str) -> Finding:
    """Return a finding about the file system of a folder, by the kernel's list of mounts
    (proc_pid_mountinfo(5))."""
    name = "file system"
    kind, options = mounted(folder, mounts)
    if not kind:
        return skip(name, f"{folder}: unknown")
    text = f"{folder} is on {kind}"
    if kind in NETWORK or kind.startswith("fuse"):
        return fail(name, text, "use a local disk: a server must know that what it synced is kept")
    if kind in IN_MEMORY:
        return warn(
            name, f"{text}: memory, nothing survives a restart", "use a disk, but for tests"
        )
    if "nobarrier" in options or "barrier=0" in options:
        return fail(
            name, f"{text} with nobarrier", "mount it with barriers: syncs must reach the disk"
        )
    if kind == "overlay":
        return warn(name, f"{text}: it goes with its container", "mount a volume for the data")
    if kind not in TESTED:
        return warn(name, text, f"nothing is known against it; tested is {', '.join(TESTED)}")
    return ok(name, text)


def mounted(folder: Path, mounts: str) -> tuple[str, frozenset[str]]:
    """Return type and options of the mount that a folder is on; "" if there is none."""
    best, found = -1, ("", frozenset[str]())
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if folder.is_relative_to(point) and len(point.parts) >= best:
            kind, _, super_options = after.split(" ", 2)
            options = frozenset(before.split()[5].split(",")) | set(super_options.split(","))
            best, found = len(point.parts), (kind, options)
    return found


def free_space(folder: Path) -> Iterator[Finding]:
    """Yield findings about bytes and inodes."""
    name = "free space"
    stat = os.statvfs(folder)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    share = free / total if total else 0.0
    text = f"{free / 1e9:,.1f} GB, {share:.0%} of {folder}"
    if free < FREE_BYTES_MIN:
        yield fail(name, text, "make room: a server with a full disk takes no records")
    elif share < FREE_SHARE_MIN:
        yield warn(name, text, "keep a fifth free; see retention in docs/operate.md")
    else:
        yield ok(name, text)
    if stat.f_files and stat.f_favail / stat.f_files < INODES_SHARE_MIN:
        yield fail("inodes", f"{stat.f_favail:,} are free", "remove files, or make the disk anew")


def sync_speed(folder: Path) -> Finding:
    """Return a finding about the time of a small write and its sync: at most SYNCS_MAX of them,
    or SYNC_SECONDS_MAX."""
    name = "sync speed"
    times: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".vdl-doctor-") as file:
            file.write(bytes(SYNC_BYTES * SYNCS_MAX))
            file.flush()
            os.fdatasync(file.fileno())
            deadline = time.monotonic() + SYNC_SECONDS_MAX
            while len(times) < SYNCS_MAX and time.monotonic() < deadline:
                began = time.monotonic()
                os.pwrite(file.fileno(), os.urandom(SYNC_BYTES), len(times) * SYNC_BYTES)
                os.fdatasync(file.fileno())
                times.append((time.monotonic() - began) * 1_000)
    except OSError as error:
        return fail(name, f"{folder}: {error.strerror}", "let the server's user write there")
    return judged_syncs(sorted(times))


def judged_syncs(times_ms: list[float]) -> Finding:
    """Return the finding for the times of syncs, sorted."""
    name = "sync speed"
    median = times_ms[len(times_ms) // 2]
    slow = times_ms[(len(times_ms) * 99) // 100]
    text = f"{len(times_ms)} syncs of 4 KiB: median {median:.2f} ms, p99 {slow:.2f} ms"
    if median > SYNC_FAIL_MS:
        return fail(name, text, "use another disk: each acknowledgement waits for a sync")
    if slow > SYNC_WARN_MS:
        return warn(name, text, "look for other users of the disk, or use one with a safe cache")
    return ok(name, text)


# --- process --------------------------------------------------------------------------------------


def descriptors(config: Config) -> Finding:
    """Return a finding about the limit of open files."""
    name = "open files"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        return ok(name, "no limit")
    text = f"{hard:,} are allowed"
    wanted = config.kafka.connections_max + FILES_KEPT
    step = f"raise LimitNOFILE of the service, or `ulimit -Hn`, to {wanted:,}"
    if hard < FILES_MIN:
        return fail(name, text, step)
    if hard < wanted:
        return warn(name, f"{text}: {config.kafka.connections_max:,} clients need more", step)
    return ok(name, text)


def memory() -> Finding:
    """Return a finding about memory that is available."""
    name = "memory"
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return skip(name, "unknown")
    text = f"{kib / 1e6:,.1f} GB are available"
    if kib << 10 < MEMORY_MIN_BYTES:
        return warn(name, text, "a server needs some 260 MB under load, and the page cache helps")
    return ok(name, text)


def clock() -> Finding:
    """Return a finding about the synchronisation of the clock, from the kernel (adjtimex(2))."""
    name = "clock"
    adjust = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if adjust is None or ctypes.sizeof(ctypes.c_long) != 8:
        return skip(name, "unknown here")
    state = ctypes.create_string_buffer(_TIMEX_BYTES)  # zeros: nothing is changed
    found = adjust(state)
    if found < 0:
        return skip(name, f"unknown: {os.strerror(ctypes.get_errno())}")
    status = int.from_bytes(state.raw[_TIMEX_STATUS : _TIMEX_STATUS + 4], sys.byteorder)
    if found == _TIME_ERROR or status & _STA_UNSYNC:
        return warn(
            name, "the kernel says that it is not synchronised",
            "run chrony or systemd-timesyncd; in a virtual machine the host may do it",
        )  # fmt: skip
    return ok(name, "synchronised")


def programs() -> Iterator[Finding]:
    """Yield findings about Python, the libraries and the part in C."""
    running = sys.version.split()[0]
    if sys.version_info[:2] < PYTHON_MIN:
        yield fail("python", running, "install Python 3.11 or newer")
    else:
        yield ok("python", running)
    found, missing = [], []
    for library in LIBRARIES:
        try:
            found.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            missing.append(library)
    if missing:
        yield fail("libraries", f"missing: {', '.join(missing)}", "pip install vdl-log")
    else:
        yield ok("libraries", ", ".join(found))
    try:
        import vdl.records._walk  # noqa: F401
    except ImportError:
        yield warn(
            "part in C", "not built: records are checked a hundred times slower",
            "install gcc and python3-dev, then install VDL again",
        )  # fmt: skip
    else:
        yield ok("part in C", "built")
