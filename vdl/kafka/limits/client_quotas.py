"""Quotas of clients, and the throttle times of clients beyond them (KIP-13, KIP-219).

Quotas are in the catalog, and each server enforces them separately, as in Kafka. Without any quota
there is no `ClientQuotas`, and nothing is counted. Peers are not clients: traffic between servers
is never counted.

For each kind of quota, the first of these that exists applies:

    user and client id; user and the default client id; user; the default user and client id;
    the defaults of both; the default user; client id; the default client id

A quota of users without a client id is shared by all clients of that user, one without a user by
all users of that client id; every other pair has its own.

Each quota is a token bucket that fills at the quota's rate. It holds the tokens of ten seconds, the
period over which Kafka averages. One request may overdraw it. Then the answer has the time until
the bucket is no longer overdrawn, and the connection is not read for that long; requests that were
read before are answered. A Fetch that finds the bucket overdrawn is answered without records, at
once.

Clients may use any number of names, of any length. The number of buckets is bounded: full ones
carry no information and are dropped first. A long name is stored as its digest.

Does not depend on connections or requests.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from hashlib import blake2b

from rpc.newcomers import network_of
from vdl.clock import MS
from vdl.state.quotas import (
    CLIENT_ID,
    CONNECTION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Quotas,
)

BURST_SECONDS = 10
"""Seconds of its rate that an unused quota holds. Kafka: `quota.window.num` less one, of a
second."""
REQUEST_THROTTLE_MS_MAX = 1_000
"""Maximum throttle time for the time that requests took, as with Kafka."""
THROTTLE_MS_MAX = (1 << 31) - 1
BUCKETS_MAX = 10_000
LIMITS_MAX = 10_000
"""Maximum number of cached look-ups."""
NAME_CHARS_MAX = 128
"""Length from which names, which clients may choose, are stored as digests of 64 characters."""
_SECOND_NS = 1_000 * MS
_LOOKED_AT_MAX = 8
"""Oldest buckets that are examined to find a full one."""


class Quota(Enum):
    """Limited resource, by the name of its setting."""

    PRODUCE = PRODUCER_BYTE_RATE
    FETCH = CONSUMER_BYTE_RATE
    REQUEST = REQUEST_PERCENTAGE
    MUTATION = MUTATION_RATE
    CONNECTION = CONNECTION_RATE


class Bucket:
    """Token bucket; the number of tokens is negative while it is overdrawn."""

    __slots__ = ("burst", "filled_ns", "rate", "tokens")

    def __init__(self, rate: float, now_ns: int) -> None:
        self.rate = rate
        """Tokens per second."""
        self.burst = rate * BURST_SECONDS
        self.tokens = self.burst
        self.filled_ns = now_ns

    def fill(self, rate: float, now_ns: int) -> None:
        """Add the tokens up to now; the rate may have changed."""
        if rate != self.rate:
            self.tokens *= rate / self.rate
            self.rate = rate
            self.burst = rate * BURST_SECONDS
        passed_ns = now_ns - self.filled_ns
        if passed_ns > 0:
            self.tokens = min(self.burst, self.tokens + rate * passed_ns / _SECOND_NS)
            self.filled_ns = now_ns

    @property
    def wait_ms(self) -> int:
        """Time until it is no longer overdrawn; 0 if it is not overdrawn."""
        if self.tokens >= 0:
            return 0
        return min(THROTTLE_MS_MAX, max(1, round(-self.tokens / self.rate * 1_000)))

    def is_full(self, now_ns: int) -> bool:
        """Return True if it is equal to an unused one."""
        passed_ns = now_ns - self.filled_ns
        return self.tokens + self.rate * passed_ns / _SECOND_NS >= self.burst


_BucketKey = tuple[Quota, str, str]
"""(quota, user, client id); empty strings where a quota is shared by all."""
_Limit = tuple[float, _BucketKey]


class ClientQuotas:
    """Token buckets of all clients of one server; see the module."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._revision = quotas.revision
        self._limits: dict[tuple[Quota, str, str], _Limit | None] = {}
        self._buckets: OrderedDict[_BucketKey, Bucket] = OrderedDict()
        """Buckets, least recently used first."""
        self.throttled = 0
        """Number of requests whose connection was throttled."""
        self.throttled_ms = 0
        """Sum of all throttle times."""
        self.connections_refused = 0
        self.evicted = 0
        """Buckets that were dropped before they were full."""

    def __len__(self) -> int:
        return len(self._buckets)

    def use(self, quota: Quota, user: str, client_id: str, amount: float, now_ns: int) -> int:
        """Take tokens. Return the throttle time of the client (ms; 0 if none)."""
        bucket = self._bucket(quota, user, client_id, now_ns)
        if bucket is None:
            return 0
        bucket.tokens -= amount
        return bucket.wait_ms

    def give_back(
        self, quota: Quota, user: str, client_id: str, amount: float, now_ns: int
    ) -> None:
        """Return tokens that were taken for an operation that was not done."""
        bucket = self._bucket(quota, user, client_id, now_ns)
        if bucket is not None:
            bucket.tokens = min(bucket.burst, bucket.tokens + amount)

    def wait_ms(self, quota: Quota, user: str, client_id: str, now_ns: int) -> int:
        """Return the time until the client may use more (ms); 0 if it may now."""
        bucket = self._bucket(quota, user, client_id, now_ns)
        return 0 if bucket is None else bucket.wait_ms

    def burst(self, quota: Quota, user: str, client_id: str) -> float | None:
        """Return the maximum that a client may use at once; None if it has no quota."""
        found = self._limit(quota, user, client_id)
        return None if found is None else found[0] * BURST_SECONDS

    def may_connect(self, host: str, now_ns: int) -> bool:
        """Count a connection from an address. Return False if the address makes too many."""
        bucket = self._bucket(Quota.CONNECTION, host, "", now_ns)
        if bucket is None:
            return True
        if bucket.tokens < 1:
            self.connections_refused += 1
            return False
        bucket.tokens -= 1
        return True

    def note_throttle(self, wait_ms: int) -> None:
        """Count a connection that is throttled."""
        self.throttled += 1
        self.throttled_ms += wait_ms

    # --- buckets -------------------------------------------------------------------------------
    def _bucket(self, quota: Quota, user: str, client_id: str, now_ns: int) -> Bucket | None:
        found = self._limit(quota, user, client_id)
        if found is None:
            return None
        rate, key = found
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._evict(now_ns)
            bucket = self._buckets[key] = Bucket(rate, now_ns)
        else:
            self._buckets.move_to_end(key)
            bucket.fill(rate, now_ns)
        return bucket

    def _evict(self, now_ns: int) -> None:
        """Drop a full one of the oldest buckets, or the oldest one."""
        oldest: list[_BucketKey] = []
        for key, bucket in self._buckets.items():
            if bucket.is_full(now_ns):
                del self._buckets[key]
                return
            oldest.append(key)
            if len(oldest) >= _LOOKED_AT_MAX:
                break
        self.evicted += 1
        del self._buckets[oldest[0]]

    def _limit(self, quota: Quota, user: str, client_id: str) -> _Limit | None:
        if self._revision != self._quotas.revision:
            self._revision = self._quotas.revision
            self._limits.clear()
        question = quota, _kept(user), _kept(client_id)
        try:
            return self._limits[question]
        except KeyError:
            if len(self._limits) >= LIMITS_MAX:
                self._limits.clear()
            found = self._limits[question] = self._find(quota, user, client_id)
            return found

    def _find(self, quota: Quota, user: str, client_id: str) -> _Limit | None:
        for entity, key in _levels(quota, user, client_id):
            rate = self._quotas.of(entity).get(quota.value)
            if rate is not None:
                return rate, key
        return None


def _kept(name: str) -> str:
    """Return the key of a name here; names in the catalog are compared in full."""
    if len(name) <= NAME_CHARS_MAX:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()


def _levels(quota: Quota, user: str, client_id: str) -> list[tuple[Entity, _BucketKey]]:
    """Return the entities whose quota may apply, by priority, and the key of the bucket for
    each."""
    kept_user, kept_id = _kept(user), _kept(client_id)
    if quota is Quota.CONNECTION:
        of_all = quota, _kept(network_of(user)), ""
        return [(((IP, user),), (quota, kept_user, "")), (((IP, None),), of_all)]
    pair, shared = (quota, kept_user, kept_id), (quota, kept_user, "")
    anybody = quota, "", kept_id
    return [
        (((CLIENT_ID, client_id), (USER, user)), pair),
        (((CLIENT_ID, None), (USER, user)), pair),
        (((USER, user),), shared),
        (((CLIENT_ID, client_id), (USER, None)), pair),
        (((CLIENT_ID, None), (USER, None)), pair),
        (((USER, None),), shared),
        (((CLIENT_ID, client_id),), anybody),
        (((CLIENT_ID, None),), anybody),
    ]
