"""Bad-night run: makes each fault once on real servers, and checks how they report it.

    python -m tests.chaos.bad_night [--only NAME,NAME] [--record]

For each fault it collects `vdl status` and its exit code, `/health`, `/ready`, the metric and the
log. Then it applies the runbook's cure, after which all servers must be well. Exits with 1 where a
fault is reported incompletely, or the cure does not help. `--record` writes the table into
deploy/runbook.md. `make bad-night`.

Does not depend on how servers detect faults.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from raft.messages import MsgAppResp
from rpc.admin_client import AdminClient as ServerClient
from rpc.frames import encode_frames
from rpc.hello import Hello
from rpc.journal_marks import BootRow, encode_boots
from rpc.peer import FrameType, LinkState, PeerEngine, Role
from tests.chaos.harness.bad_night import Seen, Watch
from tests.chaos.harness.cluster import create_topic, leader
from tests.chaos.harness.copies import open_directory
from tests.chaos.harness.disk_set import DiskSet
from tests.chaos.harness.disks import MIB, Disks
from tests.chaos.harness.load import QUIET
from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from tests.chaos.harness.wires import Wires
from vdl.commands.servers.certificates import open_authority, write_server
from vdl.commands.servers.replica_set import PEER_PORT_STEP
from vdl.logstream.bootstrap import configuration_digest

RUNBOOK = ROOT / "deploy" / "runbook.md"
BEGIN, END = "<!-- bad night: begin -->", "<!-- bad night: end -->"
WELL_SECONDS_MAX = 180.0
GIVE_UP_SECONDS = 60.0
TOPIC, STRICT, DAMAGED = "orders", "strict", "damaged"
PARTITIONS = 6
DISK_BYTES = 128 * MIB
RECORD_BYTES = 100_000
INTRUDER_PORT_STEP = 45

Steps = Generator[bool, None, None]
"""Generator that yields PREPARED before the fault and MADE after it; the cure follows."""
PREPARED, MADE = False, True
Make = Callable[[ReplicaSet], Steps]


@dataclass(frozen=True)
class Fault:
    """One fault, and the reports that it must cause."""

    name: str
    title: str
    make: Make
    kind: str
    """Kind of replica set on which the fault is made."""
    problems: frozenset[str]
    """Kinds of problems that `vdl status` must name."""
    events: frozenset[str]
    """Events that the servers' logs must contain, taken together."""
    metrics: frozenset[str]
    """Problem kinds that some server's metric must have."""
    states: Mapping[int, str]
    """By server: its state in the table of `vdl status`."""
    not_ready: Collection[int]
    """Servers that must not be ready."""
    seconds_max: float


FAULTS: list[Fault] = []


def fault(
    title: str,
    *,
    problems: Iterable[str] = (),
    events: Iterable[str] = (),
    metrics: Iterable[str] = (),
    states: Mapping[int, str] | None = None,
    not_ready: Collection[int] = (),
    kind: str = "plain",
    seconds_max: float = 60.0,
) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        name = make.__name__
        found = Fault(
            name, title, make, kind, frozenset(problems), frozenset(events),
            frozenset(metrics or problems), states or {},
            not_ready, seconds_max,
        )  # fmt: skip
        FAULTS.append(found)
        return make

    return add


# --- servers that are gone ------------------------------------------------------------------------
@fault(
    "one of three servers is dead",
    problems=["peer_unreachable", "under_replicated"],
    events=["dial_failed", "out_of_sync"],
    states={3: "refused"},
    not_ready=[3],
)
def one_dead(servers: ReplicaSet) -> Steps:
    servers.kill(3)
    yield MADE
    servers.start(3)


@fault(
    "two of three servers are dead",
    problems=["peer_unreachable", "no_quorum", "no_leader"],
    events=["dial_failed", "quorum_lost"],
    states={2: "refused", 3: "refused"},
    not_ready=[1, 2, 3],
)
def two_dead(servers: ReplicaSet) -> Steps:
    servers.kill(2, 3)
    yield MADE
    servers.start(2)
    servers.start(3)


@fault(
    "a server hangs: its process is stopped, or its machine does not answer",
    problems=["peer_unreachable", "under_replicated"],
    events=["out_of_sync"],
    not_ready=[3],
)
def one_hangs(servers: ReplicaSet) -> Steps:
    servers.pause(3)
    yield MADE
    servers.resume(3)


@fault(
    "fewer replicas in sync than `min.insync.replicas`",
    problems=["under_min_isr", "under_replicated"],
    events=["out_of_sync"],
)
def below_min_isr(servers: ReplicaSet) -> Steps:
    admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
    strict = NewTopic(STRICT, 1, 3, config={"min.insync.replicas": "3"})
    admin.create_topics([strict])[STRICT].result(10)
    wait_well(servers)
    servers.kill(3)
    yield MADE
    servers.start(3)
    servers.wait_serving(3)
    admin.delete_topics([STRICT])[STRICT].result(10)


@fault(
    "a server with an empty directory waits to be replaced, because another one is dead",
    problems=["directory_new", "no_quorum", "peer_unreachable"],
    events=["directory_new"],
    states={2: "refused"},
    not_ready=[1, 2, 3],
)
def waits_to_be_replaced(servers: ReplicaSet) -> Steps:
    servers.kill(2, 3)
    servers.wipe(3)
    servers.start(3)
    yield MADE
    servers.start(2)


# --- configuration, ports, links ------------------------------------------------------------------
@fault(
    "a peer's address was changed in one file only",
    problems=["seeds_differ"],
    events=["seeds_differ"],
)
def address_in_one_file(servers: ReplicaSet) -> Steps:
    right = f'3 = "127.0.0.1:{servers.base_port + PEER_PORT_STEP + 2}"'
    with edited(servers, 2, lambda text: replaced(text, right, '3 = "127.0.0.1:1"')):
        restart(servers, 2)
        yield MADE
    restart(servers, 2)


@fault(
    "a server has a configuration with a key that there is not",
    problems=["peer_unreachable", "under_replicated"],
    events=["dial_failed"],
    states={3: "refused"},
    not_ready=[3],
)
def wrong_configuration(servers: ReplicaSet) -> Steps:
    servers.kill(3)
    with edited(servers, 3, lambda text: "no.such.key = 1\n" + text):
        servers.start(3)
        yield MADE
    servers.start(3)


@fault(
    "another program has a server's port for clients",
    problems=["peer_unreachable", "under_replicated"],
    events=["cannot_start"],
    not_ready=[3],
)
def port_for_clients_taken(servers: ReplicaSet) -> Steps:
    servers.kill(3)
    with taken(servers.base_port + 2):
        servers.start(3)
        yield MADE
    servers.start(3)


@fault(
    "another program has a server's port for its peers",
    problems=["peer_unreachable", "under_replicated"],
    events=["cannot_start"],
    not_ready=[3],
)
def port_for_peers_taken(servers: ReplicaSet) -> Steps:
    servers.kill(3)
    with taken(servers.base_port + PEER_PORT_STEP + 2):
        servers.start(3)
        yield MADE
    servers.start(3)


@fault(
    "one server's links are cut: a firewall drops what it sends and what it is sent",
    problems=["peer_unreachable", "no_quorum", "under_replicated"],
    events=["out_of_sync", "quorum_lost"],
    not_ready=[3],
    kind="wired",
)
def links_cut(servers: ReplicaSet) -> Steps:
    WIRES[servers].cut((1, 3), (3, 1), (2, 3), (3, 2))
    yield MADE
    WIRES[servers].heal()


@fault(
    "two servers do not hear each other, and the third hears both",
    problems=["peer_unreachable"],
    events=["out_of_sync"],
    kind="wired",
)
def bridge(servers: ReplicaSet) -> Steps:
    WIRES[servers].cut((1, 3), (3, 1))
    yield MADE
    WIRES[servers].heal()


# --- directories ----------------------------------------------------------------------------------
@fault(
    "a second process of one server, in a copy of its directory",
    problems=["link_refused"],
    events=["second_process", "link_refused"],
)
def second_process_in_a_copy(servers: ReplicaSet) -> Steps:
    stop(servers, 3)
    second = servers.directory / "second"
    shutil.copytree(servers.server(3).directory, second)
    restart(servers, 3)
    wait_well(servers)
    yield PREPARED
    file = second / "vdl.toml"
    listen = servers.base_port + INTRUDER_PORT_STEP
    text = other_ports(file.read_text(encoding="utf-8"))
    file.write_text(f'{text}\n[peer]\nlisten = "127.0.0.1:{listen}"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "serve", "--config", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    append_to_log(servers, 3, done.stderr + done.stdout)
    yield MADE
    shutil.rmtree(second)


@fault(
    "a second process of one server, in the same directory",
    events=["cannot_start"],
)
def second_process_in_the_directory(servers: ReplicaSet) -> Steps:
    file = servers.directory / "second.toml"
    text = other_ports(servers.server(3).config_file.read_text(encoding="utf-8"))
    listen = servers.base_port + INTRUDER_PORT_STEP
    store = servers.server(3).directory / "store"
    text = "\n".join(
        f'data_dir = "{store}"' if line.startswith("data_dir") else line
        for line in text.splitlines()
    )
    file.write_text(f'{text}\n[peer]\nlisten = "127.0.0.1:{listen}"\n', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "vdl.cli", "serve", "--config", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    append_to_log(servers, 3, done.stderr + done.stdout)
    yield MADE
    file.unlink()


@fault(
    "a server has the directory of another one",
    problems=["peer_unreachable"],
    events=["foreign_directory"],
    states={2: "refused", 3: "refused"},
    not_ready=[1, 2, 3],
)
def foreign_directory(servers: ReplicaSet) -> Steps:
    for server_id in (2, 3):
        stop(servers, server_id)
    swap(store_of(servers, 2), store_of(servers, 3))
    for server_id in (2, 3):
        servers.start(server_id)
    yield MADE
    swap(store_of(servers, 2), store_of(servers, 3))
    for server_id in (2, 3):
        servers.start(server_id)


@fault(
    "a server has the directory of another cluster",
    problems=["link_refused", "peer_unreachable", "under_replicated"],
    events=["link_refused"],
)
def another_cluster(servers: ReplicaSet) -> Steps:
    stop(servers, 3)
    aside = servers.directory / "aside"
    store_of(servers, 3).rename(aside)
    with edited(servers, 3, without_seeds):
        servers.start(3)
        servers.wait_serving(3)
        stop(servers, 3)
    yield PREPARED
    servers.start(3)
    yield MADE
    servers.kill(3)
    servers.wipe(3)
    aside.rename(store_of(servers, 3))
    servers.start(3)


@fault(
    "a server's directory was restored from an old copy",
    events=["directory_from_the_past", "peer_from_the_past", "replica_lost"],
)
def from_the_past(servers: ReplicaSet) -> Steps:
    stop(servers, 3)
    copy = servers.directory / "copy"
    shutil.copytree(store_of(servers, 3), copy)
    restart(servers, 3)
    wait_well(servers)
    produce(servers, 40)
    time.sleep(1)
    yield PREPARED
    servers.kill(3)
    servers.wipe(3)
    copy.rename(store_of(servers, 3))
    servers.start(3)
    yield MADE  # it is replaced automatically


@fault(
    "a server's journal is damaged",
    events=["replica_lost"],
)
def damaged_journal(servers: ReplicaSet) -> Steps:
    marks = [b"mark-%08d" % n for n in range(300)]  # each in a block that is in no segment yet
    producer = producer_of(servers, 30_000)
    for n, mark in enumerate(marks):
        producer.produce(TOPIC, mark, partition=n % PARTITIONS)
        assert producer.flush(60) == 0
    servers.kill(3)
    flip_in_journal(store_of(servers, 3), marks[-100])
    servers.start(3)
    yield MADE  # the lost replica is replaced automatically


@fault(
    "a server's segment is damaged",
    events=["entries_damaged"],
    kind="disks",
)
def damaged_segment(servers: ReplicaSet) -> Steps:
    create_topic(servers, DAMAGED, first_on=3)
    produce(servers, 60, topic=DAMAGED)
    time.sleep(3)  # wait for a checkpoint
    stop(servers, 3)
    flip(max(store_of(servers, 3).glob("logs/*/*.log"), key=written_bytes), at=0.1)
    restart(servers, 3)
    wait_well(servers)
    yield PREPARED
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while leader(servers, DAMAGED) != 3:  # it repairs from the leader, then leads again
        assert time.monotonic() < deadline
        time.sleep(0.5)
    read_all(servers, DAMAGED)
    yield MADE  # it is repaired automatically
    AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET}).delete_topics([DAMAGED])


@fault(
    "a part of a server's directory is missing: its `meta`",
    problems=["peer_unreachable", "under_replicated"],
    events=["data_missing"],
    not_ready=[3],
)
def meta_missing(servers: ReplicaSet) -> Steps:
    stop(servers, 3)
    aside = servers.directory / "meta"
    (store_of(servers, 3) / "meta").rename(aside)
    servers.start(3)
    yield MADE
    servers.end(3)
    shutil.rmtree(store_of(servers, 3) / "meta", ignore_errors=True)
    aside.rename(store_of(servers, 3) / "meta")
    servers.start(3)


# --- a machine with a problem ---------------------------------------------------------------------
@fault(
    "a server's clock is an hour off",
    problems=["clock_wrong"],
    events=["clock_disagrees"],
)
def clock_wrong(servers: ReplicaSet) -> Steps:
    stop(servers, 3)
    with spoiled(servers, VDL_TEST_CLOCK_SECONDS="3600"):
        servers.start(3)
    servers.wait_serving(3)
    yield MADE
    restart(servers, 3)


@fault(
    "a server has more to do than it can",
    problems=["overloaded"],
    events=["overloaded"],
)
def overloaded(servers: ReplicaSet) -> Steps:
    yield from held_up(servers, 0.3, 0.15)


@fault(
    "a server's loop is late for more than a minute",
    problems=["late_for_long"],
    events=["late_for_long"],
    seconds_max=180.0,
)
def late_for_long(servers: ReplicaSet) -> Steps:
    yield from held_up(servers, 1.6, 0.05)


@fault(
    "a server has no file descriptors left",
    events=["out_of_file_descriptors"],
    metrics=["out_of_file_descriptors"],
)
def no_descriptors(servers: ReplicaSet) -> Steps:
    pid = servers.pid(3)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    in_use = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    with ExitStack() as stack:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (in_use + 3, limits[1]))
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", servers.base_port + 2)))
        time.sleep(1)
        yield MADE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


@fault(
    "a server says what cannot be true",
    problems=["peer_contradicts"],
    events=["peer_contradicts"],
)
def contradiction(servers: ReplicaSet) -> Steps:
    told = server_status(servers, 1)
    group = next(
        one for one in told.groups if one.name.startswith(TOPIC) and one.leader == one.replica_id
    )
    replica = next(voter for voter in group.voters if voter >> 16 == 3)
    servers.kill(3)
    with open_directory(store_of(servers, 3)) as directory:
        identity = directory.identity
    boots = encode_boots([BootRow(one.number, one.boot_id, one.end_lsn) for one in identity.boots])
    seeds = {one: str(where) for one, where in servers.server(3).config().seeds.items()}
    digest = configuration_digest(seeds)
    hello = Hello(3, identity.directory_id, 1, told.cluster_id, digest, boots, to_server=1)
    lie = MsgAppResp(group.replica_id, replica, group.term, group.last_index + 1_000)
    speak(servers.base_port + PEER_PORT_STEP, hello, group.group_id, lie)
    servers.start(3)
    yield MADE
    servers.kill(1)  # clears its memory of the last ten minutes
    servers.start(1)


# --- disks ----------------------------------------------------------------------------------------
@fault(
    "one server's disk is full",
    problems=["disk_full"],
    events=["disk_full"],
    kind="disks",
    seconds_max=90.0,
)
def one_disk_full(servers: ReplicaSet) -> Steps:
    yield from filled(servers, [3])


@fault(
    "all disks are full",
    problems=["disk_full"],
    events=["disk_full"],
    kind="disks",
    seconds_max=90.0,
)
def all_disks_full(servers: ReplicaSet) -> Steps:
    yield from filled(servers, [1, 2, 3])


@fault(
    "a server's disk fails",
    problems=["peer_unreachable", "under_replicated"],
    events=["disk_failed"],
    not_ready=[3],
    kind="disks",
)
def disk_fails(servers: ReplicaSet) -> Steps:
    assert isinstance(servers, DiskSet)
    disk = servers.disks[3]
    disk.fail()
    try_to_produce(servers, 10)
    servers.wait_stopped(3)
    yield MADE
    servers.remount(3, check=True)
    servers.start(3)


# --- certificates ---------------------------------------------------------------------------------
@fault(
    "a server's certificate is not there",
    problems=["peer_unreachable"],
    events=["cannot_start"],
    not_ready=[3],
    kind="secure",
)
def certificate_missing(servers: ReplicaSet) -> Steps:
    certificate = servers.directory / "tls" / "server-3.pem"
    aside = certificate.with_suffix(".aside")
    stop(servers, 3)
    certificate.rename(aside)
    servers.start(3)
    yield MADE
    aside.rename(certificate)
    servers.start(3)


@fault(
    "a server's certificate has ended",
    problems=["peer_unreachable"],
    events=["certificate_ends", "dial_failed"],
    metrics=["certificate_ends", "peer_unreachable"],
    not_ready=[3],
    kind="secure",
)
def certificate_ended(servers: ReplicaSet) -> Steps:
    folder = servers.directory / "tls"
    kept = {path: path.read_bytes() for path in folder.glob("server-3*")}
    stop(servers, 3)
    end_certificate(servers, 3)
    servers.start(3)
    yield MADE
    for path, content in kept.items():  # without a restart
        path.write_bytes(content)


PAGES = {
    "one_dead": "peer_unreachable",
    "two_dead": "no_quorum",
    "one_hangs": "peer_unreachable",
    "below_min_isr": "under_min_isr",
    "waits_to_be_replaced": "directory_new",
    "address_in_one_file": "seeds_differ",
    "wrong_configuration": "cannot_start",
    "port_for_clients_taken": "cannot_start",
    "port_for_peers_taken": "cannot_start",
    "links_cut": "peer_unreachable",
    "bridge": "peer_unreachable",
    "second_process_in_a_copy": "second_process",
    "second_process_in_the_directory": "cannot_start",
    "foreign_directory": "foreign_directory",
    "another_cluster": "link_refused",
    "from_the_past": "directory_from_the_past",
    "damaged_journal": "replica_lost",
    "damaged_segment": "entries_damaged",
    "meta_missing": "data_missing",
    "clock_wrong": "clock_wrong",
    "overloaded": "overloaded",
    "late_for_long": "late_for_long",
    "no_descriptors": "out_of_file_descriptors",
    "contradiction": "peer_contradicts",
    "one_disk_full": "disk_full",
    "all_disks_full": "disk_full",
    "disk_fails": "disk_failed",
    "certificate_missing": "cannot_start",
    "certificate_ended": "certificate_ends",
}
"""By fault: the page of the runbook that is followed."""
PAGE_CELL = re.compile(r" \[[a-z_]+\]\(#[a-z_]+\) \|$")


# --- how faults are made --------------------------------------------------------------------------
WIRES: dict[ReplicaSet, Wires] = {}


def store_of(servers: ReplicaSet, server_id: int) -> Path:
    return servers.server(server_id).directory / "store"


def stop(servers: ReplicaSet, server_id: int) -> None:
    servers.terminate(server_id)
    servers.wait_stopped(server_id)


def restart(servers: ReplicaSet, server_id: int) -> None:
    if server_id in servers.running():
        stop(servers, server_id)
    servers.start(server_id)
    servers.wait_serving(server_id)


def replaced(text: str, before: str, after: str) -> str:
    assert before in text, before
    return text.replace(before, after)


def without_seeds(text: str) -> str:
    """Return the configuration of a server that bootstraps a cluster by itself."""
    kept, _, rest = text.partition("[cluster.seeds]")
    _, _, rest = rest.partition("\n\n")
    assert rest or kept != text, text
    return kept + rest


def other_ports(text: str) -> str:
    lines = text.splitlines()
    for n, line in enumerate(lines):
        if line.startswith("listen = "):
            host, _, port = line.rpartition(":")
            lines[n] = f'{host}:{int(port.rstrip(chr(34))) + 5}"'
    return "\n".join(lines) + "\n"


@contextmanager
def edited(servers: ReplicaSet, server_id: int, edit: Callable[[str], str]) -> Iterator[None]:
    file = servers.server(server_id).config_file
    before = file.read_text(encoding="utf-8")
    file.write_text(edit(before), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before, encoding="utf-8")


@contextmanager
def taken(port: int) -> Iterator[None]:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        deadline = time.monotonic() + 10
        while True:
            try:
                listening.bind(("127.0.0.1", port))
                break
            except OSError:  # the port's owner was just killed
                assert time.monotonic() < deadline
                time.sleep(0.05)
        listening.listen()
        yield


def append_to_log(servers: ReplicaSet, server_id: int, text: str) -> None:
    """Append the output of a process of that server that has no log file."""
    with servers.server(server_id).log_file.open("a", encoding="utf-8") as file:
        file.write(text)


def swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def written_bytes(path: Path) -> int:
    return len(path.read_bytes().rstrip(b"\0"))


def flip(path: Path, at: float) -> None:
    """Flip one bit somewhere in the written data."""
    flip_at(path, int(written_bytes(path) * at))


def flip_at(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def end_certificate(servers: ReplicaSet, server_id: int) -> None:
    """Give a server a certificate that expires now."""
    folder, cluster = servers.directory / "tls", servers.server(server_id).config().tls.cluster
    authority = open_authority(folder, cluster)
    write_server(folder, authority, cluster, server_id, ["127.0.0.1"], days=0)
    time.sleep(1.5)


def flip_in_journal(store: Path, mark: bytes) -> None:
    """Flip one bit of a record."""
    for path in store.glob("journal/*"):
        position = path.read_bytes().find(mark)
        if position >= 0:
            flip_at(path, position)
            return
    raise AssertionError(f"{mark!r} is nowhere in the journal")


SPOIL = """
import ctypes, os, threading, time

seconds = int(os.environ.get("VDL_TEST_CLOCK_SECONDS", "0"))
if seconds:
    real_ns, real = time.time_ns, time.time
    time.time_ns = lambda: real_ns() + seconds * 10**9
    time.time = lambda: real() + seconds
held, free = map(float, os.environ.get("VDL_TEST_HOLD", "0,0").split(","))
if held:
    libc = ctypes.PyDLL(None)  # sleeps with Python's lock

    def hold():
        while True:
            if os.path.exists(os.environ["VDL_TEST_HOLD_WHILE"]):
                libc.usleep(int(held * 1e6))
                time.sleep(free)
            else:
                time.sleep(0.2)

    threading.Thread(target=hold, daemon=True).start()
"""
"""Code that a server's interpreter runs before anything else."""


@contextmanager
def spoiled(servers: ReplicaSet, **environment: str) -> Iterator[None]:
    """Start servers within this block with `SPOIL` and these environment variables."""
    folder = servers.directory / "spoil"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SPOIL, encoding="utf-8")
    wanted = {"PYTHONPATH": str(folder), **environment}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def held_up(servers: ReplicaSet, held: float, free: float) -> Steps:
    """Repeatedly block the third server's interpreter."""
    while_file = servers.directory / "hold"
    stop(servers, 3)
    with spoiled(servers, VDL_TEST_HOLD=f"{held},{free}", VDL_TEST_HOLD_WHILE=str(while_file)):
        servers.start(3)
    servers.wait_serving(3)
    while_file.touch()
    try:
        yield MADE
    finally:
        while_file.unlink()
    time.sleep(2 * held)
    restart(servers, 3)


def filled(servers: ReplicaSet, full: list[int]) -> Steps:
    """Fill the disk with another program's file, and the rest with a producer."""
    files = []
    for server_id in full:
        room = shutil.disk_usage(store_of(servers, server_id))
        file = store_of(servers, server_id) / "lost+found" / "of-another-program"
        with file.open("wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, max(0, room.free - 4 * MIB))
        files.append(file)
    try_to_produce(servers, 120)
    yield MADE
    for file in files:
        file.unlink()


def producer_of(servers: ReplicaSet, give_up_ms: int) -> Producer:
    return Producer(
        {
            "bootstrap.servers": servers.bootstrap, "acks": "all", "batch.size": 2 * RECORD_BYTES,
            "message.timeout.ms": give_up_ms, **QUIET,
        }
    )  # fmt: skip


def produce(servers: ReplicaSet, count: int, topic: str = "") -> None:
    """Produce `count` large records, each acknowledged.

    They go round robin over the partitions of the first topic, or to the only partition of another
    one.
    """
    producer = producer_of(servers, 30_000)
    failed: list[object] = []
    for n in range(count):
        producer.produce(
            topic or TOPIC, os.urandom(RECORD_BYTES), partition=0 if topic else n % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed[0]


def try_to_produce(servers: ReplicaSet, count: int) -> None:
    """Produce without checking the result."""
    producer = producer_of(servers, 5_000)
    for n in range(count):
        producer.produce(TOPIC, os.urandom(RECORD_BYTES), partition=n % PARTITIONS)
        producer.poll(0.01)
    producer.flush(12)


def read_all(servers: ReplicaSet, topic: str) -> None:
    """Read all records of the first partition."""
    consumer = Consumer({"bootstrap.servers": servers.bootstrap, "group.id": "unused", **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    quiet = 0
    while quiet < 3:
        found = consumer.consume(100, timeout=1.0)
        quiet = 0 if found else quiet + 1
    consumer.close()


def server_status(servers: ReplicaSet, server_id: int):  # type: ignore[no-untyped-def]
    admin = servers.server(server_id).config().admin
    assert admin is not None
    with ServerClient((admin.listen.host, admin.listen.port)) as client:
        return client.status()


def speak(port: int, hello: Hello, group_id: int, message: MsgAppResp) -> None:
    """Act as a server for a moment, and send this message for a group."""
    engine = PeerEngine(hello, Role.DIALER, expected=1)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.2)
        is_said = False
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            connection.sendall(b"".join(out := engine.gather()))
            engine.sent(sum(map(len, out)))
            try:
                data = connection.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                break
            engine.receive(data)
            if engine.state is LinkState.OPEN and not is_said:
                for _, _, buffers in encode_frames([(group_id, message)]):
                    is_said = engine.send(FrameType.RAFT, buffers)
    assert is_said, "not admitted"


# --- the run --------------------------------------------------------------------------------------
@contextmanager
def servers_of(kind: str) -> Iterator[ReplicaSet]:
    """Yield a replica set that serves clients and has a topic."""
    with ExitStack() as stack:
        if kind == "disks":
            servers: ReplicaSet = DiskSet(
                stack.enter_context(Disks()), disk_bytes=DISK_BYTES,
                settings={"storage.journal_file_bytes": "4MiB",
                          "storage.journal_first_file_bytes": "2MiB",
                          "storage.checkpoint_bytes": "2MiB",
                "storage.checkpoint_interval": "500ms",
                          "storage.meta_map_bytes": "16MiB"},
            )  # fmt: skip
        else:
            servers = ReplicaSet(3)
        if kind == "wired":
            WIRES[servers] = stack.enter_context(Wires(servers))
        stack.callback(servers.close)
        options = ["--secure"] if kind == "secure" else []
        servers.up(*options)
        if kind != "secure":
            admin = AdminClient({"bootstrap.servers": servers.bootstrap, **QUIET})
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(20)
        yield servers


def wait_well(servers: ReplicaSet) -> Seen:
    return Watch(servers).until(is_well, WELL_SECONDS_MAX)


def is_well(seen: Seen) -> bool:
    return seen.exit_code == 0 and set(seen.ready.values()) == {"200"}


def lacks(fault: Fault, seen: Seen) -> list[str]:
    """Return the required reports that are missing."""
    found = [f"status does not say {kind}" for kind in fault.problems - set(seen.kinds)]
    found += [f"no log says {event}" for event in fault.events - seen.events]
    if fault.problems:
        found += [] if seen.exit_code == 1 else [f"exit code {seen.exit_code}"]
        found += [] if "200 wrong" in seen.health.values() else ["no /health says ok: false"]
    found += [f"no metric says {kind}" for kind in fault.metrics - seen.metrics]
    for server_id, text in fault.states.items():
        if text not in seen.states.get(server_id, ""):
            found.append(f"server {server_id} is said to be {seen.states.get(server_id, 'up')}")
    found += [
        f"server {server_id} is ready" for server_id in fault.not_ready
        if seen.ready[server_id] == "200"
    ]  # fmt: skip
    return found


def live(fault: Fault, servers: ReplicaSet) -> tuple[Seen, list[str]]:
    """Make the fault, collect reports, cure it; return the reports and a list of deviations."""
    watch = Watch(servers)
    steps = fault.make(servers)
    while not next(steps):
        watch = Watch(servers)
    seen = watch.until(lambda now: not lacks(fault, now), fault.seconds_max)
    wrong = lacks(fault, seen)
    next(steps, MADE)
    after = wait_well(servers)
    if not is_well(after):
        wrong.append(f"not well after the cure:\n{after.status}")
    return seen, wrong


def by_value(found: Mapping[int, str]) -> str:
    """Group servers with equal answers: "1, 2: 200 wrong; 3: no answer"."""
    together: dict[str, list[int]] = {}
    for server_id, value in found.items():
        together.setdefault(value, []).append(server_id)
    if len(together) == 1:
        return next(iter(together))
    return "; ".join(f"{', '.join(map(str, ids))}: {value}" for value, ids in together.items())


def row_of(fault: Fault, seen: Seen) -> str:
    code = lambda words: ", ".join(f"`{word}`" for word in words)  # noqa: E731
    states = [f"{n}: {state}" for n, state in seen.states.items()]
    said = "; ".join([*states, code(dict.fromkeys(seen.kinds))] if seen.kinds else states)
    log = by_value({n: code(events) or "nothing" for n, events in seen.log.items()})
    metric = code(sorted(seen.metrics)) or "none"
    cells = [
        fault.title, f"{said or 'all is well'} ({seen.exit_code})",
        by_value(seen.health), by_value(seen.ready), metric, log,
    ]  # fmt: skip
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def record(rows: Mapping[str, str]) -> None:
    """Write rows into the runbook; those of faults that were not made now stay."""
    text = RUNBOOK.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    table, _, after = rest.partition(END)
    known = {
        row.split(" | ")[0].removeprefix("| "): PAGE_CELL.sub("", row)
        for row in table.strip().splitlines()[2:]
    }
    lines = [
        "| fault | `vdl status` (exit code) | `/health` | `/ready` | metric | the log | page |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in FAULTS:
        row = rows.get(one.name) or known.get(one.title)
        lines += [f"{row} [{PAGES[one.name]}](#{PAGES[one.name]}) |"] if row else []
    table = "\n".join(lines)
    RUNBOOK.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    only = set(filter(None, options.only.split(",")))
    unknown = only - {one.name for one in FAULTS}
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    wanted = [one for one in FAULTS if not only or one.name in only]
    failed: list[str] = []
    rows: dict[str, str] = {}
    for kind in dict.fromkeys(one.kind for one in wanted):
        remaining = [one for one in wanted if one.kind == kind]
        while remaining:
            remaining = night(kind, remaining, rows, failed, is_recorded=options.record)
    print(f"{len(rows)} faults, {len(failed)} wrong{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


def night(
    kind: str, faults: list[Fault], rows: dict[str, str], failed: list[str], *, is_recorded: bool
) -> list[Fault]:
    """Make faults on one set.

    Return the remaining ones, for another set, after one that could not be made.
    """
    with servers_of(kind) as servers:
        assert is_well(wait_well(servers)), "not well before the night"
        for number, one in enumerate(faults):
            began = time.monotonic()
            try:
                seen, wrong = live(one, servers)
            except Exception:  # noqa: BLE001 - continue with the other faults, whatever the error
                traceback.print_exc()
                failed.append(one.name)
                return faults[number + 1 :]
            rows[one.name] = row_of(one, seen)
            print(f"--- {one.name}: {time.monotonic() - began:.0f} s\n{seen.status}")
            print(rows[one.name], flush=True)
            if is_recorded:
                record(rows)
            if wrong:
                print("\n".join(f"WRONG {one.name}: {text}" for text in wrong), flush=True)
                failed.append(one.name)
                return faults[number + 1 :]
    return []


if __name__ == "__main__":
    sys.exit(main())
