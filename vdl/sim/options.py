"""Options that a seed draws before anything runs: the world's size, network, faults and load.

Every option is drawn, and most are off in a fifth of the seeds, so that faults also occur alone:
many different worlds find more than one world with everything in it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields, replace
from random import Random

OFF = 0.2
"""Chance that an option is off."""

PRODUCER_EXPIRY_MS = (8_000, 12_000)
"""Longer than a batch's retries plus a pause of the server that holds it: see `ProducerLoad`."""

LATE = 0.125
"""Chance that turns of the servers' loops take time."""
STALL = 0.2
"""Chance that loops stall for a while."""
TURN_COST_US = (20, 1_000)
"""Time for each message, request and turn.

The largest is about five times what a real server takes: worlds are small, and the cost must have
an effect.
"""

ONE_FAULT = 0.25
"""Chance of one more fault, alone, after everything has settled."""
KINDS = ("kill", "pause", "cut", "mute", "deaf", "slow disk", "narrow link")

FILLS = 0.4
"""Chance that the disks of a majority fill at the end."""

BRIDGING = 0.25
"""Chance of bridges: a server reaches others that do not reach each other."""
BRIDGES = (0.1, 0.4)
BRIDGED = 0.6
"""Share of these worlds that also have one at the end, with no other fault."""
NO_CATALOG, NO_PORT = "no catalog", "no port"
"""Reasons for which a server serves no clients."""
CLOSES = 0.3
"""Chance that some servers serve no clients."""

LAGS = 0.1
LEARNER_SYNC_MS = (80, 120)
"""Range of the slow replica's sync time. A few such syncs take less than an election timeout."""

LAGGING_KIB = 4 << 10
LAGGING_INDEX_ENTRIES = 4 << 10

ROLLED_BACK = 0.25
"""Chance that machines come back with older copies of their disks."""
MISPLACED = 0.15
"""Chance that machines are started in the directories of others."""
STARVES = 0.15
"""Chance that all machines get a small part of their processors at times."""

SLOWLY_FED = 0.3
"""Chance that the catch-up rate is limited."""
CATCH_UP_KIB = (16, 512)
"""Range of that limit.

It is far below what one disk read may return, so unused budget must be returned.
"""

COMPACTED = 0.5
"""Chance of a compacted partition beside the others."""
PLACING = 0.5
PLACE_BYTES = (100, 4_000)
"""Range of the size from which appends are written to segments at once (chance: `PLACING`)."""
LARGE = 0.6
LARGE_BYTES = (100, 6_000)
"""Range of the size of large entries where appends are placed (chance: `LARGE`)."""
LARGE_RECORD_BYTES = (6_000, 16_000)
"""Range of the size of the largest records then: the first pages are not written ahead."""
LARGE_SEGMENT_KIB = 128
"""Least size of segments then: an entry larger than a segment is not placed."""
BATCH_OVERHEAD, RECORD_OVERHEAD = 200, 50
"""Upper bounds on the overhead of a batch, and of a record beside its value, in bytes."""
BY_EPOCHS = 0.3
"""Chance of members of a group whose coordinator assigns (KIP-848)."""
CROWDED = 0.005
"""Chance that a server holds very many groups. Such a world takes as long as twenty others."""
QUIET_GROUPS = (200, 3_000)
CROWDED_JOURNAL_KIB, CROWDED_CACHE_KIB = 16 << 10, 64 << 10

TRANSACTIONAL = 0.25
"""Chance of transactions."""
ANSWERED_LATE = 0.8
"""Chance, given transactions, that there are many and answers to their coordinators are late."""
LATE_ROUNDS = (2, 6)
MANY_PRODUCERS = (6, 9)
QUICK_US_MAX = 1_000
MANY_PARTITIONS = 6

GROWS = 0.2
"""Chance that the topic gets more partitions."""

SHARED = 0.25
"""Chance that a share group reads the topic."""
SHARE_LIMITS = (2, 3, 10, 10)
"""Delivery limits of a record, from the lowest to the highest (`vdl.check.shares.LOST_LIMIT`)."""

MOVING = 0.2
"""Chance that partitions are moved."""
MOVING_SERVERS = (4, 5, 5)

NARROW = 0.125
"""Chance that links are slow."""

AIMED = (0.2, 0.5)
"""Range of the draw that enables faults and members aimed at states that chance alone rarely
reaches: three worlds of ten.
"""

NARROW_JITTER_US_MAX = 2_000

INTRUDED = (0.9, 1.0)
"""Like `AIMED`: range of the draw for worlds with intruders, a tenth of all."""
ENCRYPTED = 0.8
"""Share of these worlds whose links are encrypted."""

STALL_MS = (100, 400)
"""From hardly any delay to the most that costs no leader its leadership: see `lateness`."""

FLOODED_CACHE_KIB = 64 << 10
"""More than twice the bytes that floods of three partitions have in flight."""

INTENSITY_MIN = 0.4
"""Lower bound of the factor, at most 1 and log-uniform, that scales all fault rates of a seed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of one world. Rates are per second of virtual time, over the whole world."""

    servers: int = 3
    coordinators: int = 2
    partitions: int = 3
    seconds: int = 12
    """Length of the safety phase."""

    # Network, loop and clocks.
    delay_us: int = 100
    jitter_us: int = 100
    loss: float = 0.0
    split: float = 0.1
    raft_loss: float = 0.0
    raft_duplicates: float = 0.0
    raft_delays: float = 0.0
    """Chances that a received RAFT frame is dropped, is repeated, is held back past later ones."""
    turn_us: int = 20
    sync_us: int = 300
    drift_ppm: int = 0
    """Largest rate error of the servers' monotonic clocks, either way, in parts per million."""

    # Faults.
    spell_ms_max: int = 4_000
    """Longest spell of faults.

    A few seconds, so that not all faults overlap. Faults that show only after a while need longer
    ones.
    """
    kills: float = 0.0
    power_cuts: float = 0.0
    cuts_in_write: float = 0.0
    """Power cuts during a journal write."""
    cuts_in_start: float = 0.0
    """Chance, not rate, that any start is interrupted by a kill or a power cut."""
    wrong_clocks: float = 0.0
    """A server starts with a wall clock that is wrong by days or decades, corrected later."""
    clock_steps: float = 0.0
    """A running server's wall clock is set wrong by days or decades, and corrected later."""
    sleeps: float = 0.0
    """All machines sleep for days: wall clocks advance, monotonic clocks do not."""
    cuts_at_places: float = 0.0
    """Power cuts and kills soon after a machine's store passed a certain failpoint."""
    stops: float = 0.0
    pauses: float = 0.0
    partitions_cut: float = 0.0
    one_way_cuts: float = 0.0
    resets: float = 0.0
    clogs: float = 0.0
    slow_disks: float = 0.0
    sync_failures: float = 0.0
    clock_jumps: float = 0.0
    full_disks: float = 0.0
    outages: float = 0.0
    """All machines lose power at once."""
    brownouts: float = 0.0
    """Some machines lose power at once."""
    wipes: float = 0.0
    """A machine gets an empty disk."""
    damage: float = 0.0
    """A bit flips in data that a machine's journal had made durable."""
    deafness: float = 0.0
    """A machine receives no RAFT frames although its links are up."""
    missing: float = 0.0
    """A part of a machine's data directory is missing at a start and is put back later."""
    bad_headers: float = 0.0
    """One page of a journal file's header, or of the identity file, is damaged or unreadable."""
    second_openers: float = 0.0
    """Another process tries to open a directory that is in use."""
    damaged_entries: float = 0.0
    """Machines come back with damaged entries that they still have to apply."""
    flush_starves: float = 0.0
    """A machine's segment writes hang while its journal writes go on."""
    bad_pages: float = 0.0
    """A page of a segment or an index becomes unreadable while its server runs."""
    bad_blocks: float = 0.0
    """A page that a machine's journal had made durable is unreadable at its start."""
    lone_leaders: float = 0.0
    """A leader is reachable by clients only, so the entries it appends are of an older term than
    those of the others. When these have elected a leader, that one is killed.
    """
    bridges: float = 0.0
    """Servers on two sides do not reach each other; one in the middle reaches all, and then loses
    one side for a while (`bridge.py`).
    """
    closures: float = 0.0
    """A machine's process restarts and serves no clients for a while (`closed_server.py`)."""
    old_copies: float = 0.0
    """A machine comes back with an older copy of its disk."""
    other_directories: float = 0.0
    """A machine is started in another one's directory."""
    starvations: float = 0.0
    """All machines get a small part of their processors for a while."""
    held_snapshots: bool = False
    """True if snapshots arrive just when a checkpoint's notes are on their way to the journal."""
    majority_first: bool = False
    """True if only a majority is healed first: it must elect leaders without the others."""

    # Store: small sizes, so that files roll, checkpoints happen and caches miss.
    segment_kib: int = 32
    journal_kib: int = 128
    checkpoint_kib: int = 64
    cache_kib: int = 1024
    index_entries: int = 256
    """Entries of an index file: far below a server's smallest setting, so that small logs have
    many.
    """
    small_cache_kib: int = 0
    """If not 0, used in place of `cache_kib`: soon filled when flushes hang."""
    epoch_members: int = 0
    """Members of a group whose coordinator assigns."""
    static_members: bool = False
    """True if some members have an instance id. Only a kind of worlds of its own has them."""
    mixed_group: bool = False
    """True if members of both protocols are in one group, which is converted both ways.

    Only a kind of worlds of its own has it.
    """
    wide_patterns: bool = False
    """True if patterns match the topics that are created and deleted, too."""
    groups_settle: bool = False
    """True if the members stay at last, and the groups must come to rest and read everything."""
    place_bytes: int = 0
    """Appends of at least this size are written to their segments at once; 0: none are."""
    large_bytes: int = 0
    """Entries of at least this size are not copied, and are written ahead where appends are placed;
    0: none are."""
    command_entries: int = 10_000
    """Entries that the logs of commands keep behind a checkpoint."""

    min_in_sync: int = 1
    """`min.insync.replicas` of the topic."""

    # Load.
    idempotent_producers: int = 2
    plain_producers: int = 1
    readers: int = 1
    members: int = 2
    late_commits: bool = False
    """True if members also commit under the generation before their current one."""
    sends_per_second: int = 20
    records_max: int = 3
    record_bytes_max: int = 200
    topic_churn: float = 0.0
    growth: int = 0
    """Partitions added to the topic while the load runs, one after the other."""
    old_clients: bool = False
    liars: int = 0
    """Clients whose batches contradict their headers or are malformed."""
    check_on_loop_bytes: int = 2 << 20
    """Larger batches are checked off the loop."""
    behind_kib: int = 0
    """If not 0: limit on the caches' size.

    Readers from disk get hardly more than the budget that producers earn them, and after the heal a
    consumer starts behind and must catch up.
    """
    deaf_clients: int = 0
    """Clients that make one server after another hold memory."""
    fetch_sessions: bool = False
    failover_sync_ms: int = 0
    """If not 0: after the heal, with all syncs taking this long, the server that leads most groups
    is killed. Its groups must have leaders again within a few syncs, in few terms.
    """
    producer_expiry_ms: int = 0
    """If not 0: servers forget producers that were idle for this long; some producers are."""
    link_kib: int = 0
    """Bandwidth of a link between two servers, per second; 0: unlimited."""
    turn_cost_us: int = 0
    """If not 0: time that a server's loop spends on each message, request and turn."""
    stall_ms: int = 0
    """If not 0: once, with no other fault, turns of loops take this much longer for a while.

    No group may lose its leader because of it.
    """
    one_fault: str = ""
    """If not empty: after everything is healed and settled, this kind of fault hits the server that
    leads most groups. Its permitted cost is known: see `one_fault`.
    """
    bridged: bool = False
    """True if a bridge is set up at the end, with no other fault: a leader is deposed by a server
    that it does not reach (`bridge.py`).
    """
    closed: str = ""
    """If not empty: at the end the server that leads most groups serves no clients, for this
    reason, and another one restarts. All groups must be led by servers that serve
    (`closed_server.py`).
    """
    learner_sync_ms: int = 0
    """If not 0: at the end a replica is rebuilt on a disk with this sync time, under a steady load.

    It must become a voter (`slow_learner.py`).
    """
    fills_disks: bool = False
    """True if, last, the disks of all servers but one leader's fill (`filled_disks.py`)."""
    catch_up_kib: int = 0
    """If not 0: `raft.catch_up_rate`, per second; small, so that followers wait for their turns."""
    floods: int = 0
    """Partitions written as fast as the links allow, before any fault."""

    moves: float = 0.0
    """Partitions are moved between servers, of which there are more than a partition needs."""
    replicas_min: int = 3
    """Smallest number of replicas that a move leaves; below three only where no disk is lost."""
    joiners: int = 0
    """Machines beside the servers, which are added to the cluster and removed (`joiners.py`). Only
    a kind of worlds of its own has any.
    """
    member_changes: float = 0.0
    """Requests to add, remove or take back such a server, per second."""
    member_strikes: float = 0.0
    """Stops of a server in the middle of an addition or a removal (`member_faults.py`)."""
    joiner_wipes: float = 0.0
    """Losses of an added server's disk."""
    member_cuts: float = 0.0
    """Network partitions between the servers that were added and the initial ones."""
    keyed: bool = False
    """True if a compacted partition is written beside the others (`keyed.py`)."""
    keys: int = 12
    """Keys of that partition.

    With few keys the newest records are soon all after the compacted part.
    """

    transactional_producers: int = 0
    """Producers of transactions, and readers of the records they commit, in a topic of their own
    (`transactional.py`).
    """
    transactional_partitions: int = 2
    """Partitions of that topic."""
    late_answers: int = 0
    """Times that, before any other fault, a server that sends transaction results to partitions
    restarts while these do not answer (`late_answers.py`).
    """
    share_members: int = 0
    """Members of a share group that reads the topic."""
    share_limit: int = 10
    """Largest number of times that a record is delivered to the share group."""

    encrypted: bool = False
    """True if servers authenticate each other with certificates."""
    goes_over: bool = False
    """True if servers migrate to encryption while the world runs: at each process start as far as
    the others allow (`going_over.py`). Not combined with intruders: until all have migrated, any
    client may claim to be a server. No seed draws it.
    """
    intruders: int = 0
    """Number of concurrent hosts that pretend to be a server (`intruder.py`)."""

    quiet_groups: int = 0
    """Partitions without writes, created at birth.

    Each is a group like any other: it must have a leader again after every fault.
    """

    @property
    def partitions_max(self) -> int:
        """Final number of partitions of the topic."""
        return self.partitions + self.growth

    @property
    def batch_bytes_max(self) -> int:
        """Approximate size limit of a producer's batch, in bytes."""
        return BATCH_OVERHEAD + self.records_max * (RECORD_OVERHEAD + self.record_bytes_max)

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of batches that a leader appends before the first of them commits; 0: many.

        Fewer than the largest batch has, in every fourth world, so that large batches are held and
        smaller ones behind them would have room. Loads with a fixed rate need more.
        """
        is_few = self.sync_us % 4 == 1 and not (self.link_kib or self.learner_sync_ms)
        return self.batch_bytes_max // 2 if is_few else 0

    @property
    def ages(self) -> bool:
        """True if clocks become so wrong that the world must hold data they could delete."""
        return bool(self.wrong_clocks or self.clock_steps or self.sleeps)

    def describe(self) -> str:
        """Return every option that is not at its default, as name=value."""
        changed = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if getattr(self, f.name) != f.default
        ]
        return " ".join(changed)


def draw(rng: Random) -> Options:
    """Draw the options of a seed's world."""

    def rate(low: float, high: float) -> float:
        return 0.0 if rng.random() < OFF else round(rng.uniform(low, high), 3)

    # Rough worlds find failures caused by single hard faults; gentle ones, failures in operations
    # that need a while to be half done.
    intensity: float = INTENSITY_MIN ** rng.random()

    def fault(low: float, high: float) -> float:
        return round(intensity * rate(low, high), 3)

    def spread(low: int, high: int) -> int:
        """Return a log-uniform draw: each order of magnitude is equally likely."""
        return int(low * (high / low) ** rng.random())

    drawn = Options(
        servers=rng.choice((1, 3, 3, 3, 3, 3, 3, 5)),
        coordinators=rng.choice((1, 2)),
        partitions=rng.randint(1, 4),
        seconds=rng.randint(7, 14),
        delay_us=spread(20, 2_000),
        jitter_us=0 if rng.random() < OFF else spread(20, 20_000),
        loss=rate(0.0, 0.1),
        split=rate(0.0, 0.5),
        raft_loss=rate(0.0, 0.1),
        raft_duplicates=rate(0.0, 0.2),
        raft_delays=rate(0.0, 0.2),
        turn_us=spread(5, 500),
        sync_us=spread(50, 20_000),
        drift_ppm=0 if rng.random() < OFF else spread(100, 50_000),
        kills=fault(0.05, 0.5),
        power_cuts=fault(0.05, 0.3),
        cuts_in_write=fault(0.0, 0.3),
        stops=fault(0.0, 0.2),
        pauses=fault(0.0, 0.3),
        partitions_cut=fault(0.0, 0.4),
        one_way_cuts=fault(0.0, 0.3),
        resets=fault(0.0, 0.5),
        clogs=fault(0.0, 0.5),
        slow_disks=fault(0.0, 0.3),
        sync_failures=fault(0.0, 0.2),
        clock_jumps=fault(0.0, 0.3),
        full_disks=fault(0.0, 0.25),
        outages=fault(0.0, 0.15),
        brownouts=fault(0.0, 0.15),
        wipes=fault(0.1, 0.6),
        damage=fault(0.1, 0.6),
        majority_first=rng.random() < 0.25,
        segment_kib=spread(4, 256),
        journal_kib=spread(32, 256),
        checkpoint_kib=spread(16, 512),
        cache_kib=spread(256, 4096),
        command_entries=spread(3, 500),
        idempotent_producers=rng.randint(1, 3),
        plain_producers=rng.randint(0, 2),
        readers=rng.randint(0, 2),
        members=rng.randint(0, 3),
        sends_per_second=spread(6, 25),
        records_max=rng.randint(1, 5),
        record_bytes_max=spread(20, 4_000),
        topic_churn=rate(0.0, 0.3),
        old_clients=rng.random() < 0.3,
        # Drawn last, so that the values of older options in a seed do not depend on it.
        cuts_in_start=fault(0.1, 0.6),
        cuts_at_places=fault(0.1, 0.6),
        liars=0 if rng.random() < OFF else 1,
        check_on_loop_bytes=spread(64, 16 << 10),
        wrong_clocks=fault(0.1, 0.6),
        clock_steps=fault(0.1, 0.6),
        sleeps=fault(0.0, 0.1),
        deafness=fault(0.1, 0.5),
        min_in_sync=rng.choice((1, 1, 2, 3)),
        missing=fault(0.05, 0.4),
        bad_headers=fault(0.1, 0.5),
        second_openers=fault(0.1, 0.6),
        behind_kib=0 if rng.random() < 0.7 else spread(16, 64),
        deaf_clients=rng.choice((0, 0, 1)),
        fetch_sessions=rng.random() < 0.6,
        damaged_entries=fault(0.1, 0.5),
        flush_starves=fault(0.1, 0.5),
        small_cache_kib=0 if rng.random() < 0.5 else spread(8, 64),
        bad_pages=fault(0.1, 0.5),
        bad_blocks=fault(0.1, 0.4),
        producer_expiry_ms=0 if rng.random() < 0.6 else spread(*PRODUCER_EXPIRY_MS),
        failover_sync_ms=0 if rng.random() < 0.8 else spread(100, 2_000),
    )
    world = drawn if rng.random() >= NARROW else _narrowed(drawn, rng, spread)
    # Drawn after the rest and in some worlds only, so that other worlds stay as they were.
    if AIMED[0] <= rng.random() < AIMED[1]:
        world = replace(
            world,
            lone_leaders=round(rng.uniform(0.2, 0.5), 3),
            late_commits=rng.random() < 0.7,
            held_snapshots=True,
        )
    world = replace(
        world,
        turn_cost_us=spread(*TURN_COST_US) if rng.random() < LATE else 0,
        stall_ms=rng.randint(*STALL_MS) if rng.random() < STALL else 0,
        catch_up_kib=spread(*CATCH_UP_KIB) if rng.random() < SLOWLY_FED else 0,
        one_fault=rng.choice(KINDS) if rng.random() < ONE_FAULT else "",
    )
    if world.behind_kib or world.small_cache_kib or world.link_kib:
        # A follower with little memory takes little of the data read for it, and all of that data
        # counts against the rate. Slow links are flooded with more than that rate ever sends.
        world = replace(world, catch_up_kib=0)
    if rng.random() < CROWDED and not world.link_kib:
        world = _crowded(world, spread(*QUIET_GROUPS))
    if rng.random() < GROWS:
        world = replace(world, growth=rng.randint(1, 3))
    if rng.random() < MOVING and not (world.quiet_groups or world.link_kib):
        world = moving(world, rng)
    # A small memory and full links have no room for the extra writes.
    is_roomy = not (world.link_kib or world.behind_kib or world.small_cache_kib)
    if rng.random() < COMPACTED and is_roomy and not world.quiet_groups:
        world = replace(world, keyed=True)
    world = replace(world, place_bytes=spread(*PLACE_BYTES) if rng.random() < PLACING else 0)
    if rng.random() < TRANSACTIONAL and is_roomy and not world.quiet_groups:
        world = replace(world, transactional_producers=rng.randint(1, 2))
    if rng.random() < BY_EPOCHS and not (world.quiet_groups or world.link_kib):
        world = replace(world, epoch_members=rng.randint(1, 4))
    if rng.random() < SHARED:
        world = replace(
            world, share_members=rng.randint(1, 3), share_limit=rng.choice(SHARE_LIMITS)
        )
    if INTRUDED[0] <= rng.random() < INTRUDED[1] and world.servers > 1:
        world = intruded(world, rng)
    # Journals with room for very many groups take long to fill.
    if rng.random() < FILLS and is_roomy and not world.quiet_groups:
        world = replace(world, fills_disks=True)
    if rng.random() < ANSWERED_LATE and world.transactional_producers and world.servers > 2:
        world = answered_late(world, rng)
    if world.servers > 2 and rng.random() < BRIDGING:
        world = replace(
            world, bridges=round(rng.uniform(*BRIDGES), 3), bridged=rng.random() < BRIDGED
        )
    if rng.random() < CLOSES:
        world = replace(
            world, closures=fault(0.1, 0.5), closed=rng.choice(("", NO_CATALOG, NO_PORT))
        )
    is_even = is_roomy and not (world.catch_up_kib or world.turn_cost_us or world.moves)
    if rng.random() < LAGS and is_even and not world.quiet_groups:
        world = _lagging(world, spread(*LEARNER_SYNC_MS))
    if rng.random() < ROLLED_BACK and world.servers > 2 and not world.fills_disks:
        world = rolled_back(world, rng)
    if world.servers > 1 and rng.random() < MISPLACED:
        world = replace(world, other_directories=fault(0.1, 0.5))
    # Drawn from a copy: kinds draw on from here, and their worlds stay as they were.
    own = copy(rng)
    if own.random() < STARVES:
        world = replace(world, starvations=round(intensity * own.uniform(0.1, 0.4), 3))
    if own.random() < LARGE and world.place_bytes:
        world = replace(
            world,
            large_bytes=own.randint(*LARGE_BYTES),
            record_bytes_max=own.randint(*LARGE_RECORD_BYTES),
            segment_kib=max(world.segment_kib, LARGE_SEGMENT_KIB),
        )
    return world


def rolled_back(drawn: Options, rng: Random) -> Options:
    """Return the same options with old copies of disks.

    It takes a while until all others have recorded a directory's progress. Other losses are
    switched off, because they would leave few moments at which a rollback is allowed.
    """
    return replace(
        drawn,
        old_copies=round(rng.uniform(0.5, 2.0), 3),
        seconds=max(drawn.seconds, 12),
        wipes=0.0,
        damage=0.0,
        damaged_entries=0.0,
        bad_pages=0.0,
        bad_blocks=0.0,
    )


def intruded(drawn: Options, rng: Random) -> Options:
    """Return the same options with intruders.

    Without encryption few of their frauds can be detected.
    """
    return replace(drawn, encrypted=rng.random() < ENCRYPTED, intruders=rng.randint(1, 3))


def answered_late(drawn: Options, rng: Random) -> Options:
    """Return the same options with many transactions and restarts of their coordinators.

    Disks and links are fast enough for a restarted server to stay leader.
    """
    return replace(
        drawn,
        delay_us=min(drawn.delay_us, QUICK_US_MAX),
        jitter_us=min(drawn.jitter_us, QUICK_US_MAX),
        sync_us=min(drawn.sync_us, QUICK_US_MAX),
        transactional_producers=rng.randint(*MANY_PRODUCERS),
        transactional_partitions=MANY_PARTITIONS,
        late_answers=rng.randint(*LATE_ROUNDS),
    )


def _lagging(drawn: Options, sync_ms: int) -> Options:
    """Return the same options with a replica that lags by a few syncs.

    Small journals, segments and index files would need many more syncs: at 150 KB/s segments of 4
    KiB are 37 files a second, and at 1,000 entries a second index files of 256 are four, each with
    a sync of its own and of its directory. That is too many for a disk whose syncs take a tenth of
    a second. With a bad network a round would wait for other things than the disk.
    """
    return replace(
        drawn,
        learner_sync_ms=sync_ms,
        loss=0.0,
        jitter_us=min(drawn.jitter_us, NARROW_JITTER_US_MAX),
        sync_us=min(drawn.sync_us, NARROW_JITTER_US_MAX),
        journal_kib=max(drawn.journal_kib, LAGGING_KIB),
        checkpoint_kib=max(drawn.checkpoint_kib, LAGGING_KIB),
        segment_kib=max(drawn.segment_kib, LAGGING_KIB),
        cache_kib=max(drawn.cache_kib, LAGGING_KIB),
        index_entries=LAGGING_INDEX_ENTRIES,
    )


def moving(drawn: Options, rng: Random) -> Options:
    """Return the same options with partitions that move.

    Options whose limits assume a fixed membership (cost of a failover, electing majority) are off.
    """
    return replace(
        drawn,
        servers=rng.choice(MOVING_SERVERS),
        moves=round(rng.uniform(0.2, 1.0), 3),
        majority_first=False,
        failover_sync_ms=0,
        one_fault="",
    )


def _crowded(drawn: Options, groups: int) -> Options:
    """Return the same options with very many groups, and journals large enough for their notes."""
    return replace(
        drawn,
        quiet_groups=groups,
        journal_kib=CROWDED_JOURNAL_KIB,
        cache_kib=CROWDED_CACHE_KIB,
        small_cache_kib=0,
        behind_kib=0,
    )


def _narrowed(drawn: Options, rng: Random, spread: Callable[[int, int], int]) -> Options:
    """Return the same options with slow links, and memory for the data that waits for them.

    Slow links that also lose segments would carry hardly anything, and all of it late.
    """
    return replace(
        drawn,
        loss=0.0,
        jitter_us=min(drawn.jitter_us, NARROW_JITTER_US_MAX),
        link_kib=spread(1_000, 12_000),
        floods=rng.randint(1, 3),
        cache_kib=FLOODED_CACHE_KIB,
        small_cache_kib=0,
        behind_kib=0,
    )
