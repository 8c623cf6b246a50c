"""The sources of one server's metrics: which numbers are read where, in the order of the page.

Does not depend on the form of the page.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

from segments.api import StorageError
from segments.store import DiskStore
from vdl import __version__
from vdl.config.settings import MetricsOptions
from vdl.records.walk import IS_NATIVE
from vdl.server.diagnosis import problems_of
from vdl.server.exposition import Distribution, Number, Sample, Source
from vdl.server.group_lag import GroupLags
from vdl.server.metrics import (
    Handshakes,
    api_samples,
    build_samples,
    client_samples,
    latency_distributions,
    peer_samples,
    problem_samples,
    store_numbers,
    tls_samples,
)
from vdl.server.partition_counts import PartitionCounts
from vdl.server.server import Server
from vdl.server.topic_traffic import BusiestTopics


class ServerSources:
    """Numbers of one server, and what they remember from one page to the next."""

    def __init__(
        self,
        server: Server,
        store: DiskStore,
        options: MetricsOptions,
        handshakes: Callable[[], Iterable[Handshakes]],
    ) -> None:
        """`handshakes`: returns the ports with TLS."""
        self._server = server
        self._store = store
        self._options = options
        self._handshakes = handshakes
        self._counts = PartitionCounts()
        self._space: tuple[int, int] | None = None
        """Size of the file system and bytes that may be used, as last measured."""
        self._is_measuring = False
        self._topics: BusiestTopics | None = None
        self._lags: GroupLags | None = None

    def all(self) -> tuple[Source, ...]:
        """Return the sources. Two of one name have different keys."""
        server = self._server
        return (
            Source("build", self._build),
            Source("store", self._store_numbers),
            Source("store", self._store_writes),
            Source("server", self._count_numbers, self._count),
            Source("server", server.numbers),
            Source("server", lambda: problem_samples(problems_of(server, self._counts))),
            Source("kafka", self._requests),
            Source("request", self._latencies),
            Source("replication", self._replication),
            Source("end_to_end", self._end_to_end),
            Source("topic", self._topic_samples, self._look_at_topics),
            Source("group", self._lag_samples, self._look_at_lags),
            Source("client", self._pushed),
            Source("peer", lambda: peer_samples(server.links.links())),
            Source("tls", lambda: tls_samples(self._handshakes())),
        )

    def _build(self) -> Iterator[Sample]:
        return build_samples(__version__, platform.python_version(), is_native=IS_NATIVE)

    # --- the store ---------------------------------------------------------------------------
    def _store_numbers(self) -> dict[str, Number]:
        self._measure_space()
        numbers = store_numbers(self._store.stats())
        if self._space is not None:
            numbers["disk_size_bytes"], numbers["disk_free_bytes"] = self._space
        return numbers

    def _measure_space(self) -> None:
        """Begin to measure the file system, off the loop: its disk may hang."""
        if not self._is_measuring:
            self._is_measuring = True
            self._store.disk_space(self._measured)

    def _measured(self, space: tuple[int, int] | StorageError) -> None:
        self._is_measuring = False
        self._space = None if isinstance(space, StorageError) else space

    def _store_writes(self) -> Iterator[Distribution]:
        yield Distribution("journal_write_seconds", (), self._store.journal_writes)

    # --- partitions --------------------------------------------------------------------------
    def _count(self) -> Iterator[None]:
        counts = PartitionCounts()
        yield from self._server.counting_partitions(counts)
        self._counts = counts

    def _count_numbers(self) -> dict[str, Number]:
        counts = self._counts
        if self._server.host is None:
            return {}
        return {
            "groups": counts.groups,
            "leading": counts.leading,
            "leaderless": counts.leaderless,
            "under_replicated_partitions": counts.under_replicated,
            "under_min_isr_partitions": counts.under_min,
            "at_min_isr_partitions": counts.at_min,
        }

    # --- requests and records ----------------------------------------------------------------
    def _requests(self) -> Iterable[Sample]:
        frontend = self._server.frontend
        # No truth test: a front end without connections has length 0.
        return () if frontend is None else api_samples(frontend.stats.by_api)

    def _latencies(self) -> Iterable[Distribution]:
        frontend = self._server.frontend
        return () if frontend is None else latency_distributions(frontend.stats.by_api)

    def _replication(self) -> Iterator[Distribution]:
        host = self._server.host
        if host is not None:
            yield Distribution("seconds", (), host.stats.replication)

    def _end_to_end(self) -> Iterator[Distribution]:
        frontend = self._server.frontend
        if frontend is not None:
            yield Distribution("lag_seconds", (), frontend.context.delivery_lag.lag)

    def _pushed(self) -> Iterable[Sample]:
        server = self._server
        if server.frontend is None:
            return ()
        return client_samples(server.frontend.context.client_metrics, server.clock.now_ns())

    # --- topics and consumer groups ------------------------------------------------------------
    def _look_at_topics(self) -> Iterator[None]:
        host = self._server.host
        if host is None:
            return
        if self._topics is None:
            self._topics = BusiestTopics(host.measures.traffic, self._options.topics_max)
        yield from self._topics.look(host.catalog.topics)

    def _topic_samples(self) -> Iterable[Sample]:
        return () if self._topics is None else self._topics.samples()

    def _look_at_lags(self) -> Iterator[None]:
        server = self._server
        host, frontend = server.host, server.frontend
        groups = None if frontend is None else frontend.context.groups
        if host is None or groups is None:
            return
        if self._lags is None:
            self._lags = GroupLags(host, host.stream, groups.offsets_here, self._options.groups_max)
        yield from self._lags.look()

    def _lag_samples(self) -> Iterable[Sample]:
        return () if self._lags is None else self._lags.samples()
