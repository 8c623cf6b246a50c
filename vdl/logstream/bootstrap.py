"""How a cluster is formed, exactly once.

An empty server may only send requests. A cluster is formed when every configured seed has answered
that it is empty too, with an equal configuration: then the lowest server id writes the birth record
durably, and the others adopt it. A server that finds another one with a record never forms a
cluster: it is an initial voter only if the record names its own data directory, otherwise a
newcomer that waits until the cluster adds it. So a wiped server can neither vote under its former
identity nor start a second cluster, even if it is alone.

Pure: takes the hellos and answers of the links, and returns the next step. Does not depend on
sockets, the disk or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from hashlib import sha256

import msgspec

from ids import DirectoryId, ServerId
from vdl.state.table import decode_value

COORDINATOR_GROUPS = 8
"""Coordinator groups of a new cluster. Part of the birth record: it can never change."""


class BirthRecord(msgspec.Struct, frozen=True, array_like=True):
    """Identity of a cluster. Written once, by one server."""

    cluster_id: str
    initial_voters: tuple[tuple[ServerId, DirectoryId], ...]
    """(server id, directory id) of every initial voter, ids ascending."""
    coordinator_groups: int = COORDINATOR_GROUPS
    format: int = 1
    former_ids: tuple[str, ...] = ()
    """Ids that the cluster had before `vdl recover`: servers that have one of these take no part
    any more. Oldest first."""

    def directory_of(self, server_id: ServerId) -> bytes | None:
        """Return the directory with which an initial voter started, None for another server."""
        for voter, directory_id in self.initial_voters:
            if voter == server_id:
                return directory_id
        return None

    def without(self, server_id: ServerId) -> BirthRecord:
        """Return the record as it is shown to a server that is no member any more.

        It does not adopt this one: the whole record comes with its number, once it is added.
        """
        voters = tuple(one for one in self.initial_voters if one[0] != server_id)
        return msgspec.structs.replace(self, initial_voters=voters)


def encode_record(record: BirthRecord) -> bytes:
    """Encode the record as `identity` stores it and ANSWER carries it."""
    return msgspec.msgpack.encode(record)


def decode_record(data: bytes | memoryview) -> BirthRecord:
    """Decode a record. Raise msgspec.DecodeError (ValidationError included) if it is malformed."""
    return decode_value(bytes(data), BirthRecord)


def configuration_digest(seeds: dict[ServerId, str]) -> bytes:
    """Return the digest of the seeds' ids and addresses, 32 bytes.

    It must be equal on all initial voters.
    """
    text = "\n".join(f"{server_id} {seeds[server_id]}" for server_id in sorted(seeds))
    return sha256(text.encode()).digest()


class BirthState(Enum):
    """Next step of a server without a record."""

    ASKING = "asking"
    NEWCOMER = "newcomer"
    """A cluster exists and does not list this directory: wait until it is added."""
    BORN = "born"


@dataclass(slots=True)
class EmptySeed:
    """A seed that reported on its open link that it is empty."""

    directory_id: DirectoryId
    digest: bytes


class Birth:
    """Formation procedure of one server whose directory has no record."""

    def __init__(
        self,
        *,
        server_id: ServerId,
        directory_id: DirectoryId,
        seeds: tuple[ServerId, ...],
        digest: bytes,
        coordinator_groups: int = COORDINATOR_GROUPS,
    ) -> None:
        """Create the procedure.

        `seeds`: ids of the servers that form the cluster together, this server's included if it is
        one.
        """
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
        """True if this is the lowest seed, and all others are linked, empty and equal in digest."""
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
        """Seeds that have not reported on their present link that they are empty."""
        return [s for s in self._seeds if s != self._server_id and s not in self._empty]

    def seed_is_empty(self, server_id: ServerId, directory_id: DirectoryId, digest: bytes) -> None:
        """Note a link to a server without a record. Servers other than seeds do not count."""
        if server_id in self._seeds:
            self._empty[server_id] = EmptySeed(directory_id, digest)

    def seed_left(self, server_id: ServerId) -> None:
        """Note that a link is gone: the server's report may not hold any more."""
        self._empty.pop(server_id, None)

    def found(self, cluster_id: str) -> BirthRecord:
        """Return the record of the new cluster.

        The caller makes it durable before any other server sees it.
        """
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
        """Take the record of another server. BORN: adopt it durably; NEWCOMER: wait."""
        if record.directory_of(self._server_id) == self._directory_id:
            self.record = record
            self.state = BirthState.BORN
        else:
            self.state = BirthState.NEWCOMER
        return self.state
