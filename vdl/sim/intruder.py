"""Intruders: hosts that pretend to be a server of the cluster.

An intruder dials the peer ports of servers, and takes the address of processes that are down, so
that servers dial it. Each time it commits a fraud of one kind (`Fraud`): one property differs from
that of the server it claims to be. It then sends what would do most harm, at once or after an
answer: votes, entries, snapshots and commit indexes in a term far above all others, leader lists, a
command that deletes topics.

None of it may be accepted, and the server must close and count the connection each time. A
`Doorkeeper` in front of a server's handler recognises intruders by their incarnation, which nothing
else looks at: an intruder that is admitted, linked or heard is a violation. So is any effect of its
frames (`Intruder.traces`).

A server without a cluster accepts a peer of any cluster, and a new directory is accepted in place
of one that is absent: `is_fraud_to` decides which frauds a server can detect. In other cases the
intruder leaves by itself.

Does not depend on how servers identify each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from random import Random

from crc32c import crc32c

from ids import DirectoryId, GroupId, Index, NodeId, Offset, ReplicaNumber, ServerId, Term
from raft.messages import (
    MsgApp,
    MsgAppResp,
    MsgCommit,
    MsgHeartbeat,
    MsgSnap,
    MsgTimeoutNow,
    MsgVote,
    MsgVoteResp,
    PeerMessage,
)
from raft.types import ConfState, Entry, Snapshot
from rpc.commands import SentCommand, encode_command
from rpc.errors import RemoteError
from rpc.frames import encode_messages
from rpc.hello import DIRECTORY_ID_BYTES, Hello, RejectReason, encode_hello
from rpc.leaders import LeaderListSender
from rpc.peer import FrameType
from rpc.reader import Buffer, FrameReader, frame_head
from rpc.streams import Address, DialFailed, PeerHandler, Stream
from vdl.clock import MS
from vdl.logstream.group.group import Group
from vdl.logstream.group.replica_ids import replica_id_of, server_of
from vdl.logstream.host import Host
from vdl.logstream.state import CATALOG_GROUP
from vdl.server.server import ServerState
from vdl.sim.certificates import Certificate, certificate_of, security_of
from vdl.sim.clock import NodeClock
from vdl.sim.machine import PEER_PORT, Condition, Life, Machine
from vdl.sim.network import Network, SimDialer, SimStream
from vdl.sim.unsent import write_unsent
from vdl.state import commands

MACHINE = "x1"
TERM = Term(1 << 23)
"""Term of its frames. No world comes near it, and it is a valid term: it would be believed."""
INCARNATION = 1 << 63
"""Smallest incarnation of intruders; the low byte is the fraud's number."""
STRANGER = ServerId(900)
"""Server that its snapshots make the only voter."""
MEAN_NS = 400 * MS
"""Mean time between two frauds."""
STAY_NS = 3_000 * MS
PLACE_MS = (200, 2_000)
"""Range of the time that it keeps the address of a process that is down, unless that restarts."""
PLACES = 0.3
RASH = 0.5
"""Chance that it sends its frames before it has an answer."""
GROUPS = 3
FRAME_BYTES_MAX = 1 << 20


class Fraud(Enum):
    """The property in which it differs from a server of the cluster."""

    PLAIN = "no encryption"
    OTHER_AUTHORITY = "the certificate of another authority"
    OTHER_NAME = "the certificate of another server"
    OTHER_SET = "the certificate of another set's server"
    ADMINISTRATOR = "the certificate of an administrator"
    CLIENT = "the certificate of a client"
    TWO_NAMES = "a certificate that names two servers"
    OTHER_CLUSTER = "another cluster id"
    OTHER_ADDRESSEE = "meant for another server"
    OWN_ID = "the id of the server that it speaks to"
    OTHER_SERVER = "another server than the one that was dialled"
    RETIRED = "a directory that was replaced"
    OTHER_DIRECTORY = "another directory than the server's, which is there"


_KINDS = tuple(Fraud)
_OF_ENCRYPTED = _KINDS[: _KINDS.index(Fraud.OTHER_CLUSTER)]
_OF_DIALED = frozenset((Fraud.OTHER_SERVER,))
"""Frauds only when dialled: an intruder that dials with this property is the other server."""
_OF_ALL = tuple(kind for kind in _KINDS if kind not in _OF_ENCRYPTED)


def fraud_of(hello: Hello) -> Fraud | None:
    """Return the fraud of a hello; None: it comes from a server."""
    if hello.incarnation < INCARNATION:
        return None
    return _KINDS[hello.incarnation & 0xFF]


def is_fraud_to(host: Host | None, hello: Hello) -> bool:
    """Return True if this server can detect the fraud."""
    fraud = fraud_of(hello)
    if fraud is Fraud.OTHER_CLUSTER:
        return host is not None
    if fraud is Fraud.RETIRED:
        return host is not None and hello.directory_id in host.catalog.retired
    if fraud is Fraud.OTHER_DIRECTORY:
        present = host.state.alive.get(hello.server_id) if host is not None else None
        return (
            host is not None
            and present is not None
            and present.directory_id == host.catalog.directory_of(hello.server_id)
        )
    return True


class Doorkeeper:
    """`PeerHandler` in front of a process's own that detects admitted intruders."""

    __slots__ = ("_handler", "_inside", "_life", "_violate")

    def __init__(
        self, handler: PeerHandler, life: Life, violate: Callable[[str, str], None]
    ) -> None:
        self._handler = handler
        self._life = life
        self._violate = violate
        self._inside: dict[int, Fraud] = {}
        """Linked intruders, by the server id that they claim."""

    def refusal(self, hello: Hello) -> tuple[RejectReason, str] | None:
        """See `PeerHandler.refusal`."""
        fraud = fraud_of(hello)
        if fraud is None:
            return self._handler.refusal(hello)
        can_know = is_fraud_to(self._life.server.host, hello)
        refusal = self._handler.refusal(hello)
        if refusal is not None:
            return refusal
        if can_know:
            self._tell("intruder-admitted", fraud, hello.server_id)
            return None
        return RejectReason.NOT_ADMITTED, ""

    def link_up(self, hello: Hello) -> None:
        """See `PeerHandler.link_up`."""
        fraud = fraud_of(hello)
        if fraud is None:
            self._inside.pop(hello.server_id, None)
        else:
            self._inside[hello.server_id] = fraud
            self._tell("intruder-linked", fraud, hello.server_id)
        self._handler.link_up(hello)

    def frame(self, server_id: ServerId, frame_type: FrameType, payload: memoryview) -> None:
        """See `PeerHandler.frame`."""
        if self._inside and server_id in self._inside:
            self._tell("intruder-heard", self._inside[server_id], server_id)
        self._handler.frame(server_id, frame_type, payload)

    def link_down(self, server_id: ServerId, *, refused: bool) -> None:
        self._inside.pop(server_id, None)
        self._handler.link_down(server_id, refused=refused)

    def rejected(
        self, server_id: ServerId, reason: RejectReason, text: str, *, by_peer: bool
    ) -> None:
        self._handler.rejected(server_id, reason, text, by_peer=by_peer)

    def beat(self) -> None:
        self._handler.beat()

    def _tell(self, name: str, fraud: Fraud, server_id: int) -> None:
        self._violate(name, f"{self._life.machine.name}: {fraud.value}, as server {server_id}")


@dataclass(slots=True)
class _Role:
    """An intruder's role towards one server. `certificate` None: it does not encrypt."""

    fraud: Fraud
    target: Machine
    hello: Hello
    certificate: Certificate | None


class Intruder:
    """One intruder, with a visit to a server now and then."""

    def __init__(
        self,
        machines: Sequence[Machine],
        network: Network,
        clock: NodeClock,
        rng: Random,
        violate: Callable[[str, str], None],
        *,
        is_encrypted: bool,
    ) -> None:
        self._machines = machines
        self._network = network
        self._clock = clock
        self._rng = rng
        self._violate = violate
        self._is_encrypted = is_encrypted
        self._dialer = SimDialer(network, MACHINE, clock)
        self._visits: dict[_Visit, None] = {}
        self._closed: dict[Life, int] = {}
        """Connections dialled here that a process has closed."""
        self._is_over = True
        self.tried: dict[Fraud, int] = {}
        """Attempts, by fraud."""
        self.turned_away: dict[Fraud, int] = {}
        """Attempts that the server closed, by fraud."""

    # --- schedule -----------------------------------------------------------------------------
    def start(self) -> None:
        """Start, and go on until `stop`."""
        self._is_over = False
        self._schedule()

    def stop(self) -> None:
        """Leave all servers and addresses."""
        self._is_over = True
        for machine in self._machines:
            self._network.stand_down(_port_of(machine))
        for visit in list(self._visits):
            visit.leave()

    def _schedule(self) -> None:
        delay_ns = int(self._rng.expovariate(1.0 / MEAN_NS))
        self._clock.call_later(delay_ns, self._act)

    def _act(self) -> None:
        if self._is_over:
            return
        self._schedule()
        down = [machine for machine in self._machines if machine.condition is Condition.DOWN]
        if down and self._rng.random() < PLACES:
            self._take_place_of(self._rng.choice(down))
            return
        up = [m for m in self._machines if m.server is not None and m.server.host is not None]
        if not up:
            return
        target = self._rng.choice(up)
        role = self._role(target, _others(self._machines, target), is_dialed=False)
        if role is not None:
            self._dialer.dial(_port_of(target), partial(self._dialed, role))

    def _take_place_of(self, machine: Machine) -> None:
        """Answer servers that dial the machine while its process is down."""
        port = _port_of(machine)
        self._network.stand_in(port, self._clock, partial(self._came, machine))
        stays_ns = self._rng.randint(*PLACE_MS) * MS
        self._clock.call_later(stays_ns, partial(self._network.stand_down, port))

    # --- roles --------------------------------------------------------------------------------
    def _role(
        self, target: Machine, claimed: Sequence[Machine], *, is_dialed: bool
    ) -> _Role | None:
        """Draw a fraud, as one of the servers `claimed`; None if that is impossible now."""
        host = target.server.host if target.server is not None else None
        if host is None:
            return None
        rng = self._rng
        kinds = _KINDS if self._is_encrypted else _OF_ALL
        if not is_dialed:
            kinds = tuple(kind for kind in kinds if kind not in _OF_DIALED)
        fraud = rng.choice(kinds)
        claim = rng.choice(claimed).server_id
        another = rng.choice([m.server_id for m in self._machines if m.server_id != claim])
        hello = Hello(
            server_id=claim,
            directory_id=host.catalog.directory_of(claim) or DirectoryId(bytes(DIRECTORY_ID_BYTES)),
            incarnation=INCARNATION | _KINDS.index(fraud),
            cluster_id=host.state.record.cluster_id,
            to_server=target.server_id,
        )
        certificate: Certificate | None = certificate_of(claim)
        match fraud:
            case Fraud.PLAIN:
                certificate = None
            case Fraud.OTHER_AUTHORITY:
                certificate = certificate_of(claim, authority="theirs")
            case Fraud.OTHER_NAME:
                certificate = certificate_of(another)
            case Fraud.OTHER_SET:
                certificate = certificate_of(claim, cluster="another")
            case Fraud.ADMINISTRATOR:
                certificate = certificate_of(0)
            case Fraud.CLIENT:
                certificate = Certificate(certificate_of(0).authority, ("https://mallory",))
            case Fraud.TWO_NAMES:
                uris = certificate_of(claim).uris + certificate_of(another).uris
                certificate = Certificate(certificate_of(0).authority, uris)
            case Fraud.OTHER_CLUSTER:
                hello = replace(hello, cluster_id="another")
            case Fraud.OTHER_ADDRESSEE:
                hello = replace(hello, to_server=STRANGER)
            case Fraud.OWN_ID:
                hello = replace(hello, server_id=target.server_id)
                certificate = certificate_of(target.server_id)
            case Fraud.OTHER_SERVER:
                hello = replace(hello, server_id=another)
                certificate = certificate_of(another)
            case Fraud.RETIRED:
                retired = sorted(host.catalog.retired)
                if not retired:
                    return None
                hello = replace(hello, directory_id=rng.choice(retired))
            case Fraud.OTHER_DIRECTORY:
                hello = replace(hello, directory_id=DirectoryId(rng.randbytes(DIRECTORY_ID_BYTES)))
        if not is_fraud_to(host, hello):
            return None
        return _Role(fraud, target, hello, certificate if self._is_encrypted else None)

    def _dialed(self, role: _Role, result: Stream | DialFailed) -> None:
        if isinstance(result, DialFailed):
            return
        life = role.target.life
        assert isinstance(result, SimStream), result
        may_be = not self._is_over and life is not None and result.leads_to(life.clock)
        if life is None or life.server.host is None or not may_be:
            result.close()
            return
        self._begin(role, result, life)

    def _came(self, machine: Machine, stream: Stream, address: Address) -> None:
        """Answer a server that dialled the process whose address this is."""
        target = next((m for m in self._machines if m.name == address[0]), None)
        role = None
        if target is not None and not self._is_over:
            role = self._role(target, [machine], is_dialed=True)
        if role is None:
            stream.close()
            return
        self._begin(role, stream, None)

    def _begin(self, role: _Role, stream: Stream, life: Life | None) -> None:
        self.tried[role.fraud] = self.tried.get(role.fraud, 0) + 1
        if role.certificate is not None:
            security = security_of(role.certificate, trusted="")
            stream = security.wrap(stream, dialed=life is not None)
        hello: list[Buffer] = [_framed(FrameType.HELLO, [encode_hello(role.hello)])]
        visit = _Visit(stream, partial(self._ended, role, life))
        self._visits[visit] = None
        frames = self._frames(role)
        visit.begin(hello, frames, is_rash=self._rng.random() < RASH)
        self._clock.call_later(STAY_NS, visit.leave)

    def _ended(self, role: _Role, life: Life | None, visit: _Visit, cause: str) -> None:
        """Check a visit at its end."""
        self._visits.pop(visit, None)
        if life is None:
            return
        machine = role.target
        if visit.was_answered:
            self._violate("intruder-answered", f"{machine.name}: {role.fraud.value}")
        self.look()
        if cause != "closed by peer" or machine.life is not life:
            return
        self.turned_away[role.fraud] = self.turned_away.get(role.fraud, 0) + 1
        if life.server.state in {ServerState.STOPPING, ServerState.STOPPED}:
            return
        closed = self._closed[life] = self._closed.get(life, 0) + 1
        counted = life.server.links.refused
        if counted < closed:
            self._violate(
                "intruder-uncounted", f"{machine.name}: closed {closed}, counted {counted}"
            )

    # --- effects ------------------------------------------------------------------------------
    def look(self) -> None:
        """Report every effect of its frames as a violation."""
        for text in self.traces():
            self._violate("intruder-obeyed", text)

    def traces(self) -> list[str]:
        """Describe states of servers that only its frames can have caused."""
        found = []
        for machine in self._machines:
            host = machine.server.host if machine.server is not None else None
            for group_id, group in sorted(host.groups.items()) if host is not None else ():
                if group.node.term >= TERM:
                    found.append(f"{machine.name}: group {group_id} is in term {group.node.term}")
                if any(server_of(replica) == STRANGER for replica in group.members):
                    found.append(f"{machine.name}: group {group_id} has a member {STRANGER}")
        return found

    # --- frames -------------------------------------------------------------------------------
    def _frames(self, role: _Role) -> list[Buffer]:
        """Return frames that would do harm if they came from the claimed server."""
        server, host = role.hello.server_id, None
        if role.target.server is not None:
            host = role.target.server.host
        if host is None:
            return []
        groups = list(host.groups.values())
        chosen = self._rng.sample(groups, min(GROUPS, len(groups)))
        messages: list[tuple[GroupId, PeerMessage]] = []
        leaders = LeaderListSender()
        leaders.connected(role.target.server_id)
        for group in chosen:
            replica = _replica_on(group, server)
            messages += [(group.group_id, message) for message in _harm(group, replica)]
            leaders.set(group.group_id, TERM, replica)
        self._rng.shuffle(messages)
        frames: list[Buffer] = [
            _framed(FrameType.RAFT, encode_messages([message])) for message in messages
        ]
        changes = leaders.changes(role.target.server_id, 0)
        if changes is not None:
            frames.append(_framed(*changes))
        names = sorted(host.catalog.topics)
        deletion = commands.DeleteTopics(names)
        envelope = commands.encode(commands.Envelope(server, 1, 1, host.clock.wall_ms(), deletion))
        proposed = encode_command(SentCommand(1, CATALOG_GROUP, 1_000, envelope))
        sent = encode_command(
            SentCommand(1, CATALOG_GROUP, 1_000, commands.encode_command(deletion))
        )
        frames.append(_framed(FrameType.PROPOSE, proposed))
        frames.append(_framed(FrameType.COMMAND, sent))
        return frames


def _harm(group: Group, replica: NodeId) -> list[PeerMessage]:
    """Return messages to a group's replica here, as if from `replica`."""
    to = group.replica_id
    end = group.node.raft.log.last_index
    entry = Entry(term=TERM, index=Index(end + 1), data=b"intruder")
    stranger = replica_id_of(STRANGER, ReplicaNumber(1))
    snapshot = Snapshot(
        Index(end + 1_000), TERM, ConfState(voters=(stranger,)), Offset(0), b"intruder"
    )
    return [
        MsgVote(to, replica, TERM, TERM, Index(end + 1_000), transfer=True),
        MsgVoteResp(to, replica, TERM),
        MsgApp(to, replica, TERM, group.node.term, end, [entry], Index(end + 1)),
        MsgAppResp(to, replica, TERM, Index(end + 1_000)),
        MsgHeartbeat(to, replica, TERM, Index(end + 1_000)),
        MsgCommit(to, replica, TERM, Index(end + 1_000)),
        MsgSnap(to, replica, TERM, snapshot),
        MsgTimeoutNow(to, replica, TERM),
    ]


def _replica_on(group: Group, server: ServerId) -> NodeId:
    members = [replica for replica in group.members if server_of(replica) == server]
    return members[0] if members else replica_id_of(server, ReplicaNumber(1))


def _others(machines: Sequence[Machine], target: Machine) -> list[Machine]:
    return [machine for machine in machines if machine is not target]


def _port_of(machine: Machine) -> Address:
    return machine.name, PEER_PORT


def _framed(frame_type: FrameType, buffers: Sequence[Buffer]) -> bytes:
    payload = b"".join(buffers)
    return frame_head(frame_type, len(payload), crc32c(payload)) + payload


class _Visit:
    """One stream between an intruder and a server. A `StreamOwner`."""

    def __init__(self, stream: Stream, ended: Callable[[_Visit, str], None]) -> None:
        self._stream = stream
        self._tell_end = ended
        self._unsent: deque[Buffer] = deque()
        self._frames: list[Buffer] = []
        self._reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX)
        self._is_over = False
        self.was_answered = False
        """True if the other end sent HELLO."""

    def begin(self, hello: list[Buffer], frames: list[Buffer], *, is_rash: bool) -> None:
        """Send HELLO; the frames follow at once, or after the other end's HELLO."""
        self._unsent += hello
        if is_rash:
            self._unsent += frames
        else:
            self._frames = frames
        self._stream.start(self)
        self.writable()

    def leave(self) -> None:
        """Close the stream."""
        if not self._is_over:
            self._is_over = True
            self._stream.close()
            self._tell_end(self, "left")

    def get_buffer(self) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, received: int) -> None:
        self._reader.buffer_updated(received)
        try:
            while (frame := self._reader.next_frame()) is not None:
                if frame[0] == FrameType.HELLO:
                    self.was_answered = True
                    self._unsent += self._frames
                    self._frames = []
        except RemoteError:
            self.leave()  # an unencrypted answer does not consist of our frames
            return
        self.writable()

    def writable(self) -> None:
        if not self._is_over:
            write_unsent(self._stream, self._unsent)

    def ended(self, cause: str) -> None:
        self._is_over = True
        self._tell_end(self, cause)
