"""Contents of records, as lists for librdkafka's `produce_batch`: made once, sent repeatedly."""

from __future__ import annotations

import json
import os
import random
from typing import Any

Messages = list[dict[str, Any]]
"""Records of one call."""

CALL_RECORDS = 1_000
"""Least number of records of one call: with fewer, the client's cost of each record grows."""
LOG_LINE_LISTS = 10
"""Enough that no line occurs twice within a batch of at most a megabyte."""

_LEVELS = ("debug", "info", "info", "info", "warning", "error")
_ROUTES = tuple(f"/api/v{version}/{noun}" for version in (1, 2) for noun in (
    "orders", "customers", "invoices", "payments", "carts", "sessions", "search", "stock",
))  # fmt: skip
_WORDS = (
    "accepted", "address", "after", "amount", "balance", "because", "before", "cancelled",
    "card", "changed", "checked", "closed", "customer", "delivery", "discount", "expired", "failed",
    "found", "invoice", "item", "limit", "moved", "order", "payment", "pending", "price", "queue",
    "reason", "received", "refund", "rejected", "retried", "returned", "sent", "shipped", "stock",
    "timeout",
)  # fmt: skip


def incompressible(record_bytes: int, partitions: int = 1) -> list[Messages]:
    """Return random bytes, as records round robin over the partitions."""
    value = os.urandom(record_bytes)
    count = -(-CALL_RECORDS // partitions) * partitions
    return [[{"value": value, "partition": number % partitions} for number in range(count)]]


def log_lines(record_bytes: int) -> list[Messages]:
    """Return JSON as services log it, which zstd makes 4.5 times smaller; the same in every run."""
    rng = random.Random(4)
    return [
        [{"value": _line(rng, record_bytes), "partition": 0} for _ in range(CALL_RECORDS)]
        for _ in range(LOG_LINE_LISTS)
    ]


def _line(rng: random.Random, size: int) -> bytes:
    minute, second = rng.randint(0, 59), rng.random() * 60
    fields = {
        "time": f"2024-03-{rng.randint(1, 31):02}T12:{minute:02}:{second:09.6f}Z",
        "level": rng.choice(_LEVELS),
        "service": f"checkout-{rng.randint(1, 40)}",
        "trace": f"{rng.getrandbits(128):032x}",
        "span": f"{rng.getrandbits(64):016x}",
        "route": rng.choice(_ROUTES),
        "status": rng.choice((200, 200, 200, 201, 304, 400, 404, 500)),
        "customer": rng.getrandbits(40),
        "micros": int(rng.expovariate(1 / 20_000)),
        "message": "",
    }  # fmt: skip
    room = size - len(json.dumps(fields))
    text = ""
    while len(text) < room:
        text += f"{rng.choice(_WORDS)} "
    fields["message"] = text[:room]
    return json.dumps(fields).encode()
