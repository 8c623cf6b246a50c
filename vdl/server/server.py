"""One server, assembled from its parts and driven by the loop it is given.

A server without a cluster queries its seeds until a cluster is founded or found (`Birth`). A server
with one opens its replicas, registers itself in the catalog and serves clients. Nothing here
depends on whether time, disk and network are real: `vdl.server.process` runs a server on asyncio,
`vdl.sim` runs several in one thread on virtual time.

States: ASKING (no cluster yet) → STARTING (opening, registering) → SERVING → STOPPING → STOPPED.
WAITING is the state of a server whose directory its cluster does not know. It takes no part until
its replicas are replaced, or, if it is not one of the first servers, until it is added; then it
continues with STARTING. REMOVED is the state of a server that was removed from its cluster: it
takes no part and serves no clients.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from ids import GroupId, ServerId
from rpc.birth import decode_answer, encode_ask
from rpc.errors import MalformedFrame
from rpc.hello import Hello, RejectReason
from rpc.links import Links
from rpc.peer import FrameType
from rpc.streams import PeerHandler
from segments.api import ForeignDirectory, Store
from vdl.clock import MS, Clock
from vdl.config.settings import Config
from vdl.errors import ErrorCode
from vdl.kafka.connections.frontend import Frontend
from vdl.kafka.context import Context
from vdl.kafka.groups.group_coordinator import GroupCoordinator
from vdl.kafka.host import Compute, at_once
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.kafka.security.audit import AuditLog
from vdl.kafka.security.delegation_keys import DelegationKeys
from vdl.kafka.security.oauth import Validator
from vdl.kafka.transactions.transaction_coordinator import TransactionCoordinator
from vdl.kafka.views.offsets_topic import OFFSETS_TOPIC, commit_log, offsets_topic
from vdl.kafka.views.transactions_topic import (
    TRANSACTIONS_TOPIC,
    transaction_log,
    transactions_topic,
)
from vdl.log import Log, Loggers, Repeats
from vdl.logstream.bootstrap import (
    Birth,
    BirthRecord,
    BirthState,
    configuration_digest,
    decode_record,
    encode_record,
)
from vdl.logstream.group.state_group import Outcome, OutcomeKind
from vdl.logstream.host import Host
from vdl.logstream.membership.added_servers import removed_text
from vdl.logstream.options import TICK_NS
from vdl.logstream.peers.journal_marks import boots_info
from vdl.logstream.state import CATALOG_GROUP, HostState
from vdl.records.walk import IS_NATIVE
from vdl.server.file_settings import file_settings
from vdl.server.front import ClientFront
from vdl.server.partition_counts import PartitionCounts
from vdl.server.peer_addresses import PeerAddresses
from vdl.state.commands import AlterScramCredentials, RegisterServer, ScramUpsert
from vdl.state.features import SUPPORTED

_REGISTER_RETRY_NS = 300 * MS
_REGISTER_DEADLINE_NS = 2_000 * MS
_STOP_POLL_NS = 5 * MS
_LINGER_NS = 400 * MS
"""Longest time that a server without leaderships redirects clients that still send requests."""
_LINGER_QUIET_NS = 100 * MS
REFUSED_NS = 30_000 * MS
"""Time for which a link counts as refused: it is dialled again each second."""
_CLUSTER_ID_BYTES = 16
_DECOY_KEY_BYTES = 32
_ADDED_POLL_NS = 1_000 * MS
"""Interval at which a server that waits to be added requests the cluster's answer."""
_PATIENCE_NS = 5_000 * MS
"""Delay after which a server that waits for others to found a cluster logs it."""


class ServerState(Enum):
    """State of a server: see the module."""

    ASKING = "asking"
    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    REMOVED = "removed"
    STOPPING = "stopping"
    STOPPED = "stopped"


RECOVERED_TIMEOUTS = 10
"""Election timeouts in which a server whose peers say that it has no part must come to serve."""


class Server:
    """One server: see the module. Implements `rpc.streams.PeerHandler` until its host does."""

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        clock: Clock,
        rng: random.Random,
        random_bytes: Callable[[int], bytes],
        make_links: Callable[[Hello, PeerHandler], Links],
        advertised: dict[str, tuple[str, int]],
        log: Log,
        log_of: Callable[[str], Log] | None = None,
        loggers: Loggers | None = None,
        login_compute: Compute = at_once,
        pattern_compute: Compute | None = None,
        cpu_ns: Callable[[], int] = lambda: 0,
        first_users: Sequence[ScramUpsert] = (),
        added_users: Sequence[ScramUpsert] = (),
        delegation_keys: DelegationKeys = DelegationKeys(),  # noqa: B008 - cannot change
        audit: AuditLog | None = None,
        tokens: Validator | None = None,
    ) -> None:
        """Raise ForeignDirectory if the data directory belongs to another server.

        `advertised`: listener name → address advertised to clients. `log_of`: the log of a part of
        the server. `loggers`: those whose levels may be changed. `login_compute`: checks
        passwords. `pattern_compute`: matches patterns, one after the other; None: the store's
        workers do. `cpu_ns`: processor time of a thread. `first_users`: initial users of a cluster
        that never had any. `added_users`: users that an operator adds now. `tokens`: validator of
        OAUTHBEARER tokens. `delegation_keys`: keys for the secrets of delegation tokens."""
        self.config = config
        self.store = store
        self.clock = clock
        self.state = ServerState.ASKING
        self.host: Host | None = None
        self.frame = self._frame_before_birth
        """See `PeerHandler.frame`; the host's own method once there is one, until its removal."""
        self.frontend: Frontend | None = None
        self.whole_set_stops = False
        """True if a stop of all servers was announced: no leadership needs to be handed over."""
        self.on_serving: Callable[[], None] = _nothing
        """Called once, when clients may be accepted."""
        self.on_closing: Callable[[], None] = _nothing
        """Called once, when no more clients may be accepted."""
        self.lacks_descriptors: Callable[[], bool] = bool
        """Returns True if clients are rejected for lack of descriptors."""
        self.certificates_ending: Callable[[], Mapping[str, datetime]] = dict
        """Returns the certificates that end soon: port → time of the end."""
        self.on_second: Callable[[], None] = partial(self.stop, _nothing, transfer=False)
        """Called when this server must not communicate any more: a peer is linked to another
        process that has this data directory, or one that this is a copy of; or the cluster was
        recovered without it."""
        self._rng = rng
        self._random_bytes = random_bytes
        self._advertised = advertised
        self._login_compute = login_compute
        self._pattern_work = PatternWork(pattern_compute or store.workers.compute, clock, cpu_ns)
        self._first_users = first_users
        self._added_users = list(added_users)
        self._delegation_keys = delegation_keys
        self._tokens = tokens
        self._log = log
        self._repeats = Repeats()
        self._refusals: dict[ServerId, tuple[int, str]] = {}
        """By seed: time and reason of the last refusal of its link; not of those linked since."""
        self._log_of = log_of or (lambda _: log)
        self._loggers = loggers
        self._audit = audit
        self._removed_by: set[ServerId] = set()
        """Voters of the catalog that refuse this one because it was removed from the cluster."""
        self._may_be_outlived = False
        """True if a peer said that the cluster was recovered without this server's directory."""
        self._may_be_removed = False
        """True if a peer said that the cluster has removed this server."""
        self._forgotten: set[ServerId] = set()
        """Servers that the cluster has removed, and that are dialled no more."""
        seeds = {server: str(address) for server, address in config.seeds.items()}
        self._digest = configuration_digest(seeds)
        own = "" if config.peer is None else str(config.peer.advertise)
        self.peer_addresses = PeerAddresses(config.server_id, seeds, self._digest, own)
        # Peers may link up before `start`, and do so only once: an empty server listens to them
        # from here on, and one that has a cluster sends its id. Taken for empty, it would let a
        # wiped peer found another cluster.
        adopted = store.cluster_record()
        if adopted:
            self._check_directory(decode_record(adopted))
        self._birth = None if adopted else self._make_birth()
        self._has_caught_up = False
        """True if the applied catalog reflects a command of this process. The one on disk may be
        outdated, and a leader may know of topics that are not in it."""
        # Two starts at one reading of a stopped or stepped clock must get different numbers.
        self.incarnation = max(0, clock.wall_ms()) << 16 | rng.getrandbits(16)
        record = decode_record(adopted) if adopted else None
        self.links = make_links(self._hello(record), self)

    def _hello(self, record: BirthRecord | None) -> Hello:
        return Hello(
            server_id=self.config.server_id,
            directory_id=self.store.directory_id,
            incarnation=self.incarnation,
            cluster_id=record.cluster_id if record is not None else "",
            config_digest=self._digest,
            info=boots_info(self.store),
            addresses=self.peer_addresses.encoded(),
            former_ids=record.former_ids if record is not None else (),
        )

    def _check_directory(self, record: BirthRecord) -> None:
        """Check that the directory belongs to this server. A record of an older form does not name
        its server, but that may be one of the initial voters. Raises ForeignDirectory."""
        server_id, store = self.config.server_id, self.store
        for voter, directory_id in record.initial_voters:
            if directory_id == store.directory_id and voter != server_id:
                raise ForeignDirectory(str(self.config.data_dir), server_id=server_id, owner=voter)
        if not store.server_id and record.directory_of(server_id) == store.directory_id:
            store.adopt_server(server_id)

    # --- birth ---------------------------------------------------------------------------------
    def _make_birth(self) -> Birth:
        config = self.config
        return Birth(
            server_id=config.server_id,
            directory_id=self.store.directory_id,
            seeds=tuple(config.seeds) or (config.server_id,),
            digest=self._digest,
            coordinator_groups=config.coordinators,
        )

    def start(self) -> None:
        """Begin with the cluster this directory belongs to, or query the seeds for one. Does
        nothing if the server was stopped already. Peers may have sent the cluster's record
        before."""
        if self.state in (ServerState.STOPPING, ServerState.STOPPED):
            return
        config = self.config
        adopted = self.store.cluster_record()
        if adopted:
            self._adopted(decode_record(adopted))
        else:
            self._found_if_all_are_empty()
            self.clock.call_later(_PATIENCE_NS, self._tell_who_is_missing)
        for server_id, address in sorted(config.seeds.items()):
            if server_id != config.server_id:
                self.links.set_peer(server_id, (address.host, address.port))

    def _tell_who_is_missing(self) -> None:
        """Log which seeds are missing, when that changes and once a minute."""
        birth = self._birth
        if birth is not None and self.state is ServerState.ASKING:
            missing = ",".join(map(str, birth.missing))
            if self._repeats.count(("waiting_for_seeds", missing), self.clock.now_ns()):
                self._log.warning("waiting_for_seeds", missing=missing)
            self.clock.call_later(_PATIENCE_NS, self._tell_who_is_missing)

    def _found_if_all_are_empty(self) -> None:
        birth = self._birth
        if birth is None or not birth.may_found:
            return
        raw = self._random_bytes(_CLUSTER_ID_BYTES)
        record = birth.found(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())
        self._adopt(record)

    def _adopt(self, record: BirthRecord) -> None:
        """Store the cluster's record durably before it is visible to others."""
        self._birth = None

        def adopted() -> None:
            self._log.info("cluster_adopted", cluster=record.cluster_id)
            # Not from inside a link's own callback: all links are closed and created again.
            self.clock.call_soon(lambda: self._adopted(record))

        self.store.adopt_cluster(encode_record(record), adopted)

    def _adopted(self, record: BirthRecord) -> None:
        if self.host is not None or self.state in (ServerState.STOPPING, ServerState.STOPPED):
            return
        self.links.set_local(self._hello(record))
        if record.former_ids:
            former = ",".join(record.former_ids)
            self._log.info("cluster_recovered", cluster=record.cluster_id, former=former)
        self._open(record)

    # --- PeerHandler, before there is a host -----------------------------------------------------
    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        return None if self.host is None else self.host.refusal(hello)

    def link_up(self, hello: Hello) -> None:
        self._refusals.pop(hello.server_id, None)
        self._removed_by.discard(hello.server_id)
        if self.peer_addresses.linked(hello, is_added=self._is_one_added(hello)):
            text = self.peer_addresses.differences[hello.server_id]
            self._log.warning("seeds_differ", peer=hello.server_id, differences=text)
        if self.host is not None:
            self.host.link_up(hello)
        elif self._birth is not None:
            if hello.cluster_id:
                self.links.send(hello.server_id, FrameType.ASK, encode_ask())
                return
            birth = self._birth
            birth.seed_is_empty(hello.server_id, hello.directory_id, hello.config_digest)
            self._found_if_all_are_empty()

    def _is_one_added(self, hello: Hello) -> bool:
        """Return True if the files of this server and the peer need not name the same servers."""
        if self.host is None:
            return self.waits_to_be_added or self.config.server_id not in self.config.seeds
        catalog, both = self.host.catalog, {self.config.server_id, hello.server_id}
        return catalog.votes_moved or not both <= catalog.first_servers.keys()

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        if self.host is not None:
            self.host.link_down(server_id, refused=refused)
        elif self._birth is not None:
            self._birth.seed_left(server_id)

    def _frame_before_birth(
        self, server_id: ServerId, frame_type: FrameType, payload: memoryview
    ) -> None:
        if frame_type is FrameType.ANSWER:
            self._answered(server_id, payload)

    def _answered(self, server_id: ServerId, payload: memoryview) -> None:
        """Process the answer of a cluster's member to this empty server."""
        encoded, number = decode_answer(payload)
        birth = self._birth
        if not encoded or birth is None or birth.state is BirthState.BORN:
            return
        was_waiting = self.waits_to_be_added
        try:
            record = decode_record(encoded)
        except msgspec.DecodeError as error:
            raise MalformedFrame("birth record") from error
        if birth.answered(record) is BirthState.BORN or number:
            self._adopt(record)
        elif record.directory_of(self.config.server_id) is not None:
            self._log.warning(
                "directory_new",
                cluster=record.cluster_id,
                told_by=server_id,
                directory=self.store.directory_id.hex(),
                meaning=(
                    "the cluster has another data directory recorded for this server; the server "
                    "waits until its replicas are replaced"
                ),
            )
            self._adopt(record)
        elif not was_waiting:
            self.state = ServerState.WAITING
            self._wait_to_be_added(record.cluster_id)

    @property
    def waits_to_be_added(self) -> bool:
        """True if the server found a cluster that it does not belong to."""
        return self._birth is not None and self._birth.state is BirthState.NEWCOMER

    def _wait_to_be_added(self, cluster_id: str) -> None:
        """Request the cluster's answer each second, until this server is added."""
        if not self.waits_to_be_added or self.state is not ServerState.WAITING:
            return
        if self._repeats.count("waiting_to_be_added", self.clock.now_ns()):
            self._log.warning(
                "waiting_to_be_added",
                cluster=cluster_id,
                directory=self.store.directory_id.hex(),
                meaning=(
                    "the cluster does not have this server; it takes no part until it is added "
                    f"with `vdl member add {self.config.server_id}`"
                ),
            )
        for link in self.links.links():
            if link.is_up:
                self.links.send(link.server_id, FrameType.ASK, encode_ask())
        self.clock.call_later(_ADDED_POLL_NS, partial(self._wait_to_be_added, cluster_id))

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        if reason is RejectReason.SECOND_PROCESS and by_peer:
            self._log.error("second_process", peer=server_id, meaning=text)
            self.clock.call_soon(self.on_second)
        elif reason not in (RejectReason.STOPPING, RejectReason.IDENTITY_CHANGED):
            # Those two are part of every planned stop and of every birth. All others are repeated
            # with each dial, as long as the cause lasts.
            if reason is RejectReason.REMOVED and by_peer:
                self._refused_as_removed(server_id, text)
            elif reason is RejectReason.RECOVERED and by_peer:
                self._refused_as_recovered(server_id, text)
            if server_id in self.config.seeds:
                self._refusals[server_id] = self.clock.now_ns(), f"{reason.name}: {text}"
            event = "link_refused", server_id, reason, text, by_peer
            if times := self._repeats.count(event, self.clock.now_ns()):
                self._log.warning(
                    "link_refused",
                    peer=server_id,
                    reason=reason.name,
                    text=text,
                    by_peer=by_peer,
                    times=times,
                )

    def _refused_as_removed(self, server_id: ServerId, text: str) -> None:
        """Take no part any more once a majority of the catalog's voters says that it must not.

        Servers are believed only at the addresses that this server dials (`rpc/links.py`). One that
        says it may be mistaken; a majority of the voters has applied the removal. The voters known
        here may be gone themselves: then one server is enough, if this one has no majority either.
        """
        voters = self.host.catalog.voters if self.host is not None else ()
        if server_id in voters:
            self._removed_by.add(server_id)
        if 2 * len(self._removed_by) > len(voters) > 0:
            self.clock.call_soon(partial(self._leave, text))
        elif self._lacks_part and not self._may_be_removed:
            self._may_be_removed = True
            timeout_ns = self.config.host.election_ticks * TICK_NS
            self.clock.call_later(
                RECOVERED_TIMEOUTS * timeout_ns, partial(self._leave_unless_serving, text)
            )

    def _leave_unless_serving(self, text: str) -> None:
        self._may_be_removed = False
        if self._lacks_part:
            self._leave(text)

    @property
    def _lacks_part(self) -> bool:
        """True if the server does not serve, or knows no leader of the catalog while it does.

        One that served when it was cut off goes on to do so, alone.
        """
        host = self.host
        if self.state is ServerState.SERVING and host is not None:
            return host.leader_of(CATALOG_GROUP)[0] < 0
        return self._is_starting

    @property
    def _is_starting(self) -> bool:
        return self.state in (ServerState.WAITING, ServerState.STARTING)

    def _refused_as_recovered(self, server_id: ServerId, text: str) -> None:
        """End this process, unless it comes to serve soon.

        A server that does has a majority of the disks, and then the recovery was the mistake. One
        mistaken server must not keep that majority down: a server that has come so far stays, also
        while the others of the majority are started again.
        """
        if self._is_starting and not self._may_be_outlived:
            self._may_be_outlived = True
            timeout_ns = self.config.host.election_ticks * TICK_NS
            self.clock.call_later(
                RECOVERED_TIMEOUTS * timeout_ns, partial(self._end_unless_serving, server_id, text)
            )

    def _end_unless_serving(self, server_id: ServerId, text: str) -> None:
        self._may_be_outlived = False
        if self._is_starting:
            meaning = f"{text}. If the recovery was the mistake, stop server {server_id}"
            self._log.error("recovered_without_this", peer=server_id, meaning=meaning)
            self.on_second()

    def _leave(self, text: str) -> None:
        """Serve no clients any more: this server was removed from the cluster."""
        if self.state not in (ServerState.WAITING, ServerState.STARTING, ServerState.SERVING):
            return
        self.state = ServerState.REMOVED
        self.frame = _unheard  # it would tell others what was true before its removal
        self._log.warning("server_removed", server=self.config.server_id, meaning=text)
        self.on_closing()
        if self.frontend is not None:
            self.frontend.stop()
            self.frontend.close()

    def beat(self) -> None:
        if self.host is not None:
            self.host.beat()

    # --- starting --------------------------------------------------------------------------------
    def _open(self, record: BirthRecord) -> None:
        config = self.config
        is_founding = record.directory_of(config.server_id) == self.store.directory_id
        self.state = ServerState.STARTING if is_founding else ServerState.WAITING
        host = Host(
            HostState(
                server_id=config.server_id,
                record=record,
                store=self.store,
                transport=self.links,
                clock=self.clock,
                rng=self._rng,
                options=config.host,
                log=self._log_of("logstream"),
                cache_bytes_max=config.store.cache_bytes_max,
            )
        )
        self.host = host
        self.frame = host.frame
        # The servers in the file may be gone, and those that came later are in the catalog.
        for server_id, address in sorted(host.known.addresses.items()):
            if server_id != config.server_id:
                self.links.set_peer(server_id, address)
        context = Context(
            host=host,
            config=config.kafka,
            clock=self.clock,
            log=self._log_of("kafka"),
            loggers=self._loggers,
            random_bytes=self._random_bytes,
            log_directory=str(config.data_dir.absolute()),
            file_settings=file_settings(config),
            compute=self.store.workers.compute,
            pattern_work=self._pattern_work,
            login_compute=self._login_compute,
            audit=self._audit,
            tokens=self._tokens,
            delegation_keys=self._delegation_keys,
        )
        host.added_servers.replicas_max = lambda: context.config.replicas_per_server_max
        host.added_servers.address_of = self.peer_addresses.announced_by
        context.groups = GroupCoordinator(
            host=host,
            clock=self.clock,
            rng=self._rng,
            options=lambda: context.config,
            compute=context.compute,
            pattern_work=self._pattern_work,
            own_topics=(offsets_topic(host.catalog), transactions_topic(host.catalog)),
            log=context.log,
        )
        context.transactions = TransactionCoordinator(
            host=host, clock=self.clock, options=config.kafka
        )
        host.commands.receive = context.transactions.receive
        for number, coordinator in enumerate(host.coordinators, start=1):
            group_id = GroupId(number)
            context.groups.attach(coordinator)
            context.transactions.attach(coordinator)
            viewed = coordinator, group_id, self.clock, host.state.gaps, context.compute
            context.views[OFFSETS_TOPIC, group_id] = commit_log(*viewed)
            context.views[TRANSACTIONS_TOPIC, group_id] = transaction_log(
                *viewed, lambda: host.catalog
            )
        most_of = {one.name: one.connections_max for one in config.listeners}
        self.frontend = Frontend(context, most_of)
        host.start(
            ClientFront(self.frontend, self._catalog_changed, partial(self._greet_anew, record))
        )
        self._register()
        self.clock.call_later(_PATIENCE_NS, self._tell_why_not_serving)

    def _greet_anew(self, record: BirthRecord) -> None:
        """Announce the new directory to peers, and wait until the cluster accepts it."""
        if self.state is ServerState.STARTING:
            self.state = ServerState.WAITING
        if self.state not in (ServerState.STOPPING, ServerState.STOPPED):
            self.links.set_local(self._hello(record))

    def _registration(self) -> RegisterServer:
        return RegisterServer(
            server_id=self.config.server_id,
            directory_id=self.store.directory_id,
            rack=self.config.rack,
            listeners=self._advertised,
            replica_of_catalog=self._votes,
            features=dict(SUPPORTED),
        )

    @property
    def _votes(self) -> bool:
        assert self.host is not None
        return self.config.server_id in self.host.catalog.voters

    @property
    def _is_removed(self) -> bool:
        """True if the catalog, as applied here, has removed this server."""
        assert self.host is not None
        return self.host.catalog.is_removed(self.config.server_id, self.store.directory_id)

    def _is_registered(self) -> bool:
        assert self.host is not None
        known = self.host.catalog.servers.get(self.config.server_id)
        return (
            known is not None
            and known.directory_id == self.store.directory_id
            and known.rack == self.config.rack
            and known.listeners == self._advertised
            and known.features == SUPPORTED
        )

    def _register(self) -> None:
        """Register this server's addresses in the catalog, at each start, until the applied catalog
        contains them."""
        if self.state not in (ServerState.STARTING, ServerState.SERVING):
            return
        assert self.host is not None
        self.host.propose_catalog(
            self._registration(),
            deadline_ns=self.clock.now_ns() + _REGISTER_DEADLINE_NS,
            done=self._registered,
        )

    def _tell_why_not_serving(self) -> None:
        if self.state is ServerState.STARTING:
            if self._repeats.count("waiting_for_catalog", self.clock.now_ns()):
                self._log.warning(
                    "waiting_for_catalog",
                    meaning="no majority has confirmed the catalog of topics yet",
                )
            self.clock.call_later(_PATIENCE_NS, self._tell_why_not_serving)

    def _registered(self, outcome: Outcome) -> None:
        retry_ns = _REGISTER_RETRY_NS
        if outcome.kind is OutcomeKind.APPLIED:
            self._has_caught_up = True
            self._catalog_changed()
            if self._is_removed:
                return
            if outcome.result.error is not ErrorCode.NONE:
                self._log.error("registration_refused", reason=outcome.result.message)
                retry_ns = _PATIENCE_NS
        if not self._has_caught_up or not self._is_registered():
            self.clock.call_later(retry_ns, self._register)

    def _follow_added(self) -> None:
        """Keep links to the servers that the catalog has added, and none to those it removed.

        The catalog's address of an added server takes precedence over the one in this server's
        file: it is what an operator said last, and equal on all servers. The file may still have
        one that was removed.
        """
        host = self.host
        if host is None or self.state in (ServerState.STOPPING, ServerState.STOPPED):
            return
        catalog, own = host.catalog, self.config.server_id
        retired = set(map(ServerId, catalog.retired.values()))
        removed = {server for server in retired if not catalog.is_member(server)}
        for server_id in sorted(removed - self._forgotten):
            hello = host.state.hello_of(server_id)
            if hello is not None and not catalog.is_removed(server_id, hello.directory_id):
                self.links.forget_address(server_id)  # it waits to be added again
            else:
                self.links.remove_peer(server_id, removed_text(server_id))
        self._forgotten = removed
        for server_id, added in sorted(catalog.added.items()):
            if server_id != own and added.host:  # one of the first has none
                self.links.set_peer(server_id, (added.host, added.port))

    def _catalog_changed(self) -> None:
        assert self.host is not None
        if self.host.catalog.added or self.host.catalog.retired:
            # Not within a turn: a link that ends changes the groups.
            self.clock.call_soon(self._follow_added)
        if self._is_removed:
            self.clock.call_soon(partial(self._leave, removed_text(self.config.server_id)))
            return
        if self.frontend is not None:
            self.frontend.context.follow_catalog()
            self.frontend.credentials_changed()
        if self.state is ServerState.WAITING and self.host.is_known:
            self.state = ServerState.STARTING
            self._log.info("directory_known", server=self.config.server_id)
            self._register()
        is_ready = self._has_caught_up and self._is_registered()
        if is_ready and not self.store.server_id:
            self.store.adopt_server(self.config.server_id)  # the catalog confirms that it is ours
        if self.state is ServerState.STARTING and is_ready:
            self.state = ServerState.SERVING
            self._log.info("serving", server=self.config.server_id)
            self._add_first_users()
            self._add_users()
            self.on_serving()
            # After the listeners: a server that leads must be reachable.
            self.host.begin_serving()

    def _add_first_users(self) -> None:
        """Add the initial users, until there are some, perhaps added by another server."""
        host = self.host
        if host is None or not self._first_users or self.state is not ServerState.SERVING:
            return
        if host.catalog.scram.decoy_key:
            return
        host.propose_catalog(
            AlterScramCredentials(
                [], list(self._first_users), self._random_bytes(_DECOY_KEY_BYTES), only_first=True
            ),
            deadline_ns=self.clock.now_ns() + _REGISTER_DEADLINE_NS,
            done=self._first_users_decided,
        )

    def _first_users_decided(self, outcome: Outcome) -> None:
        if outcome.kind is not OutcomeKind.APPLIED:
            self.clock.call_later(_REGISTER_RETRY_NS, self._add_first_users)

    def _add_users(self) -> None:
        """Add the users that an operator left in the data directory."""
        host = self.host
        if host is None or not self._added_users or self.state is not ServerState.SERVING:
            return
        host.propose_catalog(
            AlterScramCredentials([], self._added_users, self._random_bytes(_DECOY_KEY_BYTES)),
            deadline_ns=self.clock.now_ns() + _REGISTER_DEADLINE_NS,
            done=self._users_added,
        )

    def _users_added(self, outcome: Outcome) -> None:
        if outcome.kind is not OutcomeKind.APPLIED:
            self.clock.call_later(_REGISTER_RETRY_NS, self._add_users)
            return
        for one, (error, text) in zip(self._added_users, outcome.result.errors, strict=True):
            if error is ErrorCode.NONE:
                self._log.warning("user_added_offline", user=one.user, mechanism=one.mechanism)
            else:
                self._log.error("user_not_added", user=one.user, reason=text)
        self._added_users = []

    # --- stopping --------------------------------------------------------------------------------
    def stop(self, done: Callable[[], None], *, transfer: bool = True) -> None:
        """Hand leaderships over (unless the whole set stops), answer waiting requests, close the
        store; `done` is called at the end. Bounded by `HostOptions.transfer_stop_ms`."""
        if self.state in (ServerState.STOPPING, ServerState.STOPPED):
            return
        self.state = ServerState.STOPPING
        transfer = transfer and not self.whole_set_stops
        wait_ms = self.config.host.transfer_stop_ms if transfer else 0
        self._drain(self.clock.now_ns() + wait_ms * MS, done)

    def _drain(self, deadline_ns: int, done: Callable[[], None], handed_over_ns: int = 0) -> None:
        """Hand over, linger, close. A client that receives NOT_LEADER_OR_FOLLOWER moves on within a
        round trip; one whose connection breaks has to find the new leader itself."""
        host = self.host
        now_ns = self.clock.now_ns()
        if host is not None and now_ns < deadline_ns:
            if host.transfer_leaderships() > 0:
                handed_over_ns = now_ns
            if handed_over_ns and self._lingers(handed_over_ns, now_ns):
                self.clock.call_later(
                    _STOP_POLL_NS, lambda: self._drain(deadline_ns, done, handed_over_ns)
                )
                return
        self.on_closing()
        if self.frontend is not None:
            self.frontend.stop()
        if host is not None:
            host.close()
        if self.frontend is not None:
            self.frontend.close()
        self.links.close()
        self.store.close(lambda: self._stopped(done))

    def _lingers(self, handed_over_ns: int, now_ns: int) -> bool:
        """Return True if clients may still need to be redirected to the new leaders."""
        if now_ns - handed_over_ns >= _LINGER_NS or self.frontend is None:
            return now_ns == handed_over_ns
        quiet_since_ns = max(self.frontend.last_active_ns, handed_over_ns)
        return now_ns - quiet_since_ns < _LINGER_QUIET_NS

    def _stopped(self, done: Callable[[], None]) -> None:
        self.state = ServerState.STOPPED
        done()

    def refused_links(self) -> dict[ServerId, str]:
        """Return the refused links, by server, with the reason: refusals of either end that
        persist."""
        since_ns = self.clock.now_ns() - REFUSED_NS
        return {one: why for one, (at_ns, why) in self._refusals.items() if at_ns > since_ns}

    # --- observation -----------------------------------------------------------------------------
    def health(self) -> dict[str, Any]:
        """Return the facts that `/health` and `/ready` show beside the problems."""
        host = self.host
        return {
            "state": self.state.value,
            "server_id": self.config.server_id,
            "cluster_id": host.cluster_id if host is not None else "",
            "groups": len(host.groups) if host is not None else 0,
            "leading": sum(g.node.is_leader for g in host.groups.values()) if host else 0,
            "clock_ahead_ms": host.time.ahead_ms if host else 0,
            "overloaded": host.overload.is_overloaded if host else False,
            "loop_late_percent": host.overload.late_percent if host else 0,
            "request_wait_ms": host.overload.wait_ms if host else 0,
            "elections_waiting": host.campaigns.waiting if host else 0,
        }

    def partition_counts(self) -> PartitionCounts:
        """Count the groups with a replica here, in one go. See `counting_partitions`."""
        counts = PartitionCounts()
        for _ in self.counting_partitions(counts):
            pass
        return counts

    def counting_partitions(self, counts: PartitionCounts) -> Iterator[None]:
        """Yield after each step of a count of the groups with a replica here."""
        if self.host is not None and self.frontend is not None:
            default = self.frontend.context.config.min_insync_replicas
            yield from counts.counting(self.host, default)

    def _permission_numbers(self, context: Context) -> dict[str, float]:
        authorizer, audit, quotas = context.authorizer, context.audit, context.quotas
        numbers = {
            "quota_entities": len(context.host.catalog.quotas),
            "quota_buckets": 0,
            "quota_buckets_evicted_total": 0,
            "requests_throttled_total": 0,
            "throttle_seconds_total": 0.0,
            "client_connections_over_quota_total": 0,
            "acls": len(context.host.catalog.acls),
            "acl_bytes": context.host.catalog.acls.bytes,
            "authorizer_decisions_total": authorizer.decisions if authorizer else 0,
            "authorizer_denials_total": authorizer.denials if authorizer else 0,
            "audit_lines_total": audit.lines if audit else 0,
            "audit_lines_left_out_total": audit.lines_left_out if audit else 0,
        }
        if quotas is not None:
            numbers |= {
                "quota_buckets": len(quotas),
                "quota_buckets_evicted_total": quotas.evicted,
                "requests_throttled_total": quotas.throttled,
                "throttle_seconds_total": quotas.throttled_ms / 1_000,
                "client_connections_over_quota_total": quotas.connections_refused,
            }
        return numbers

    def numbers(self) -> dict[str, float]:
        """Return counters and gauges of the log-stream layer and the front end, for `/metrics`."""
        host, frontend = self.host, self.frontend
        if host is None or frontend is None:
            return {}
        stats = host.stats
        return {
            "clock_ahead_seconds": host.time.ahead_ms / 1_000,
            "turns_total": stats.turns,
            "raft_frames_sent_total": stats.frames_out,
            "raft_messages_sent_total": stats.messages_out,
            "raft_messages_received_total": stats.messages_in,
            "raft_messages_dropped_total": stats.messages_dropped,
            "raft_contradictions_total": stats.contradictions,
            "raft_appends_refused_total": stats.appends_refused,
            "leaderships_won_total": stats.elections,
            "elections_waiting": host.campaigns.waiting,
            "elections_under_way": host.campaigns.under_way,
            "elections_dropped_total": host.campaigns.dropped,
            "isr_shrinks_total": host.in_sync.shrinks,
            "isr_expands_total": host.in_sync.expansions,
            "overloaded": int(host.overload.is_overloaded),
            "overloaded_total": host.overload.times,
            "loop_late_seconds_total": host.loop_time.late_total_ns / 1e9,
            **self._permission_numbers(frontend.context),
            "links_refused_total": self.links.refused,
            "client_connections": len(frontend),
            "client_connections_waiting": len(frontend.turn.record_budget)
            + len(frontend.turn.work_budget),
            "client_connections_accepted_total": frontend.connections_accepted,
            "client_connections_refused_total": frontend.connections_refused,
            "login_failures_total": frontend.stats.login_failures,
            "handler_errors_total": frontend.stats.handler_errors,
            "slow_requests_kept_total": frontend.stats.slow.noted,
            "slow_requests_bytes": frontend.stats.slow.bytes,
            "traces_running": frontend.stats.slow.running,
            "record_walk_native": int(IS_NATIVE),
            "record_checks_off_loop_total": frontend.context.record_checks.left_loop,
            "record_checks_recompressed_total": frontend.context.record_checks.recompressed,
            "record_checks_refused_total": frontend.context.record_checks.refused,
            "pattern_slices_total": frontend.context.pattern_work.slices,
            "patterns_compiled_total": frontend.context.pattern_work.compiles,
            "down_conversions_total": frontend.context.down_conversion.converted,
            "replicas": host.partition_count,
            "replicas_max": self.config.kafka.replicas_per_server_max,
            "aborted_transactions_listed": host.aborted_listed,
            "topics_refused_total": frontend.context.topics_refused,
            "request_memory_bytes": frontend.context.requests.used,
            "request_memory_max_bytes": frontend.context.requests.limit,
            "request_memory_waits_total": frontend.context.requests.waits,
            "answer_memory_bytes": frontend.context.answers.used,
            "answer_memory_max_bytes": frontend.context.answers.limit,
            "answer_memory_waits_total": frontend.context.answers.waits,
            "cold_read_bytes_per_second": frontend.context.read_throttle.pace.rate,
            "acknowledgement_usual_seconds": frontend.context.read_throttle.pace.usual_ns / 1e9,
            **(frontend.context.groups.numbers() if frontend.context.groups else {}),
            **(frontend.context.transactions.numbers() if frontend.context.transactions else {}),
            "fetch_sessions": len(frontend.context.fetch_sessions),
            "fetch_session_partitions": frontend.context.fetch_sessions.partitions,
            "fetch_sessions_evicted_total": frontend.context.fetch_sessions.evicted,
            "fetch_sessions_refused_total": frontend.context.fetch_sessions.refused,
            "share_sessions": len(frontend.context.share_sessions),
            "share_sessions_refused_total": frontend.context.share_sessions.refused,
            "share_partitions": len(frontend.context.share_partitions),
            "share_writes_total": frontend.context.share_partitions.writes,
            "share_locks_expired_total": frontend.context.share_partitions.locks_expired,
            "client_connections_stalled_total": frontend.connections_ended["stalled:"],
        }


def _nothing() -> None:
    """Do nothing: default of a callback that was not set."""


def _unheard(server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
    """Do nothing: a removed server takes no part."""
