"""How a cluster comes into being, exactly once.

An empty server may only *ask*. A cluster is formed when every configured seed has answered that it
is empty too, with an equal configuration: then the lowest server id writes the birth record
durably, and the others adopt it. Whoever finds a server that already has a record never founds
anything: it is an initial voter only if the record names this very data directory, else a newcomer
that waits until the cluster takes it in. So a wiped server can neither vote as its former self nor
start a second cluster, also when it is alone.

Pure: fed with the hellos and answers of the links, it says what to do next. Must not know: sockets,
the disk, time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

import msgspec

from ids import DirectoryId, ServerId
from vdl.state.table import decode_value

COORDINATOR_GROUPS = 8
"""How many coordinator groups a new cluster gets. In the birth record: it can never change."""


class BirthRecord(msgspec.Struct, frozen=True, array_like=True):
    """What makes a cluster this cluster. Written once, by one server."""

    cluster_id: str
    initial_voters: tuple[tuple[ServerId, DirectoryId], ...]
    """(server id, directory id) of every initial voter, ids ascending."""
    coordinator_groups: int = COORDINATOR_GROUPS
    format: int = 1

    def directory_of(self, server_id: ServerId) -> bytes | None:
        """The directory an initial voter began with, None for another server."""
        for voter, directory_id in self.initial_voters:
            if voter == server_id:
                return directory_id
        return None


def encode_record(record: BirthRecord) -> bytes:
    """The record as `identity` keeps it and ANSWER carries it."""
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes | memoryview) -> BirthRecord:
    """Raises msgspec.DecodeError (ValidationError among them)."""
    return decode_value(bytes(data), BirthRecord)


def configuration_digest(seeds: dict[ServerId, str]) -> bytes:
    """What must be equal on all initial voters: the seeds' ids and addresses. 32 bytes."""
    text = "\n".join(f"{server_id} {seeds[server_id]}" for server_id in sorted(seeds))
    return sha256(text.encode()).digest()


class BirthState(Enum):
    """What a server without a record is to do."""

    ASKING = "asking"
    NEWCOMER = "newcomer"
    """A cluster exists and does not know this directory: wait to be taken in."""
    BORN = "born"


@dataclass(slots=True)
class EmptySeed:
    """A seed that said it is empty, on the link that is open now."""

    directory_id: DirectoryId
    digest: bytes


class Birth:
    """The procedure of one server whose directory has no record."""

    def __init__(
        self,
        *,
        server_id: ServerId,
        directory_id: DirectoryId,
        seeds: tuple[ServerId, ...],
        digest: bytes,
        coordinator_groups: int = COORDINATOR_GROUPS,
    ) -> None:
        """`seeds`: server ids that found the cluster together, this server's among them if it is
        one."""
        self._server_id = server_id
        self._directory_id = directory_id
        self._seeds = tuple(sorted(seeds))
        self._digest = digest
        self._coordinator_groups = coordinator_groups
        self._empty: dict[ServerId, EmptySeed] = {}
        self.state = BirthState.ASKING
        self.record: BirthRecord | None = None

    @property
    def may_found(self) -> bool:
        """Every other seed is linked, empty and of equal configuration, and this is the lowest."""
        return (
            self.state is BirthState.ASKING
            and self._server_id == self._seeds[0]
            and all(
                seed == self._server_id
                or (seed in self._empty and self._empty[seed].digest == self._digest)
                for seed in self._seeds
            )
        )

    @property
    def missing(self) -> list[ServerId]:
        """Seeds that have not said they are empty, as far as this server hears them now."""
        return [s for s in self._seeds if s != self._server_id and s not in self._empty]

    def seed_is_empty(self, server_id: ServerId, directory_id: DirectoryId, digest: bytes) -> None:
        """A link is open to a server without a record. Other servers than seeds do not count."""
        if server_id in self._seeds:
            self._empty[server_id] = EmptySeed(directory_id, digest)

    def seed_left(self, server_id: ServerId) -> None:
        """The link is gone: what the server said is not known to hold any more."""
        self._empty.pop(server_id, None)

    def found(self, cluster_id: str) -> BirthRecord:
        """The record of the new cluster. The caller makes it durable before anyone sees it."""
        assert self.may_found, self.state
        directories = {seed: empty.directory_id for seed, empty in self._empty.items()}
        directories[self._server_id] = self._directory_id
        self.record = BirthRecord(
            cluster_id,
            tuple((seed, directories[seed]) for seed in self._seeds),
            self._coordinator_groups,
        )
        self.state = BirthState.BORN
        return self.record

    def answered(self, record: BirthRecord) -> BirthState:
        """Somebody has a record. BORN: adopt it durably; NEWCOMER: wait."""
        if record.directory_of(self._server_id) == self._directory_id:
            self.record = record
            self.state = BirthState.BORN
        else:
            self.state = BirthState.NEWCOMER
        return self.state
