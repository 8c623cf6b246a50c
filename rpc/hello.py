"""The handshake: identities, versions, and reasons to refuse a link.

A link carries nothing before both ends have sent HELLO. The dialer sends first; the other end
answers with its own HELLO or with REJECT. The first eight bytes (magic, version, oldest version
understood) keep their layout forever, so that any two versions can at least refuse one another with
the right reason.

HELLO payload, little-endian:

     0  magic          4s   b"VDLP"
     4  version        u16  newest protocol version this end speaks
     6  version_min    u16  oldest protocol version this end speaks
     8  server_id      u32
    12  to_server      u32  server that the sender believes to address, 0 if unknown
    16  directory_id   16s  the data directory: a wiped server has another one
    32  incarnation    u64  differs at every start of that directory
    40  cluster_bytes  u16  \\
    42  digest_bytes   u16   } lengths of what follows, in this order
    44  info_bytes     u32  /
    48  cluster id (UTF-8, empty before birth), configuration digest,
        info: the starts of the data directory (`journal_marks.py`; opaque here),
        u16 and that many bytes: the servers' addresses in the sender's file (opaque here);
        servers of earlier builds leave both out

REJECT payload: reason u16, then a UTF-8 text for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from ids import DirectoryId, ServerId
from rpc.errors import MalformedFrame

PROTOCOL_VERSION = 16
PROTOCOL_VERSION_MIN = 3
"""Range of protocol versions supported here. 2: commit indexes are sent in messages of their own
kind (`MsgCommit`). 3: leader lists carry the in-sync replicas. 4: logs of partitions may hold
`ExpireProducers`, which a leader appends only while the servers of all members speak 4. 5: frames
may come in pieces. 6: QUERY and REPLY exist. 7: logs may hold `Compact`, under the same rule as 4;
servers report to leaders how far replicas are compacted."""

VERSION_OF_PIECES = 5
"""Peers below this version are sent whole frames."""
VERSION_OF_DAMAGE = 5
"""Peers below this version may end the link when a CONDITION names groups."""
VERSION_OF_QUERIES = 6
"""Peers below this version would end the link at a QUERY."""

VERSION_OF_COMPACTION = 7
"""Peers below this version know neither the `Compact` command nor the COMPACTED frame."""

VERSION_OF_COMMANDS = 8
"""Peers below this version would end the link at a COMMAND."""

VERSION_OF_JOINED_COMMANDS = 9
"""Peers below this version are sent each command, and each answer, in a frame of its own."""

VERSION_OF_COMPACTED_COPIES = 10
"""Peers below this version neither send nor receive the extent of compaction in ENTRIES."""

VERSION_OF_DENIALS = 11
"""Peers below this version would end the link at DENIALS, and are answered in Raft messages."""

VERSION_OF_DOWNGRADES = 11
"""Coordinators whose members all speak it apply `DowngradeConsumerGroup` and
`TimeOutTransactions`."""

VERSION_OF_LATE_FIRST_NUMBERS = 11
"""Peers below this version take sequence numbers below a producer's first one for appended, because
they assume that numbers begin at 0."""

VERSION_OF_BOOTS = 12
"""Peers below this version do not report the starts of their directory, and would end the link at a
JOURNAL, REMEMBERED or DISSENT."""

VERSION_OF_SHORT_SNAPSHOTS = 13
"""Peers below this version take the list of aborted transactions from a partition's snapshot."""

VERSION_OF_MANY_POSITIONS = 14
"""Peers below this version know neither `RaisePositionsBound` nor `ExpireOffsetsOf`, and no
snapshot in parts."""

VERSION_OF_LARGE_FRAMES = 14
"""Peers below this version end the link at a frame of more than `OLD_FRAME_BYTES_MAX`."""

VERSION_OF_ADDED_SERVERS = 15
"""Peers below this version know none of the commands that add and remove servers."""

VERSION_OF_MOVED_VOTES = 16
"""Peers below this version do not know the commands that remove servers of the first ones."""

OLD_FRAME_BYTES_MAX = 64 << 20

DIRECTORY_ID_BYTES = 16
CLUSTER_ID_BYTES_MAX = 255
CONFIG_DIGEST_BYTES_MAX = 64
INFO_BYTES_MAX = 32 << 10
ADDRESSES_BYTES_MAX = 16 << 10
REJECT_TEXT_BYTES_MAX = 512

_MAGIC = b"VDLP"
_PREFIX = Struct("<4sHH")
_HELLO = Struct("<4sHHII16sQHHI")
_LENGTH = Struct("<H")
_REJECT = Struct("<H")


class RejectReason(IntEnum):
    """Reason why one end refuses or ends a link. Sent in REJECT; never reuse a number."""

    WRONG_CLUSTER = 1
    WRONG_SERVER = 2
    VERSION = 3
    DUPLICATE_LINK = 4
    NOT_ADMITTED = 5
    TOO_MANY_LINKS = 6
    STOPPING = 7
    IDENTITY_CHANGED = 8
    PROTOCOL_ERROR = 9
    SECOND_PROCESS = 10
    """The server is linked already: the refused process runs in a copy of its data directory."""
    FOREIGN_DIRECTORY = 11
    """The data directory is another server's."""
    REMOVED = 12
    """The server was removed from the cluster, with this data directory."""
    RECOVERED = 13
    """The cluster goes on under another id since a majority of its disks was given up."""


_REASON_BY_CODE = {reason.value: reason for reason in RejectReason}


@dataclass(frozen=True, slots=True)
class Hello:
    """Identity and settings of one server, as sent in HELLO.

    Use: `cluster_id` is "" until the server has adopted a birth record; such a server may only send
    ASK. `config_digest` is compared by the birth procedure, `info` is for the host, `addresses`
    shows in what way configurations differ.
    """

    server_id: ServerId
    directory_id: DirectoryId
    incarnation: int
    cluster_id: str = ""
    config_digest: bytes = b""
    info: bytes = b""
    addresses: bytes = b""
    to_server: ServerId = ServerId(0)
    version: int = PROTOCOL_VERSION
    version_min: int = PROTOCOL_VERSION_MIN
    former_ids: tuple[str, ...] = ()
    """Not sent. Ids that the cluster had before a recovery."""

    def __post_init__(self) -> None:
        if not 0 < self.server_id < 1 << 32:
            raise ValueError(f"server id {self.server_id}")
        if len(self.directory_id) != DIRECTORY_ID_BYTES:
            raise ValueError(f"directory id of {len(self.directory_id)} bytes")
        if len(self.cluster_id.encode()) > CLUSTER_ID_BYTES_MAX:
            raise ValueError("cluster id too long")
        if len(self.config_digest) > CONFIG_DIGEST_BYTES_MAX:
            raise ValueError("configuration digest too long")
        if len(self.info) > INFO_BYTES_MAX:
            raise ValueError("info too long")
        if len(self.addresses) > ADDRESSES_BYTES_MAX:
            raise ValueError("addresses too long")

    def is_same_process(self, other: Hello) -> bool:
        """Return True if both are HELLOs of one start of one server."""
        return (self.server_id, self.directory_id, self.incarnation) == (
            other.server_id,
            other.directory_id,
            other.incarnation,
        )


def encode_hello(hello: Hello) -> bytes:
    """Encode the HELLO payload."""
    cluster_id = hello.cluster_id.encode()
    head = _HELLO.pack(
        _MAGIC, hello.version, hello.version_min, hello.server_id, hello.to_server,
        hello.directory_id, hello.incarnation,
        len(cluster_id), len(hello.config_digest), len(hello.info),
    )  # fmt: skip
    addresses = _LENGTH.pack(len(hello.addresses)), hello.addresses
    return b"".join((head, cluster_id, hello.config_digest, hello.info, *addresses))


def decode_versions(payload: memoryview) -> tuple[int, int]:
    """Return (version, version_min) of a HELLO of any protocol version. Raises MalformedFrame."""
    if len(payload) < _PREFIX.size:
        raise MalformedFrame("hello", len(payload))
    magic, version, version_min = _PREFIX.unpack_from(payload)
    if magic != _MAGIC:
        raise MalformedFrame("hello magic")
    return version, version_min


def decode_hello(payload: memoryview) -> Hello:
    """Decode a HELLO of a version we speak. Raises MalformedFrame."""
    if len(payload) < _HELLO.size:
        raise MalformedFrame("hello", len(payload))
    (
        magic, version, version_min, server_id, to_server,
        directory_id, incarnation, cluster_bytes, digest_bytes, info_bytes,
    ) = _HELLO.unpack_from(payload)  # fmt: skip
    if magic != _MAGIC:
        raise MalformedFrame("hello magic")
    digest_at = _HELLO.size + cluster_bytes
    info_at = digest_at + digest_bytes
    addresses_at = info_at + info_bytes
    if addresses_at > len(payload):
        raise MalformedFrame("hello lengths", _HELLO.size)
    addresses = _decode_addresses(payload[addresses_at:]) if addresses_at < len(payload) else b""
    try:
        return Hello(
            server_id=server_id,
            directory_id=directory_id,
            incarnation=incarnation,
            cluster_id=str(payload[_HELLO.size : digest_at], "utf-8"),
            config_digest=bytes(payload[digest_at:info_at]),
            info=bytes(payload[info_at : info_at + info_bytes]),
            addresses=addresses,
            to_server=to_server,
            version=version,
            version_min=version_min,
        )
    except ValueError as error:
        raise MalformedFrame(f"hello ({error})") from error


def _decode_addresses(rest: memoryview) -> bytes:
    """Decode the addresses, which follow `info`. Raises MalformedFrame."""
    if len(rest) < _LENGTH.size:
        raise MalformedFrame("hello addresses")
    (size,) = _LENGTH.unpack_from(rest)
    end = _LENGTH.size + size
    if end > len(rest):
        raise MalformedFrame("hello addresses")
    # Bytes after them belong to a newer minor layout and are ignored.
    return bytes(rest[_LENGTH.size : end])


def encode_reject(reason: RejectReason, text: str) -> bytes:
    """Encode the REJECT payload; the text is cut to a bound."""
    return _REJECT.pack(reason) + text.encode()[:REJECT_TEXT_BYTES_MAX]


def decode_reject(payload: memoryview) -> tuple[RejectReason, str]:
    """Decode (reason, text); an unknown reason becomes PROTOCOL_ERROR. Raises MalformedFrame."""
    if len(payload) < _REJECT.size:
        raise MalformedFrame("reject", len(payload))
    (code,) = _REJECT.unpack_from(payload)
    text = str(payload[_REJECT.size : _REJECT.size + REJECT_TEXT_BYTES_MAX], "utf-8", "replace")
    return _REASON_BY_CODE.get(code, RejectReason.PROTOCOL_ERROR), text


def refusal(local: Hello, remote: Hello, *, expected: int) -> tuple[RejectReason, str] | None:
    """Return why `local` may not share a link with `remote`, or None. `expected` 0: any server."""
    if remote.server_id == local.server_id:
        return RejectReason.WRONG_SERVER, f"server {remote.server_id} has the id of this server"
    if expected not in (0, remote.server_id):
        return RejectReason.WRONG_SERVER, f"expected server {expected}, found {remote.server_id}"
    if remote.to_server not in (0, local.server_id):
        return (
            RejectReason.WRONG_SERVER,
            f"this is server {local.server_id}, not {remote.to_server}",
        )
    if remote.cluster_id and remote.cluster_id in local.former_ids:
        text = (
            f"cluster {remote.cluster_id} was recovered with the loss of this data directory, and "
            f"is {local.cluster_id} now"
        )
        return RejectReason.RECOVERED, text
    if local.cluster_id and remote.cluster_id and local.cluster_id != remote.cluster_id:
        text = (
            f"server {local.server_id} belongs to cluster {local.cluster_id}, not "
            f"{remote.cluster_id}"
        )
        return RejectReason.WRONG_CLUSTER, text
    return None
