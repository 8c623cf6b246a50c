"""Settings of a measurement: machine, client, and each system as it reports them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.bench.systems import System
from tests.bench.topics import CALL_SECONDS_MAX, REPLICATION

ASKED = (
    "min.insync.replicas",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "num.network.threads",
    "num.io.threads",
)
"""Settings to query from a broker, if it has them: durability before acknowledgements, threads."""
_NEVER = str(2**63 - 1)


def machine_settings() -> dict[str, str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "kernel": platform.release(),
        "cores": f"{os.cpu_count()} ({_processor()})",
        "memory": f"{memory:.0f} GB",
    }


def client_settings() -> dict[str, str]:
    return {
        "confluent-kafka": str(confluent_kafka.version()),
        "librdkafka": str(confluent_kafka.libversion()[0]),
        "acks": "all",
        "replication": str(REPLICATION),
    }


def system_settings(system: System) -> dict[str, str]:
    """Return a running system's known settings, and those that its first broker reports."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap, "log_level": 0})
    brokers = admin.list_topics(timeout=CALL_SECONDS_MAX).brokers
    resource = ConfigResource(ResourceType.BROKER, str(min(brokers)))
    (answer,) = admin.describe_configs([resource]).values()
    entries = answer.result(timeout=CALL_SECONDS_MAX)
    asked = {name: str(entries[name].value) for name in ASKED if name in entries}
    never = {name: "never" for name, value in asked.items() if value == _NEVER}
    return system.settings() | asked | never


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()
