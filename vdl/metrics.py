"""What `/metrics` and `/health` tell: counters that others keep, read when somebody asks.

Hot paths only increment plain integers; nothing here runs between two scrapes. A `Source` is a
function that returns the present numbers of one layer; at a scrape its numbers become Prometheus
samples named `vdl_<source>_<key>`. A key that ends in `_total` is a counter, all else a gauge.
The Prometheus library is loaded at the first scrape, so a server nobody scrapes does not carry it.

Must not know: what the numbers mean; that is said by the layer that keeps them, in `HELP`.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vdl.http import Response, Route

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

Number = int | float


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with labels, for what there are many of: an API, a peer, a partition."""

    key: str
    labels: tuple[tuple[str, str], ...]
    value: Number


Numbers = Mapping[str, Number] | Iterable[Sample]


@dataclass(frozen=True, slots=True)
class Source:
    """One layer's numbers: `read` is called on the loop, at a scrape, and returns at once."""

    name: str
    read: Callable[[], Numbers]


@dataclass(frozen=True, slots=True)
class Health:
    """Whether this server serves clients, and the facts behind it (shown as JSON)."""

    is_serving: bool
    facts: Mapping[str, object]


HELP: dict[str, str] = {
    "vdl_process_cpu_seconds_total": "CPU time of this process, user and system.",
    "vdl_process_resident_bytes": "Memory of this process that is resident now.",
    "vdl_process_open_descriptors": "File descriptors in use.",
    "vdl_process_start_time_seconds": "When this process started, seconds since 1970.",
    "vdl_process_gc_collections_total": "Garbage collections of all generations.",
}
"""Metric → one sentence. A metric without one is described by its own name."""


def operations_routes(sources: Iterable[Source], health: Callable[[], Health]) -> dict[str, Route]:
    """The routes of the operations port."""
    exposition = Exposition((Source("process", process_numbers), *sources))
    return {"/metrics": exposition.respond, "/health": lambda: _respond_health(health())}


class Exposition:
    """Turns the sources' numbers into Prometheus text."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)
        self._registry: CollectorRegistry | None = None

    def respond(self) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(200, CONTENT_TYPE_LATEST, generate_latest(self._collectors()))

    def _collectors(self) -> CollectorRegistry:
        if self._registry is None:
            from prometheus_client import CollectorRegistry

            self._registry = CollectorRegistry(auto_describe=False)
            self._registry.register(self)
        return self._registry

    def collect(self) -> Iterable[Metric]:
        """Called by the Prometheus library: every source's numbers as they are now."""
        for source in self._sources:
            yield from _families(source.name, source.read())


def _families(source: str, numbers: Numbers) -> Iterable[Metric]:
    """Samples of one source, those of one key together, in the order of their first appearance."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    samples = (
        [Sample(key, (), value) for key, value in numbers.items()]
        if isinstance(numbers, Mapping)
        else numbers
    )
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for sample in samples:
        family = families.get(sample.key)
        if family is None:
            name = f"vdl_{source}_{sample.key}"
            make = CounterMetricFamily if sample.key.endswith("_total") else GaugeMetricFamily
            help_text = HELP.get(name, sample.key.replace("_", " "))
            family = make(name, help_text, labels=[label for label, _ in sample.labels])
            families[sample.key] = family
        family.add_metric([value for _, value in sample.labels], sample.value)
    return families.values()


def process_numbers() -> dict[str, Number]:
    """What this process uses."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds_total": usage.ru_utime + usage.ru_stime,
        "resident_bytes": _resident_bytes(),
        "open_descriptors": _open_descriptors(),
        "start_time_seconds": _STARTED_SECONDS,
        "gc_collections_total": sum(generation["collections"] for generation in gc.get_stats()),
    }


_STARTED_SECONDS = round(time.time(), 3)


def _resident_bytes() -> int:
    """From /proc where there is one, else the largest it has been."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - not a disk file
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count, no paths are needed
    except OSError:
        return -1


def _respond_health(health: Health) -> Response:
    """200 while serving, 503 before and after, the facts as JSON either way."""
    body = json.dumps(dict(health.facts), default=str).encode() + b"\n"
    return Response(200 if health.is_serving else 503, "application/json", body)
