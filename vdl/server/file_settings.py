"""Settings that describe a server and that only its file has, besides those of the front end, under
Kafka's names, with their true values.

Tools read them: the data directory, the addresses, the lag allowed to a replica, tiered storage.
Some have another name in the file (`server.data_dir` is `log.dirs`), some cannot be chosen here
(`delete.topic.enable`), and the rest is in `[kafka]`.

Does not depend on requests, on the catalog, or on what can be changed at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path

from vdl.config.settings import KEYS, Config
from vdl.config.values import ADMIN_LISTENER, ADMIN_SETTING, FILE_SYSTEM_SETTING, Address
from vdl.kafka.configs.broker_configs import Layer, Source
from vdl.kafka.configs.group_configs import KNOWN
from vdl.kafka.configs.kafka_settings import TYPES

FIXED: Mapping[str, str] = {
    "auto.leader.rebalance.enable": "true",
    "controlled.shutdown.enable": "true",
    "delete.topic.enable": "true",
    "group.consumer.assignors": "uniform,range",
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "group.share.assignors": "simple",
    "log.cleaner.enable": "true",
    "process.roles": "broker,controller",
    "remote.log.storage.system.enable": "false",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "transaction.two.phase.commit.enable": "false",
}
"""Behaviour of every server: leaderships return to preferred replicas, and move away before a
stop; consumers read from a replica in their rack (KIP-392); each server keeps the catalog."""

_KAFKA = "kafka."
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def file_settings(config: Config) -> dict[str, Layer]:
    """Return Kafka's name → value, with the source: the default or the file."""
    defaults = _texts(Config())
    return {
        name: Layer(Source.DEFAULT if defaults.get(name) == text else Source.STATIC_BROKER, text)
        for name, text in _texts(config).items()
    }


def _texts(config: Config) -> dict[str, str]:
    return {
        **FIXED,
        **dict(_in_kafkas_table(config)),
        **dict(_bounds_of_groups()),
        **_addresses(config),
        **_elsewhere(config),
    }


def _in_kafkas_table(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the settings of `[kafka]`, including those that the file does not set."""
    for key, place in KEYS.items():
        name = key.removeprefix(_KAFKA)
        if key.startswith(_KAFKA) and name in TYPES:
            value = attrgetter(place.target)(config)
            yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _bounds_of_groups() -> Iterator[tuple[str, str]]:
    """Yield the default of each group setting, and its bounds: the same on all servers."""
    for config in KNOWN:
        if config.broker_name not in TYPES:
            continue
        yield config.broker_name, config.default
        group, kind, rest = config.broker_name.split(".", 2)
        for end, bound in (("min", config.low), ("max", config.high)):
            name = f"{group}.{kind}.{end}.{rest}"
            if name in TYPES and bound is not None:
                yield name, str(bound)


def _addresses(config: Config) -> dict[str, str]:
    found = {
        "listeners": _listed((one.name, one.host, one.port) for one in config.listeners),
        "advertised.listeners": _listed(
            (one.name, one.advertised_host or one.host, one.advertised_port or one.port)
            for one in config.listeners
        ),
        "listener.security.protocol.map": ",".join(
            f"{one.name}:{one.protocol.value}" for one in config.listeners
        ),
        "sasl.enabled.mechanisms": ",".join(
            dict.fromkeys(name for one in config.listeners for name in one.mechanisms)
        ),
        "security.inter.broker.protocol": "SSL" if config.tls.secures_links else "PLAINTEXT",
        "controller.quorum.voters": ",".join(
            f"{server}@{address}" for server, address in sorted(config.seeds.items())
        ),
    }
    if config.admin is not None:
        admin = config.admin.advertise
        found[ADMIN_SETTING] = _listed([(ADMIN_LISTENER, admin.host, admin.port)])
    return found


def _elsewhere(config: Config) -> dict[str, str]:
    """Return the settings that have another name in the file."""
    directory = str(config.data_dir.absolute())
    found = {
        "log.dir": directory,
        "log.dirs": directory,
        "metadata.log.dir": directory,
        "log.cleaner.backoff.ms": str(config.host.compaction_check_ms),
        "log.retention.check.interval.ms": str(config.host.retention_check_ms),
    }
    file_system = _file_system(config.data_dir.absolute())
    if file_system:
        found[FILE_SYSTEM_SETTING] = file_system
    if config.rack:
        found["broker.rack"] = config.rack
    return found


def _file_system(directory: Path) -> str:
    """Return an identity of the file system that holds a directory; empty: unknown.

    It is the same for all servers of a host whose data shares a disk, until the host starts anew.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
        place = next(one for one in (directory, *directory.parents) if one.exists())
        return f"{boot}/{place.stat().st_dev}"
    except OSError:
        return ""


def _listed(listeners: Iterable[tuple[str, str, int]]) -> str:
    """Return listeners in Kafka's form, "NAME://host:port,..."."""
    return ",".join(f"{name}://{Address(host, port)}" for name, host, port in sorted(listeners))
