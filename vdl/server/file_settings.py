"""What a server is described by besides what its front end reads: settings that only its file has,
under Kafka's names, with their true values.

Tools read them: where the data is, which addresses there are, how long a replica may lag, what is
there of tiered storage. Some have another name in the file (`server.data_dir` is `log.dirs`), some
are no choice here (`delete.topic.enable`), and the rest stands in `[kafka]`.

Must not know: requests, the catalog, what can be changed at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter

from vdl.config.settings import KEYS, Config
from vdl.config.values import ADMIN_LISTENER, ADMIN_SETTING, Address
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
"""What is so on every server: leaderships go back to preferred replicas, and elsewhere before a
stop; consumers read from a replica in their rack (KIP-392); each server keeps the catalog."""

_KAFKA = "kafka."


def file_settings(config: Config) -> dict[str, Layer]:
    """Kafka's name → value, and whether the file says so."""
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
    """What stands in `[kafka]`, or would."""
    for key, place in KEYS.items():
        name = key.removeprefix(_KAFKA)
        if key.startswith(_KAFKA) and name in TYPES:
            value = attrgetter(place.target)(config)
            yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _bounds_of_groups() -> Iterator[tuple[str, str]]:
    """What a group has that does not set it, and between which values it may: the same on all."""
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
    """What the file has under another name."""
    directory = str(config.data_dir.absolute())
    found = {
        "log.dir": directory,
        "log.dirs": directory,
        "metadata.log.dir": directory,
        "log.cleaner.backoff.ms": str(config.host.compaction_check_ms),
        "log.retention.check.interval.ms": str(config.host.retention_check_ms),
    }
    if config.rack:
        found["broker.rack"] = config.rack
    return found


def _listed(listeners: Iterable[tuple[str, str, int]]) -> str:
    """In Kafka's form, "NAME://host:port,..."."""
    return ",".join(f"{name}://{Address(host, port)}" for name, host, port in sorted(listeners))
