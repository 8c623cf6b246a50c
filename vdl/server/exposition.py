"""The page `/metrics`: the sources' numbers as Prometheus text, made in parts.

A `Source` has the present numbers of one layer. They become metrics named `vdl_<source>_<key>`. A
key that ends in `_total` is a counter; a `Distribution` is a histogram; any other is a gauge.

A page of a server with thousands of partitions takes tens of milliseconds, in which the loop must
do other work. So the page is an iterator: the HTTP port takes a few steps per turn. The numbers of
one source are of one moment, those of two sources are not.

Values of labels are cut to `LABEL_CHARS_MAX`: names of groups, topics and clients are clients'
choice, and Kafka allows thirty thousand characters.

Does not depend on what the numbers mean. The Prometheus library is loaded at the first page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from segments.histogram import Histogram
from vdl.server.http import Response
from vdl.server.renamed_metrics import RENAMED, REPLACED, deprecation

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Number = int | float
Labels = tuple[tuple[str, str], ...]
_NS: Final = 1e9
LABEL_CHARS_MAX: Final = 100
_HASH_CHARS: Final = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """One number with labels, for items of which there are many: an API, a peer, a topic."""

    key: str
    labels: Labels
    value: Number


@dataclass(frozen=True, slots=True)
class Distribution:
    """One histogram with labels."""

    key: str
    labels: Labels
    of: Histogram


Numbers = Mapping[str, Number] | Iterable[Sample | Distribution]


def _no_steps() -> Iterator[None]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Source:
    """One layer's numbers: `read` is called on the loop, for each page, and returns at once.

    `prepare` returns work that comes before, in steps of about a millisecond.
    """

    name: str
    read: Callable[[], Numbers]
    prepare: Callable[[], Iterator[None]] = _no_steps
    prefix: str = "vdl_"
    """Begins the names of its metrics; empty for those that all programs have by one name."""


class Exposition:
    """Makes the pages of one server."""

    def __init__(self, sources: Iterable[Source], help_texts: Mapping[str, str]) -> None:
        """`help_texts`: metric → one sentence."""
        self._sources = tuple(sources)
        self._help = help_texts

    def page(self) -> Iterator[Response | None]:
        """Yield None after each part of a page, and the whole page at last."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        parts: list[bytes] = []
        for family in self.collect():
            if family is not None:
                parts.append(generate_latest(_One(family)))
            yield None
        yield Response(200, CONTENT_TYPE_LATEST, b"".join(parts))

    def collect(self, *, with_old_names: bool = True) -> Iterator[Metric | None]:
        """Yield the metrics of a page, and None after a step of work that gives none."""
        for source in self._sources:
            for _ in source.prepare():
                yield None
            yield from self._families(source, with_old_names=with_old_names)

    def _families(self, source: Source, *, with_old_names: bool) -> Iterator[Metric]:
        """Yield the metrics of one source, in the order of their first appearance. One that has an
        old name follows under that, too."""
        numbers = source.read()
        samples: Iterable[Sample | Distribution] = (
            [Sample(key, (), value) for key, value in numbers.items()]
            if isinstance(numbers, Mapping)
            else numbers
        )
        by_key: dict[str, list[Sample | Distribution]] = {}
        for sample in samples:
            by_key.setdefault(sample.key, []).append(sample)
        for key, of_key in by_key.items():
            name = f"{source.prefix}{source.name}_{key}"
            text = self._help.get(name, key.replace("_", " "))
            if name in REPLACED:
                if not with_old_names:
                    continue
                text = deprecation(REPLACED[name])
            yield _family(name, text, of_key)
            old = RENAMED.get(name)
            if old is not None and with_old_names:
                yield _family(old.name, deprecation(name), of_key, times=old.times)


class _One:
    """A registry of one metric, as `generate_latest` uses it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _family(
    name: str, text: str, samples: Iterable[Sample | Distribution], times: float = 1
) -> Metric:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    first, *_ = samples
    labels = [label for label, _ in first.labels]
    if isinstance(first, Distribution):
        histograms = HistogramMetricFamily(name, text, labels=labels)
        for one in samples:
            assert isinstance(one, Distribution), one
            values = [label_value(value) for _, value in one.labels]
            histograms.add_metric(values, _buckets(one.of), one.of.sum_ns / _NS)
        return histograms
    make = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = make(name, text, labels=labels)
    for one in samples:
        assert isinstance(one, Sample), one
        value = one.value if times == 1 else one.value * times
        family.add_metric([label_value(text) for _, text in one.labels], value)
    return family


def label_value(text: str) -> str:
    """Return the text, or if it is too long its beginning, an ellipsis and a hash of all of it.

    Names that begin alike stay apart. A name that is cut cannot equal one that is not.
    """
    if len(text) <= LABEL_CHARS_MAX:
        return text
    digest = sha256(text.encode(errors="replace")).hexdigest()[:_HASH_CHARS]
    return f"{text[:LABEL_CHARS_MAX]}…{digest}"


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return (upper bound in seconds, observations up to it), as Prometheus has buckets."""
    found: list[tuple[str, float]] = []
    total = 0
    for bound_ns, count in zip(histogram.bounds_ns, histogram.counts, strict=False):
        total += count
        found.append((repr(bound_ns / _NS), total))
    found.append(("+Inf", total + histogram.counts[-1]))
    return found
