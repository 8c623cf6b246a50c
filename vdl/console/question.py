"""One question of a browser while it is answered: who asks, until when, and the servers.

Every request goes to a listener of the set with the credential of the session, as a Kafka client
would send it. So permissions, quotas and audit lines are those of Kafka, and the console has none
of its own.

Runs in a thread of its own; `cancel` comes from another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vdl.console.clients import CONNECT_SECONDS, ConsoleClient, ListenerSettings, LoginRefused
from vdl.console.problems import ConsoleError, LoginEnded, refuse
from vdl.console.registered_values import RegisteredValues
from vdl.console.sessions import Session
from vdl.console.settings import ConsoleSettings
from vdl.errors import ErrorCode
from vdl.kafka.client import Unreachable
from vdl.kafka.security.protocol import SecurityProtocol
from vdl.kafka.wire.describe_cluster import DescribeClusterRequest
from vdl.kafka.wire.find_coordinator import FindCoordinatorRequest
from vdl.kafka.wire.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from vdl.kafka.wire.metadata import MetadataRequest, MetadataRequestTopic
from vdl.kafka.wire.runtime import EncodeError

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = 9, 10, 15, 16
DESCRIBE_ACLS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = 29, 32, 35
DESCRIBE_CLIENT_QUOTAS, DESCRIBE_USER_SCRAM_CREDENTIALS, DESCRIBE_CLUSTER = 48, 50, 60
CONSUMER_GROUP_DESCRIBE, SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS = 69, 77, 90

EARLIEST, LATEST = -2, -1
DEAD_SECONDS: Final = 5.0
"""Time for which a server that did not answer is not asked again by the console."""
_DEAD_MAX: Final = 1_000
_PARTITIONS_PER_REQUEST: Final = 1_000

Address = tuple[str, int]
Where = tuple[str, int]
"""A topic and a partition."""


class Dead:
    """Servers that did not answer recently; shared by all threads."""

    def __init__(self) -> None:
        self._until_s: dict[Address, float] = {}

    def add(self, address: Address) -> None:
        """Note that a server does not answer."""
        if len(self._until_s) < _DEAD_MAX:
            self._until_s[address] = time.monotonic() + DEAD_SECONDS

    def has(self, address: Address) -> bool:
        """Return True if a server did not answer recently."""
        until_s = self._until_s.get(address)
        if until_s is None:
            return False
        if time.monotonic() < until_s:
            return True
        self._until_s.pop(address, None)
        return False


@dataclass(frozen=True, slots=True)
class Known:
    """Servers and topics that the user may see, as Metadata has them."""

    cluster: str
    controller: int
    addresses: Mapping[int, Address]
    racks: Mapping[int, str]
    topics: list[Any]


@dataclass(slots=True)
class Question:
    """See the module. Calls that reach servers may raise ConsoleError and LoginEnded."""

    settings: ConsoleSettings
    session: Session
    dead: Dead
    ends_s: float
    """Deadline of the whole question, on the monotonic clock."""
    schemas: RegisteredValues | None = None
    """Decodes values with schemas; None: there is no registry."""
    _open: list[ConsoleClient] = field(default_factory=list)
    _is_cancelled: bool = False
    login_began: threading.Event = field(default_factory=threading.Event)
    """Set when a credential is sent to a server for the first time."""
    was_refused: bool = False
    """True if a server has refused the credential."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- the deadline ----------------------------------------------------------------------------
    def check(self) -> None:
        """Raise ConsoleError if the time is over, LoginEnded if the session is."""
        if self.session.has_ended:
            raise LoginEnded
        if self.is_late:
            raise ConsoleError("deadline", "the question took too long")

    @property
    def is_late(self) -> bool:
        """True if the time is over."""
        return self._is_cancelled or time.monotonic() >= self.ends_s

    def seconds_left(self) -> float:
        """Return the time until the deadline, which may be past."""
        return self.ends_s - time.monotonic()

    def left_s(self) -> float:
        """Return the time that is left. Raises ConsoleError if there is none."""
        self.check()
        return max(0.01, self.seconds_left())

    def cancel(self) -> None:
        """Make all calls fail, from another thread."""
        with self._lock:
            self._is_cancelled = True
            opened = list(self._open)
        for client in opened:
            client.interrupt()

    def check_login(self) -> None:
        """Raise LoginEnded if the user cannot log in any more: some pages ask no server."""
        if self.session.user:
            try:
                with self.client(self.own_address):
                    pass
            except Unreachable as error:
                raise ConsoleError("unreachable", str(error)) from None

    # --- servers ---------------------------------------------------------------------------------
    @property
    def own_address(self) -> Address:
        return self.settings.host, self.settings.port

    @contextmanager
    def client(self, address: Address) -> Iterator[ConsoleClient]:
        """Lend a connection that is logged in. Raises Unreachable."""
        seconds = self.left_s()
        kept = self.session.borrow(address, time.monotonic())
        login_s, client = kept or (time.monotonic(), self._new_client(address, seconds))
        with self._lock:
            self._open.append(client)
        is_sound = False
        try:
            if kept is None:
                self._enter(client, address)
            client.limit(self.left_s())
            yield client
            is_sound = True
        finally:
            with self._lock:
                self._open.remove(client)
                is_sound = is_sound and not self._is_cancelled
            if is_sound:
                self.session.give_back(address, login_s, client, time.monotonic())
            elif hasattr(client, "_socket"):
                client.close()

    def _enter(self, client: ConsoleClient, address: Address) -> None:
        if self.dead.has(address):
            raise Unreachable(f"{address[0]}:{address[1]}", "did not answer a moment ago")
        began_s = time.monotonic()
        try:
            client.__enter__()
        except LoginRefused:
            self.was_refused = True
            raise LoginEnded from None
        except Unreachable:
            # A server that refuses at once costs no time.
            is_slow = time.monotonic() - began_s >= CONNECT_SECONDS / 2
            if is_slow and address != self.own_address:
                self.dead.add(address)
            raise
        except OSError as error:  # files of certificates
            raise Unreachable(f"{address[0]}:{address[1]}", str(error)) from None

    def _new_client(self, address: Address, seconds: float) -> ConsoleClient:
        if address != self.own_address:
            seconds = min(seconds, CONNECT_SECONDS)
        settings = self._client_settings(address)
        return ConsoleClient(*address, settings, seconds, self.login_began.set)

    def _client_settings(self, address: Address) -> ListenerSettings:
        settings, session = self.settings, self.session
        is_own = address == self.own_address
        password = session.password
        self.check()  # a session that has ended has no password any more
        return ListenerSettings(
            protocol=SecurityProtocol(settings.protocol),
            ca=Path(settings.ca) if settings.ca else None,
            # The server's own port is asked by an address, which its certificate need not have.
            checks_host=not is_own,
            mechanism=session.mechanism,
            user=session.user,
            password=password,
            trusted=settings.certificate if is_own else "",
        )

    def ask_at(self, address: Address, asked: list[tuple[int, Any]]) -> list[Any]:
        """Return a server's responses. Raises Unreachable. A connection that was kept may have been
        closed meanwhile, so a first failure is tried again on a new one."""
        is_connected = False
        try:
            with self.client(address) as client:
                is_connected = True
                return client.requests(asked)
        except EncodeError as error:
            raise Unreachable(f"{address[0]}:{address[1]}", f"is too old: {error}") from None
        except Unreachable:
            if not is_connected or not _is_harmless(asked):
                raise
        with self.client(address) as client:
            return client.requests(asked)

    def ask(self, api_key: int, message: Any) -> Any:
        """Return the response of this server."""
        try:
            return self.ask_at(self.own_address, [(api_key, message)])[0]
        except Unreachable as error:
            raise ConsoleError("unreachable", str(error)) from None

    def ask_server(self, server: int, api_key: int, message: Any) -> Any:
        """Return the response of a server. Raises Unreachable."""
        return self.ask_at(self.address_of(server), [(api_key, message)])[0]

    def address_of(self, server: int) -> Address:
        """Return the address of a server. Raises Unreachable if it is not there."""
        if server == self.settings.server:
            return self.own_address
        address = self.servers().addresses.get(server)
        if address is None:
            raise Unreachable(f"server {server}", "is not there")
        return address

    # --- what is asked often -------------------------------------------------------------------
    def metadata(self, topics: list[str] | None) -> Known:
        """Return the servers and some topics; None: all. Of a topic with an error only that is
        known."""
        found: Known | None = None
        if topics is None:
            found = self.session.remembered("topics", time.monotonic())
        if found is not None:
            return found
        wanted = None if topics is None else [MetadataRequestTopic(name=one) for one in topics]
        answer = self.ask(METADATA, MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        brokers = sorted(answer.brokers, key=lambda one: int(one.node_id))
        found = Known(
            answer.cluster_id or "",
            answer.controller_id,
            {one.node_id: (one.host, one.port) for one in brokers},
            {one.node_id: one.rack or "" for one in brokers},
            sorted(answer.topics, key=lambda one: one.name or ""),
        )
        if topics is None:
            self.session.remember("topics", found, time.monotonic())
        return found

    def servers(self) -> Known:
        """Return the servers, with no topics or all."""
        found: Known | None = self.session.remembered("topics", time.monotonic())
        if found is None:
            found = self.session.remembered("servers", time.monotonic())
        if found is None:
            found = self.metadata([])
            self.session.remember("servers", found, time.monotonic())
        return found

    def topic(self, name: str) -> Any:
        """Return a topic, as Metadata has it."""
        (found,) = self.metadata([name]).topics
        if found.error_code:
            refuse(found.error_code, f"topic {name}")
        found.partitions.sort(key=lambda one: one.partition_index)
        return found

    def described_cluster(self) -> Any:
        """Return DescribeCluster's answer, which includes servers that are down."""
        return self.ask(
            DESCRIBE_CLUSTER,
            DescribeClusterRequest(
                include_cluster_authorized_operations=True, include_fenced_brokers=True
            ),
        )

    def coordinator(self, group: str) -> int:
        """Return the server that coordinates a consumer group."""
        asked = FindCoordinatorRequest(coordinator_keys=[group])
        (found,) = self.ask(FIND_COORDINATOR, asked).coordinators
        if found.error_code:
            refuse(found.error_code, f"group {group}", found.error_message)
        server: int = found.node_id
        return server

    def offsets(
        self, leaders: Mapping[Where, int], time_or_end: int, *, isolation: int = 0
    ) -> dict[Where, int | None]:
        """Return the offset of a time, or of EARLIEST or LATEST, in each partition, by leader; None
        where no leader answers."""
        found: dict[Where, int | None] = dict.fromkeys(leaders)
        for server, places in by_leader(leaders).items():
            for start in range(0, len(places), _PARTITIONS_PER_REQUEST):
                some = places[start : start + _PARTITIONS_PER_REQUEST]
                request = _list_offsets(some, time_or_end, isolation)
                try:
                    answer = self.ask_server(server, LIST_OFFSETS, request)
                except Unreachable:
                    break
                for topic in answer.topics:
                    for one in topic.partitions:
                        if one.error_code == ErrorCode.NONE:
                            found[topic.name, one.partition_index] = one.offset
        return found


def by_leader(leaders: Mapping[Where, int]) -> dict[int, list[Where]]:
    """Return the partitions of each leader."""
    found: dict[int, list[Where]] = {}
    for place, server in leaders.items():
        if server >= 0:
            found.setdefault(server, []).append(place)
    return found


def by_topic(places: Iterable[Where]) -> dict[str, list[int]]:
    """Return the partitions of each topic."""
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found


def _list_offsets(places: Iterable[Where], time_or_end: int, isolation: int) -> ListOffsetsRequest:
    topics = [
        ListOffsetsTopic(
            topic,
            [ListOffsetsPartition(number, timestamp=time_or_end) for number in partitions],
        )
        for topic, partitions in by_topic(places).items()
    ]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


def _is_harmless(asked: list[tuple[int, Any]]) -> bool:
    """Return True if requests may be sent again after an unknown outcome."""
    return all(api_key != PRODUCE for api_key, _ in asked)
