"""A simulated machine: its disk, and the server processes that run on it one after another.

A process (`Life`) is assembled from the production parts as `vdl.server.process` does it; only
clock, workers, file system, streams and random source are replaced. It ends by SIGKILL, a power
cut, a failed disk or a planned stop. The disk remains.

Opening a store takes no virtual time, so no fault hits it by itself. Instead some starts are drawn
to be interrupted (`cuts_in_start`): the process opens its store as a job of the disk, which is cut
at some step by a kill or a power cut, often in the middle of a durable write. No `Life` is created.
The machine is started again soon, and that start may be interrupted as well.

Does not depend on why a machine fails or on clients.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from random import Random

from ids import GroupId, Index, LogId, ServerId
from rpc.hello import Hello
from rpc.link_options import DEFAULT_OPTIONS, LinkOptions
from rpc.links import Links
from rpc.peer import FrameType
from rpc.streams import Address, PeerHandler, Stream
from rpc.tls_context import LinkEncryption
from segments.api import (
    Buffer,
    DataMissing,
    DirectoryInUse,
    ForeignDirectory,
    ForeignFile,
    StorageError,
    Workers,
)
from segments.directory.identity import decode as decode_identity
from segments.log.log import DiskLog
from segments.log.segment import LogFiles
from segments.store import DiskStore
from vdl.clock import MS
from vdl.config.settings import Config
from vdl.events import Value
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.connections.session import Session
from vdl.server.server import Server, ServerState
from vdl.sim.catalog_silence import CatalogSilence
from vdl.sim.certificates import certificate_of, security_of
from vdl.sim.clock import NodeClock, VirtualTime
from vdl.sim.damage import (
    are_told,
    flip_durable_bit,
    is_hole,
    log_files,
    open_hole,
    spoil_block,
    spoil_segment,
)
from vdl.sim.disk import Directory, Inode, Node, SimDisk
from vdl.sim.filesystem import SimFileSystem
from vdl.sim.frame_faults import FrameFaults, FrameWeather
from vdl.sim.network import Network, SimDialer, SimStream
from vdl.sim.old_disk import OldDisk, copy_of
from vdl.sim.trace import Trace
from vdl.sim.turn_cost import TurnCost
from vdl.sim.unsent import write_unsent
from vdl.sim.workers import NoWorkers, SimWorkers

KAFKA_PORT = 9092
PEER_PORT = 9192
LISTENER = "PLAINTEXT"
_SCRAP_BYTES = 64 << 10
READ_CHANCE = 0.5
"""Chance that a page that became unreadable is read at once."""
SPOILED_READ_BYTES = 1 << 30

DISK_ERRORS = frozenset((errno.EIO, errno.ENOSPC))
"""Errors that a disk may return."""
FATAL_ERRORS = DISK_ERRORS | {errno.EADDRINUSE}
"""Errors that end the process if nothing handles them."""

RESTART_NS = 500 * MS
"""Delay before an init system restarts a failed process, and before power returns after a power cut
during a start.
"""

BEGIN_NS_MAX = 200 * MS
"""Longest time between a process's opening of its store and links and its start.

On a busy machine a turn of the loop lies between them, and peers may have sent messages by then.
"""


class Condition(Enum):
    """State of a machine."""

    RUNNING = "running"
    STOPPING = "stopping"
    DOWN = "down"
    """No process."""
    OFF = "off"
    """No power."""


class StartCut(Enum):
    """Causes of the end of a process that has not opened its store yet."""

    KILL = "killed"
    POWER = "power cut"
    IN_WRITE = "power cut in a write"
    """At a step that is a durable write: some sectors of it are on disk."""


NOTE_LOOK_NS = 200_000
NOTE_LOOKS = 500
"""Notes are written with the next block, so nothing reports their durability by itself."""


class Life:
    """One process, from the opening of its store to its end."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine = machine
        self.number = number
        rng = Random(machine.rng.getrandbits(64))
        self.clock = NodeClock(
            machine.time,
            wall_base_ms=machine.wall_base_ms,
            offset_ns=rng.getrandbits(40),
            turn_ns=machine.turn_ns,
            drift_ppm=machine.drift_ppm,
        )
        # Usually almost 0, sometimes long.
        self._begins_in_ns = int(rng.random() ** 4 * BEGIN_NS_MAX)
        self.workers = SimWorkers(self.clock, machine.disk)
        self.workers.starve(is_starved=machine.starved)
        self._is_open = False
        self.store = machine.open_store(self.workers, rng, self._lock_released)
        self._is_open = True
        self.store.on_fatal = self._disk_failed
        self.rng = rng
        self.server = Server(
            machine.config,
            store=self.store,
            clock=self.clock,
            rng=rng,
            random_bytes=rng.randbytes,
            make_links=self._make_links,
            advertised={LISTENER: (machine.name, KAFKA_PORT)},
            log=TraceLog(machine),
        )
        self.server.on_serving = self._serve_clients
        self.take_time(machine.turn_cost_ns)
        self.workers.on_journal = lambda: machine.on_staged(self)

    def take_time(self, turn_cost_ns: int) -> None:
        """See `Machine.take_time`."""
        self.clock.meter = TurnCost(self.server, turn_cost_ns) if turn_cost_ns else None

    def _lock_released(self) -> None:
        """Check that the directory's lock was not released with jobs in progress.

        Such jobs would write into another process's files.
        """
        if self._is_open and self.workers.under_way and not self.clock.stopped:
            self.machine.warnings.append(
                f"let go of its directory with {self.workers.under_way} jobs under way"
            )

    def start(self) -> None:
        """Start the server after a delay."""
        self.clock.call_later(self._begins_in_ns, self.server.start)

    def _make_links(self, local: Hello, handler: PeerHandler) -> Links:
        machine = self.machine
        dialer = SimDialer(machine.network, machine.name, self.clock)
        handler = CatalogSilence(handler, lambda: machine.hears_catalog)
        if machine.frames.any:
            rng = Random(machine.rng.getrandbits(64))
            handler = faults = FrameFaults(
                handler, machine.frames, self.clock, rng, self._links_closed, machine.server_id
            )
            if machine.frames.holds_snapshots:
                self._tell_notes(faults)
        handler = machine.guard(self, handler)
        encryption = machine.encryption(self)
        security = None
        if encryption is not None:
            security = security_of(certificate_of(local.server_id), links=encryption)
        options, large = DEFAULT_OPTIONS, machine.config.store.large_bytes_min
        if large < options.piece_bytes_max:
            # Worlds with large entries: others pass them.
            options = LinkOptions(piece_bytes_max=large, turn_bytes=large)
        links = WatchedLinks(
            local, dialer, self.clock, self.rng, handler, options, security=security
        )
        links.on_raft_frame = lambda payload: machine.on_raft_frame(self, payload)
        machine.network.listen(
            (machine.name, machine.peer_port), self.clock, lambda stream, _: links.accepted(stream)
        )
        return links

    def _tell_notes(self, faults: FrameFaults) -> None:
        """Notify `faults` of each checkpoint's end, when the block with its notes is written."""
        checkpoints, queue = self.store._checkpoints, self.store._journal.queue
        ended = self.store.checkpoint_ended

        def noted() -> None:
            ended()
            look(checkpoints._note_token, NOTE_LOOKS)

        def look(token: int, looks: int) -> None:
            if not faults.holds or queue.durable_token >= token or not looks:
                return
            if queue.batch.token > token:
                faults.noted()
            else:
                self.clock.call_later(NOTE_LOOK_NS, partial(look, token, looks - 1))

        vars(self.store)["checkpoint_ended"] = noted

    def _links_closed(self) -> bool:
        return self.server.state is ServerState.STOPPED

    def _serve_clients(self) -> None:
        frontend = self.server.frontend
        assert frontend is not None, "serving without a front end"
        if not self.machine.has_port:
            # As `Process` does: the process ends before anything else happens.
            raise OSError(errno.EADDRINUSE, "cannot listen")

        def accept(stream: Stream, peer: Address) -> None:
            assert isinstance(stream, SimStream), stream
            Edge(frontend, stream, peer)

        machine = self.machine
        machine.network.listen((machine.name, KAFKA_PORT), self.clock, accept)

    def _disk_failed(self, error: BaseException) -> None:
        # Not inside the callback; the process does nothing else before it ends.
        self.machine.note(f"disk failed: {error}")
        self.clock.paused = True
        machine = self.machine

        def end() -> None:
            if machine.life is self:
                machine.failed(error)

        machine.time.after(0, end)


TURN_NS_MAX = 3_000_000
"""Longest time between the pieces of a large frame."""


class WatchedLinks(Links):
    """Links that report every RAFT frame they send."""

    on_raft_frame: Callable[[memoryview], None]

    def next_turn(self, fn: Callable[[], None]) -> None:
        # A turn takes a moment, in which other frames are sent.
        is_cut = self.options.turn_bytes < DEFAULT_OPTIONS.turn_bytes
        self._clock.call_later(self._rng.randrange(TURN_NS_MAX) if is_cut else 0, fn)

    def send(
        self,
        server_id: ServerId,
        frame_type: FrameType,
        buffers: Sequence[Buffer],
        *,
        urgent: bool = False,
        more: bool = False,
        keyed: Sequence[tuple[int, object]] = (),
    ) -> bool:
        sent = super().send(server_id, frame_type, buffers, urgent=urgent, more=more, keyed=keyed)
        if sent and frame_type is FrameType.RAFT:
            self.on_raft_frame(memoryview(b"".join(buffers)))
        return sent


class Machine:
    """One machine. `name` is its host name.

    Use: `on_start` is called with a process that has just opened its store, `on_down` when the
    process has ended, `on_raft_frame` with each RAFT frame that it sends.
    """

    def __init__(
        self,
        config: Config,
        *,
        time: VirtualTime,
        network: Network,
        disk: SimDisk,
        rng: Random,
        start_rng: Random,
        trace: Trace,
        turn_ns: int,
        wall_base_ms: int,
        drift_ppm: int,
        frames: FrameWeather,
        cuts_in_start: float,
    ) -> None:
        self.config = config
        self.server_id = config.server_id
        self.name = machine_name(config.server_id)
        self.time = time
        self.network = network
        self.disk = disk
        self.rng = rng
        self.start_rng = start_rng
        """Random source for which starts are interrupted, and where. Nothing else draws from it."""
        self.trace = trace
        self.turn_ns = turn_ns
        self.wall_base_ms = wall_base_ms
        self.wall_error_ms = 0
        """Deliberate error of the wall clock. Small jumps are not counted."""
        self.drift_ppm = drift_ppm
        self.frames = frames
        self.turn_cost_ns = 0
        """Time for each thing its loop handles; 0: turns take no time."""
        self.cuts_in_start = cuts_in_start
        """Chance that a start is interrupted."""
        self.condition = Condition.DOWN
        self.life: Life | None = None
        self.lives = 0
        """Number of starts, including interrupted ones."""
        self.crashes = 0
        """Number of processes that did not end in order."""
        self.starts_cut = 0
        self.on_start: Callable[[Life], None] = _ignore
        self.on_down: Callable[[Life], None] = _ignore
        self.on_raft_frame: Callable[[Life, memoryview], None] = _ignore_frame
        self.on_disk_lost: Callable[[Machine], None] = _ignore_loss
        """Called when the machine has got an empty disk."""
        self.encryption: Callable[[Life], LinkEncryption | None] = _unencrypted
        """Encryption of a process's links to its peers; None: it supports none."""
        self.guard: Callable[[Life, PeerHandler], PeerHandler] = _unguarded
        """Wraps the handler of a process's links."""
        self.hidden: dict[str, tuple[Directory, Node]] = {}
        """Parts of the data directory that were taken away, by name, with their directory."""
        self.foreign: tuple[str, Directory] | None = None
        """Name of another machine, and the copy of its disk that replaces this one's."""
        self.warnings: list[str] = []
        self.bereft = False
        """True if its disk has lost something that may not have been restored yet."""
        self.old_disk: OldDisk | None = None
        """Earlier copy of its disk, if one was made."""
        self.old_logs_end = 0
        """Logs with smaller ids on its disk come from an older copy. They are not counted."""
        self.losses = 0
        """Number of permanent losses of data on its disk."""
        self.starved = False
        """True if its segment writes hang while the journal goes on."""
        self.on_staged: Callable[[Life], None] = _ignore
        """Called whenever data is on its way to the journal."""
        self.damaged_entries: list[tuple[GroupId, LogId, Index]] = []
        """(group, log, index) of every entry that was damaged in a segment here."""
        self.untold: list[tuple[GroupId, LogId, Index]] = []
        """(group, log, end) of each log where, when a page went bad, a power cut would have removed
        the record of where the entries below `end` lie.
        """
        self.hears_catalog = True
        """True if its process receives the catalog's Raft messages."""
        self.peer_port = PEER_PORT
        """Port at which the next process accepts links."""
        self.has_port = True
        """True if its process can open its port for clients."""
        self.excused: set[str] = set()
        """Log events of errors that a server may report after faults done to its disk."""

    def note(self, text: str) -> None:
        self.trace.note(self.time.now_ns, f"{self.name}: {text}")

    @property
    def server(self) -> Server | None:
        return self.life.server if self.life is not None else None

    def log_of(self, group_id: GroupId) -> DiskLog | None:
        """Return the log of the running replica of a group; None if there is none."""
        host = self.server.host if self.server is not None else None
        group = host.groups.get(group_id) if host is not None else None
        if group is None:
            return None
        assert isinstance(group.log, DiskLog), group.log
        return group.log

    def start(self) -> None:
        """Switch the power on if necessary, and start the process."""
        if self.condition not in {Condition.DOWN, Condition.OFF}:
            return
        if self.hidden:
            self._try_without()
            return
        if self.foreign is not None:
            self._try_foreign(*self.foreign)
            return
        if self.cuts_in_start and self.start_rng.random() < self.cuts_in_start:
            self.start_and_cut(self.start_rng.choice(tuple(StartCut)))
            return
        self._begin_start()
        try:
            life = Life(self, self.lives)
        except OSError as error:
            if not _is_disk_error(error):
                raise
            self.note(f"does not start: {error}")
            self.disk.cut_jobs(())
            self._supervise(error)
            return
        self.life = life
        self.condition = Condition.RUNNING
        self.on_start(life)
        self.time.enter(life.clock)
        life.start()
        self.time.enter(None)

    def _begin_start(self) -> None:
        self.network.machine_up(self.name)
        self.condition = Condition.DOWN
        self.lives += 1
        self.note(f"starts, life {self.lives}")

    def start_and_cut(self, how: StartCut) -> None:
        """Start the process, end it before its store is open, and start it again later."""
        assert self.life is None, f"{self.name} runs"
        self._begin_start()
        disk, rng = self.disk, self.start_rng
        store_rng = Random(rng.getrandbits(64))
        opened, steps, _ = disk.run_job(lambda: self.open_store(NoWorkers(), store_rng))
        if isinstance(opened, BaseException) and not _is_disk_error(opened):
            raise opened
        writes = [n for n, step in enumerate(steps) if step.is_durable_write]
        if how is StartCut.IN_WRITE and writes:
            reached = rng.choice(writes)
        else:
            reached = rng.randint(0, len(steps))
        disk.cut_job(steps, reached=reached)
        self.note(f"{how.value} in its start, at step {reached} of {len(steps)}")
        self.starts_cut += 1
        if how is not StartCut.KILL:
            self.network.power_cut(self.name)
            disk.power_cut()
            self.condition = Condition.OFF
        self._start_again()

    def open_store(
        self, workers: Workers, rng: Random, on_release: Callable[[], None] | None = None
    ) -> DiskStore:
        fs = SimFileSystem(self.disk, on_release)
        server_id = self.config.server_id
        return DiskStore.open(fs, "data", workers, self.config.store, rng, server_id=server_id)

    def open_again(self) -> None:
        """Check that another process cannot open the directory, which is in use."""
        assert self.life is not None, f"{self.name} does not run"
        if self.life.server.state is ServerState.STOPPED:
            return  # it has released the directory
        store_rng = Random(self.start_rng.getrandbits(64))
        opened, steps, _ = self.disk.run_job(lambda: self.open_store(NoWorkers(), store_rng))
        changed = any(step.undo is not None for step in steps)
        failed = isinstance(opened, DirectoryInUse) or (
            isinstance(opened, BaseException) and _is_disk_error(opened)
        )
        if not failed or changed:
            self.warnings.append(f"a second process opened its directory, or wrote to it: {opened}")
        self.note(f"a second process tries its directory: {opened}")

    # --- missing parts ----------------------------------------------------------------------------
    def hide(self, part: str) -> bool:
        """Take a part of the data directory away. Return False if there is no such part.

        No process may be using the disk.
        """
        assert self.life is None, f"{self.name} runs"
        data = self.disk.root.entries.get("data")
        if self.hidden or not isinstance(data, Directory) or part not in data.entries:
            return False
        # A directory whose first start was interrupted is created anew, so it has lost nothing.
        identity = data.entries.get("identity")
        if not isinstance(identity, Inode) or not decode_identity(bytes(identity.data)).is_whole:
            return False
        self.note(f"{part} is missing")
        self.hidden[part] = data, data.entries.pop(part)
        data.durable.pop(part, None)
        return True

    def put_back(self) -> None:
        """Put back the hidden parts and the machine's own directory.

        Hidden parts stay away if the whole disk was replaced.
        """
        for part, (data, node) in self.hidden.items():
            if self.disk.root.entries.get("data") is data:
                self.note(f"{part} is there again")
                data.entries[part] = data.durable[part] = node
        self.hidden.clear()
        if self.foreign is not None:
            self.note("has its own directory again")
            self.foreign = None

    def _try_without(self) -> None:
        """Start although a part is missing. The start must be refused and change nothing."""
        self._begin_start()
        store_rng = Random(self.start_rng.getrandbits(64))
        self._try_in_vain(f"without {', '.join(self.hidden)}", DataMissing, store_rng)

    def try_journal_of(self, other: Machine) -> None:
        """Start with a copy of another machine's journal in place of the missing one.

        The start must be refused and change nothing.
        """
        data, theirs = self.disk.root.entries["data"], other.disk.root.entries["data"]
        assert isinstance(data, Directory), data
        assert isinstance(theirs, Directory), theirs
        journal, copy = theirs.entries["journal"], Directory()
        assert isinstance(journal, Directory), journal
        for name, node in journal.entries.items():
            assert isinstance(node, Inode), name
            inode = copy.entries[name] = copy.durable[name] = Inode()
            inode.data, inode.durable = bytearray(node.data), bytearray(node.data)
        data.entries["journal"] = data.durable["journal"] = copy
        self._try_in_vain(f"with the journal of {other.name}", ForeignFile, Random(0))
        del data.entries["journal"], data.durable["journal"]

    def give_directory_of(self, other: Machine) -> bool:
        """Replace this machine's disk with a copy of another's, until `put_back`.

        Return False if the other has no whole directory. No process may be using this machine's
        disk.
        """
        assert self.life is None, f"{self.name} runs"
        copy = copy_of(other.disk)
        if self.hidden or self.foreign or other.hidden or copy is None:
            return False
        self.note(f"has the directory of {other.name}")
        disk = SimDisk(Random(0), self.disk.profile)
        disk.put_back(copy.root)
        self.foreign = other.name, disk.root
        return True

    def _try_foreign(self, owner: str, root: Directory) -> None:
        """Start with another machine's directory. The start must be refused and change nothing."""
        self._begin_start()
        store_rng = Random(self.start_rng.getrandbits(64))
        own, self.disk.root = self.disk.root, root
        self._try_in_vain(f"in the directory of {owner}", ForeignDirectory, store_rng)
        self.disk.root = own

    def _try_in_vain(self, how: str, refusal: type[StorageError], rng: Random) -> None:
        opened, steps, _ = self.disk.run_job(lambda: self.open_store(NoWorkers(), rng))
        if not isinstance(opened, refusal):
            self.warnings.append(f"starts {how}: {opened}")
        elif any(step.undo is not None for step in steps):
            self.warnings.append(f"changes its disk although it does not start: {opened}")
        self.note(f"does not start: {opened}")
        self.disk.cut_job(steps, reached=len(steps))

    def kill(self) -> None:
        """Kill the process with SIGKILL. The page cache stays."""
        if self._end("killed"):
            self.crashes += 1

    def _end(self, how: str) -> bool:
        """End the process. Return False if there is none."""
        life = self._leave(how)
        if life is None:
            return False
        self.network.process_killed(self.name)
        life.workers.die()
        self.condition = Condition.DOWN
        return True

    def power_cut(self) -> None:
        """Cut the power: everything not durable is lost, and the machine sends no more."""
        life = self._leave("power cut")
        if life is not None:
            self.network.power_cut(self.name)
            life.workers.die()
            self.disk.power_cut()
            self.condition = Condition.OFF
            self.crashes += 1

    def cut_in_write(self, nth: int) -> None:
        """Cut the power during the nth durable write from now on."""
        self.disk.cut_at_write = nth
        self.disk.on_cut = self._cut_now

    def _cut_now(self) -> None:
        # The write takes a while: it has begun, and has not ended when this runs.
        self.time.after(0, self.power_cut)

    def fill_disk(self, room_bytes: int) -> None:
        """Let files grow by `room_bytes` more, and then not at all."""
        self.note(f"disk full in {room_bytes} bytes")
        self.disk.room = room_bytes
        self.excused.add("disk_full")

    def wipe(self) -> None:
        """Cut the power and replace the disk with an empty one."""
        self.power_cut()
        self.note("gets an empty disk")
        self.hidden.clear()
        self.foreign = None
        # They belong to the old disk; on the new one the same numbers are other logs.
        self.damaged_entries.clear()
        self.untold.clear()
        self.bereft = True
        self.losses += 1
        self.disk.wipe()
        self.on_disk_lost(self)
        self.old_disk = None
        self.old_logs_end = 0

    def roll_back(self, root: Directory, next_log_id: int) -> None:
        """Cut the power and replace the disk with an older copy of it.

        The copy may hold logs with ids below `next_log_id`.
        """
        self.power_cut()
        self.note("gets an older copy of its disk")
        self.hidden.clear()
        self.foreign = None
        self.damaged_entries.clear()
        self.untold.clear()
        self.bereft = True
        self.losses += 1
        self.disk.put_back(root)
        self.on_disk_lost(self)
        self.old_logs_end = next_log_id
        self.old_disk = None

    def damage(self, rng: Random) -> None:
        """Cut the power and flip a bit in data that the journal had made durable."""
        self.power_cut()
        block = flip_durable_bit(self.disk, rng)
        if block:
            self._journal_damaged(f"a bit flips in a journal block of {len(block)} bytes")

    def spoil_block(self, rng: Random) -> None:
        """Cut the power and make a page of a journal block unreadable."""
        self.power_cut()
        length = spoil_block(self.disk, rng)
        if length:
            self._journal_damaged(f"a page of a journal block of {length} bytes cannot be read")

    def _journal_damaged(self, what: str) -> None:
        self.note(what)
        self.bereft = True
        self.losses += 1
        self.excused |= {"replica_lost", "group_halted"}

    def spoil_segment(self, rng: Random) -> bool:
        """Make a page of a segment, or of its index, unreadable while the server runs.

        Return False if there is none. A page that holds no entry is read at once, others sometimes.
        """
        life = self.life
        if life is None or life.clock.paused or life.server.state is ServerState.STOPPED:
            return False
        if life.store.file_work or life.store.ahead_work:
            return False
        logs = [
            log
            for _, log in sorted(life.store.logs.items())
            if isinstance(log, DiskLog) and log.segments and not log.lost
            and log.first <= log.flushed_index == log.placement.index
        ]  # fmt: skip
        if not logs:
            return False
        log = rng.choice(logs)
        end = log.flushed_index + 1
        spoiled = spoil_segment(self.disk, log.files, log.first, end, rng)
        if spoiled is None:
            return False
        self.note(spoiled.what)
        if not spoiled.told:
            self.bereft = True
            self.losses += 1
            self.excused |= {"replica_lost", "group_halted"}
            self.untold.append((log.group_id, log.log_id, end))
        inside = spoiled.entries
        self.damaged_entries += [(log.group_id, log.log_id, index) for index in inside]
        # Every server with a copy may be down for long.
        self.excused.add("entries_unrecoverable")
        if not inside or rng.random() < READ_CHANCE:
            first = inside[0] if inside else log.first
            self.time.enter(life.clock)
            life.store.entries_cold(log, first, end, SPOILED_READ_BYTES, _ignore_entries)
            self.time.enter(None)
        return True

    def starve(self, *, is_starved: bool) -> None:
        """Make segment writes hang, or go on again."""
        if self.starved is not is_starved:
            self.note("flushes hang" if is_starved else "flushes go on")
            self.starved = is_starved
            if self.life is not None:
                self.life.workers.starve(is_starved=is_starved)

    def open_hole(self, group_id: GroupId, log_id: LogId, index: Index, rng: Random) -> None:
        """Flip a bit in an entry held by a segment, and in its log's checkpoint.

        No process may run.
        """
        assert self.life is None, f"{self.name} runs"
        files = self._log_files(log_id, group_id)
        if open_hole(self.disk, files, index, rng):
            self.note(f"a bit flips in entry {index} of group {group_id}")
            self.damaged_entries.append((group_id, log_id, index))
            # An interrupted start may also lose the newest Idx; then too much may be lost.
            self.bereft = True
            self.excused.add("replica_lost")
            # Every server with a copy may be down for long.
            self.excused.add("entries_unrecoverable")

    def unhealed(self) -> str:
        """Describe a damaged entry here that is still needed; empty if there is none."""
        logs = self.life.store.logs if self.life is not None else None
        for group_id, log_id, index in self.damaged_entries:
            if logs is not None:
                log = logs.get(log_id)
                if log is None or log.lost or index < log.first_index:
                    continue
            if is_hole(self._log_files(log_id, group_id), index):
                return f"{self.name}: entry {index} of group {group_id} is damaged"
        return ""

    def exposed(self) -> str:
        """Describe a log that a power cut may lose; empty if there is none."""
        logs = self.life.store.logs if self.life is not None else None
        for group_id, log_id, end in self.untold:
            if logs is not None and (log_id not in logs or logs[log_id].lost):
                continue
            if not are_told(self.disk, self._log_files(log_id, group_id), end):
                return f"{self.name}: nothing durable tells of a log of group {group_id}"
        return ""

    def _log_files(self, log_id: LogId, group_id: GroupId) -> LogFiles:
        return log_files(self.disk, log_id, group_id, self.config.store.index_segment_entries)

    def failed(self, error: BaseException) -> None:
        """End the process because of an error of its disk or port."""
        if self._end(f"ends itself: {error}"):
            self.crashes += 1
            self._supervise(error)

    def _supervise(self, error: BaseException) -> None:
        """Restart a process that a full disk or a port in use has ended, as init systems do.

        After a failed sync the process is not restarted automatically: an operator looks first.
        """
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EADDRINUSE}:
            self._start_again()

    def _start_again(self) -> None:
        """Start after `RESTART_NS`, unless the machine was started before."""
        number = self.lives

        def again() -> None:
            if self.lives == number:
                self.start()

        self.time.after(RESTART_NS, again)

    def stop(self, *, transfer: bool) -> None:
        """Stop the process, as SIGTERM or SIGINT does."""
        life = self.life
        if life is None or self.condition is not Condition.RUNNING:
            return
        self.note("stops")
        self.condition = Condition.STOPPING

        def stopped() -> None:
            self.time.after(0, ended)

        def ended() -> None:
            if self.life is life:
                self._end("stopped in order")

        self.time.enter(life.clock)
        life.server.stop(stopped, transfer=transfer)
        self.time.enter(None)

    def pause(self) -> None:
        if self.life is not None:
            self.note("paused")
            self.life.clock.pause()

    def resume(self) -> None:
        if self.life is not None and self.life.clock.paused:
            self.note("resumed")
            self.life.clock.resume()

    def take_time(self, turn_cost_ns: int) -> None:
        """Set the time that each thing its loop handles takes; 0: none takes any time."""
        self.turn_cost_ns = turn_cost_ns
        if self.life is not None:
            self.life.take_time(turn_cost_ns)

    def stall(self, stall_ns: int) -> None:
        """Make each turn of its loop take this much longer, until its process ends."""
        if self.life is not None:
            self.life.clock.stall_ns = stall_ns

    def jump_wall(self, delta_ms: int) -> None:
        """Move the machine's wall clock."""
        self.note(f"wall clock jumps {delta_ms} ms")
        self.wall_base_ms += delta_ms
        if self.life is not None:
            self.life.clock.jump_wall(delta_ms)

    def set_wall_error(self, error_ms: int) -> None:
        """Set the deliberate error of the wall clock; 0 makes it right again."""
        if error_ms != self.wall_error_ms:
            self.jump_wall(error_ms - self.wall_error_ms)
            self.wall_error_ms = error_ms

    def _leave(self, how: str) -> Life | None:
        """Detach and stop the current process; return it."""
        life, self.life = self.life, None
        if life is not None:
            self.note(how)
            self.on_down(life)
            life.clock.stop()
        return life


class Edge:
    """Adapter between a simulated stream and a client session, as the listener is for sockets."""

    __slots__ = ("_closing", "_last", "_session", "_stream")

    def __init__(self, frontend: Frontend, stream: SimStream, peer: Address) -> None:
        self._stream = stream
        self._last: Sequence[Buffer] = ()
        self._closing = False
        self._session: Session | None = frontend.accept(self, LISTENER, peer)
        if self._session is None:
            stream.abort()
        else:
            stream.start(self)

    # --- StreamOwner ----------------------------------------------------------------------------
    def get_buffer(self) -> memoryview:
        session = self._session
        if session is None or session.closed:
            return memoryview(bytearray(_SCRAP_BYTES))
        return session.connection.get_buffer()

    def buffer_updated(self, received: int) -> None:
        if self._session is not None and not self._session.closed:
            self._session.buffer_updated(received)

    def writable(self) -> None:
        if self._closing:
            self.close(self._last)
        elif self._session is not None:
            self._session.resume_writing()

    def ended(self, cause: str) -> None:
        del cause
        if self._session is not None:
            self._session.connection_lost()

    # --- the session's transport ----------------------------------------------------------------
    def send(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        unsent = deque(buffers)
        write_unsent(self._stream, unsent)
        return list(unsent)

    def close(self, rest: Sequence[Buffer]) -> None:
        self._closing = True
        self._last = self.send(rest)
        if not self._last:
            self._stream.close()

    def abort(self) -> None:
        self._stream.abort()

    def pause_reading(self) -> None:
        self._stream.pause_reading()

    def resume_reading(self) -> None:
        self._stream.resume_reading()


class TraceLog:
    """Server log that writes to the trace and keeps errors in `Machine.warnings`."""

    __slots__ = ("_machine",)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def note(self, event: str, **fields: Value) -> None:
        """Ignore it: such events are not part of the trace."""

    def info(self, event: str, **fields: Value) -> None:
        self._machine.note(_line(event, fields))

    def warning(self, event: str, **fields: Value) -> None:
        self._machine.note(_line(event, fields))

    def error(self, event: str, **fields: Value) -> None:
        line = _line(event, fields)
        if event not in self._machine.excused:
            self._machine.warnings.append(line)
        self._machine.note(line)


def machine_name(server_id: ServerId) -> str:
    """Return the host name of a server's machine."""
    return f"s{server_id}"


def _is_disk_error(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_ERRORS


def _line(event: str, fields: dict[str, Value]) -> str:
    return " ".join([event, *(f"{name}={value}" for name, value in fields.items())])


def _ignore(life: Life) -> None:
    """Ignore it: the default of `on_start`, `on_down` and `on_staged`."""


def _ignore_entries(found: object) -> None:
    """Ignore the entries."""


def _ignore_loss(machine: Machine) -> None:
    """Ignore it: the default of `on_disk_lost`."""


def _unencrypted(life: Life) -> LinkEncryption | None:
    del life
    return None


def _unguarded(life: Life, handler: PeerHandler) -> PeerHandler:
    del life
    return handler


def _ignore_frame(life: Life, payload: memoryview) -> None:
    """Ignore it: the default of `on_raft_frame`."""
