"""Cost of a long log: start, throughput and acknowledgements with 1 GB and with 10 GB in it.

A run is three new servers and one partition that is filled with the given payload. Then all three
are stopped as planned and restarted: seconds until every group has a leader. Then records are
appended to that partition: as many as librdkafka's full queue gives, and 200 a second, linger 0.
Ratios are to the shortest log. Ten gigabytes of payload are thirty on disk.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.flood import Flood
from tests.bench.idle import restart
from tests.bench.load import RECORD_BYTES, latency_producer, paced, send, throughput_producer
from tests.bench.payloads import incompressible
from tests.bench.rounds import Comparison, Figures, percentiles
from tests.bench.servers import SETTLE_SECONDS, Servers
from tests.bench.systems import rss_mb
from tests.bench.topics import create_led_topic

RATE = 200
WARM_UP_SECONDS = 2
TOPIC = "long"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1.0, 10.0], help="payload")
    parser.add_argument("--seconds", type=int, default=20, help="each load, in each run")
    parser.set_defaults(rounds=3)


@contextmanager
def prepared(options: argparse.Namespace) -> Iterator[Comparison]:
    runs = {f"{size:g} GB": partial(run, size, options.seconds) for size in options.gigabytes}
    yield Comparison(runs, baseline=f"{options.gigabytes[0]:g} GB")


def run(gigabytes: float, seconds: int) -> Figures:
    servers = Servers()
    try:
        servers.up()
        create_led_topic(servers.bootstrap, TOPIC)
        send(throughput_producer(servers.bootstrap), TOPIC, 1, gigabytes * 1_000)
        time.sleep(SETTLE_SECONDS)
        figures = restart(servers)
        flood = Flood(servers.bootstrap, TOPIC, incompressible(RECORD_BYTES))
        flood.meet()
        flood.run(WARM_UP_SECONDS)
        figures |= flood.measured(servers.pids(), seconds)
        flood.close()
        time.sleep(SETTLE_SECONDS)
        producer = latency_producer(servers.bootstrap)
        paced(producer, TOPIC, rate=RATE, count=RATE * WARM_UP_SECONDS)
        figures |= percentiles(
            f"ack_at_{RATE}", paced(producer, TOPIC, rate=RATE, count=RATE * seconds)
        )
        return figures | {"rss_mb": rss_mb(servers.pids())}
    finally:
        servers.down()
