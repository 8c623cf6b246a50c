"""Metrics that clients push: subscriptions of each client, pushed values, export (KIP-714).

Subscriptions are settings in the catalog, so every server requests the same metrics from a client,
under the same id: a client may push to a server that it never queried. This server remembers when a
client last queried and pushed; it forgets the clients that have been silent longest.

Pushed values are summed up here by metric and client id, and exported on the operations port. Their
number is bounded: `SERIES_MAX` series, first come first served. The series of a client are dropped
when it has not pushed for `INTERVALS_KEPT` of its intervals.

Patterns of administrators select the clients of a subscription. They are matched off the loop
(`choose`), once for a client while the settings do not change.

Does not depend on requests, the wire format, or the form of the export.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from zlib import crc32

from vdl.clock import MS
from vdl.errors import ErrorCode, KafkaError
from vdl.kafka.limits.pattern_work import Found, PatternWork
from vdl.kafka.telemetry.otlp import Point
from vdl.patterns import BadPattern
from vdl.state.resource_configs import ResourceConfigs, ResourceType, list_parts

METRICS = "metrics"
INTERVAL_MS = "interval.ms"
MATCH = "match"
DEFAULT_INTERVAL_MS = 300_000

SELECTORS = (
    "client_id",
    "client_instance_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""Attributes of clients by which a subscription may select them."""

CLIENTS_MAX = 16_384
"""As in Kafka."""
SERIES_MAX = 500
"""Maximum number of exported series: the port's answer is built in one piece."""
SERIES_OF_A_CLIENT_MAX = 100
"""Maximum number of series of one client, so that others have room."""
INTERVALS_KEPT = 3
KEPT_MS_MIN = 60_000
SELECTED_CHARS_MAX = 256
"""Length to which a client's attributes are cut; patterns see no more."""
ALL_METRICS = "*"
_NEVER_NS = -1 << 62
_SUBSCRIPTION_ID_MASK = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription in the catalog."""

    name: str
    metrics: tuple[str, ...]
    interval_ms: int
    match: tuple[tuple[str, str], ...]
    """(selector, pattern), all of which must match."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Metrics that one client should push."""

    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]
    """Prefixes of names; `*` alone for all, empty for none."""


@dataclass(slots=True)
class _Client:
    """State of a client instance."""

    asked: Asked
    revision: int
    """Revision of the settings from which `asked` was made."""
    got_ns: int = _NEVER_NS
    """Time of its last query here."""
    pushed_ns: int = _NEVER_NS
    is_terminating: bool = False
    may_ask: bool = False
    """True if it may query again at once, because it was refused with a request to do so."""


@dataclass(slots=True)
class _Pushed:
    """Values pushed by clients of one id."""

    until_ns: int = 0
    """Time when they are dropped, unless more are pushed."""
    numbers: dict[tuple[str, str], tuple[float, bool]] = field(default_factory=dict)
    """(metric, attributes) → (value, True for a counter)."""


class ClientMetrics:
    """Subscriptions of clients and the metrics they pushed; see the module."""

    __slots__ = (
        "_clients",
        "_count",
        "_pushed",
        "_revision",
        "_subscriptions",
        "points",
        "points_dropped",
        "pushes",
        "pushes_refused",
    )

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._revision = -1
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        """State by instance id, the one silent longest first."""
        self._pushed: dict[str, _Pushed] = {}
        """Pushed values by client id."""
        self._count = 0
        """Number of series in `_pushed`."""
        self.pushes = 0
        self.pushes_refused = 0
        self.points = 0
        self.points_dropped = 0
        """Points beyond the bounds."""

    def __len__(self) -> int:
        return len(self._clients)

    # --- subscriptions of clients ------------------------------------------------------------
    def choose(
        self,
        instance_id: bytes,
        client: Mapping[str, str],
        resources: ResourceConfigs,
        work: PatternWork,
        asker: str,
        done: Callable[[], None],
    ) -> bool:
        """Match the subscriptions of a client, then call `done`, perhaps within this call.

        `done` may call `ask` or `check_push`. `client` has the client's attributes by selector.
        Return False if too many patterns wait to be matched.
        """
        self._follow(resources)
        known = self._clients.get(instance_id)
        if known is not None and known.revision == self._revision:
            self._clients.move_to_end(instance_id)
            done()
            return True
        revision, subscriptions = self._revision, self._subscriptions
        asked = [
            (pattern, (client[selector][:SELECTED_CHARS_MAX],))
            for one in subscriptions
            for selector, pattern in one.match
        ]

        def matched(found: list[Found]) -> None:
            answers = iter(found)
            chosen = []
            for one in subscriptions:
                own = list(islice(answers, len(one.match)))
                # A pattern that an earlier version accepted, and this one refuses, matches no
                # client.
                if all(isinstance(answer, list) and answer for answer in own):
                    chosen.append(one)
            self._choose(instance_id, _union(chosen), revision)
            done()

        if not asked:
            matched([])
            return True
        return work.match(asker, asked, matched) is not None

    def _choose(self, instance_id: bytes, asked: Asked, revision: int) -> None:
        known = self._clients.get(instance_id)
        if known is not None:
            known.asked, known.revision = asked, revision
            self._clients.move_to_end(instance_id)
            return
        self._clients[instance_id] = _Client(asked, revision)
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)

    def has_subscriptions(self, resources: ResourceConfigs) -> bool:
        """Return True if any subscription has metrics."""
        self._follow(resources)
        return any(one.metrics for one in self._subscriptions)

    def ask(self, instance_id: bytes, now_ns: int) -> Asked:
        """Return the metrics that a client should push. Raises KafkaError if it queried too soon.

        `choose` must have been called.
        """
        known = self._clients[instance_id]
        too_soon = now_ns - known.got_ns < known.asked.interval_ms * MS
        if too_soon and not known.may_ask:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                ("the client requested its subscription again before the push interval had passed"),
            )
        known.may_ask = False
        known.got_ns = now_ns
        return known.asked

    def check_push(
        self,
        instance_id: bytes,
        now_ns: int,
        *,
        subscription_id: int,
        is_terminating: bool,
    ) -> Asked:
        """Return the metrics requested from a client that may push now, by this subscription id.

        `choose` must have been called. Raises KafkaError if the client may not push.
        """
        known = self._clients[instance_id]
        if known.is_terminating:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the client has already sent its terminating push"
            )
        too_soon = now_ns - known.pushed_ns < known.asked.interval_ms * MS
        if too_soon and not is_terminating:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                "the client pushed before its push interval had passed",
            )
        if subscription_id != known.asked.subscription_id:
            known.may_ask = True
            raise KafkaError(
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID, "the subscription has changed; request it again"
            )
        known.is_terminating = is_terminating
        known.pushed_ns = now_ns
        return known.asked

    def refused_compression(self, instance_id: bytes) -> None:
        """Let the client query again, to learn the accepted compression types."""
        known = self._clients.get(instance_id)
        if known is not None:
            known.may_ask = True

    def _follow(self, resources: ResourceConfigs) -> None:
        """Read the subscriptions again if any settings have changed."""
        if self._revision == resources.revision:
            return
        self._revision = resources.revision
        self._subscriptions = [
            _subscription(name, resources.of(ResourceType.CLIENT_METRICS, name))
            for name in resources.names(ResourceType.CLIENT_METRICS)
        ]

    # --- pushed values -----------------------------------------------------------------------
    def take(
        self, client_id: str, points: Iterable[Point], *, now_ns: int, interval_ms: int
    ) -> None:
        """Add the points of a push. The client pushes at this interval."""
        self._forget(now_ns)
        pushed = self._pushed.setdefault(client_id[:SELECTED_CHARS_MAX], _Pushed())
        pushed.until_ns = now_ns + max(KEPT_MS_MIN, INTERVALS_KEPT * interval_ms) * MS
        numbers = pushed.numbers
        for point in points:
            key = (point.name, point.attributes)
            before = numbers.get(key)
            if before is None:
                if self._count >= SERIES_MAX or len(numbers) >= SERIES_OF_A_CLIENT_MAX:
                    self.points_dropped += 1
                    continue
                self._count += 1
                before = 0.0, point.is_counter
            self.points += 1
            value = before[0] + point.value if point.adds else point.value
            numbers[key] = value, point.is_counter
        if not numbers:
            del self._pushed[client_id[:SELECTED_CHARS_MAX]]

    def _forget(self, now_ns: int) -> None:
        """Drop the values of silent clients. There are no more clients than series."""
        for client_id in [one for one, pushed in self._pushed.items() if pushed.until_ns < now_ns]:
            self._count -= len(self._pushed.pop(client_id).numbers)

    def series(self, now_ns: int) -> Iterator[tuple[str, str, str, float, bool]]:
        """Yield (metric, client id, attributes, value, True for a counter)."""
        self._forget(now_ns)
        for client_id, pushed in self._pushed.items():
            for (name, attributes), (value, is_counter) in pushed.numbers.items():
                yield name, client_id, attributes, value, is_counter


def _union(subscriptions: list[Subscription]) -> Asked:
    """Combine the subscriptions of a client: all their metrics, at the shortest interval."""
    own = [one for one in subscriptions if one.metrics]
    wanted = sorted({prefix for one in own for prefix in one.metrics})
    if ALL_METRICS in wanted:
        wanted = [ALL_METRICS]
    interval_ms = min((one.interval_ms for one in own), default=DEFAULT_INTERVAL_MS)
    text = ",".join([str(interval_ms), *wanted])
    return Asked(crc32(text.encode()) & _SUBSCRIPTION_ID_MASK, interval_ms, tuple(wanted))


def read_match(part: str) -> tuple[str, str]:
    """Return selector and pattern of one part of `match`, without compiling the pattern.

    Raises BadPattern.
    """
    selector, equals, pattern = part.partition("=")
    selector, pattern = selector.strip(), pattern.strip()
    if not equals or not pattern:
        raise BadPattern(part, "expected selector=pattern")
    if selector not in SELECTORS:
        raise BadPattern(part, "unknown selector")
    return selector, pattern


def _subscription(name: str, configs: Mapping[str, str]) -> Subscription:
    """Return the subscription in a resource's settings, which were validated when they were set."""
    return Subscription(
        name,
        tuple(list_parts(configs.get(METRICS, ""))),
        int(configs.get(INTERVAL_MS, DEFAULT_INTERVAL_MS)),
        tuple(read_match(part) for part in list_parts(configs.get(MATCH, ""))),
    )
