"""Explanations of settings: what one means, its range, and the layers that its value comes from.

Of topics, brokers and groups the cluster says it: DescribeConfigs with synonyms and documentation
(KIP-226, KIP-569). Ranges are from VDL's own tables, which have Kafka's. Keys of the file of `vdl
serve` are in `vdl/config/keys.json`, made from docs/configure.md.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.cluster.direct_requests import Direct, NotOffered, direct
from vdl.commands.output import fail
from vdl.commands.resources.topic_facts import topic_names
from vdl.config.settings import KEYS, Config, load_config
from vdl.config.values import Parse
from vdl.kafka.configs.broker_configs import KNOWN_OF_SERVERS, Source
from vdl.kafka.configs.group_configs import BY_NAME
from vdl.kafka.configs.topic_configs import KNOWN, ConfigType, TopicConfig
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.state.resource_configs import ResourceType

DESCRIBE_CONFIGS = 32
FILE = "file"
_OF_KAFKA = "kafka."
SOURCES = {
    Source.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    Source.DYNAMIC_BROKER: "DYNAMIC_BROKER_CONFIG",
    Source.DYNAMIC_DEFAULT: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    Source.STATIC_BROKER: "STATIC_BROKER_CONFIG",
    Source.DEFAULT: "DEFAULT_CONFIG",
    Source.BROKER_LOGGER: "DYNAMIC_BROKER_LOGGER_CONFIG",
    Source.CLIENT_METRICS: "CLIENT_METRICS_CONFIG",
    Source.GROUP: "GROUP_CONFIG",
}
_PROBES: tuple[Any, ...] = ("999999999999999999d", 1 << 80, -1, "\0")
"""Values that are in no range: a parser then says what it expects."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the values that a setting may have, and its source."""

    source: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Explained:
    """A setting. `kind` is topic, broker, group or file. None is what is not known; `layers` begins
    with the one in force."""

    key: str
    kind: str
    name: str | None
    meaning: str
    type: str | None
    default: str | None
    range: str | None
    value: str | None
    source: str | None
    set_with: str | None
    layers: tuple[Layer, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the object of docs/cli.md."""
        shown = {name: getattr(self, name) for name in self.__slots__ if name != "layers"}
        layers = [
            {"source": one.source, "name": one.name, "value": one.value} for one in self.layers
        ]
        return {**shown, "layers": layers}


# --- the file of `vdl serve` --------------------------------------------------------------------


@cache
def documented() -> dict[str, dict[str, str]]:
    """Return key → default as a file has it (empty: none), and meaning."""
    text = files("vdl.config").joinpath("keys.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def explain_server_key(key: str, file: Path | None) -> Explained | None:
    """Return a key of the file, also without its `kafka.`; None: there is none. Raises ConfigError
    for a file that cannot be used."""
    name = key if key in KEYS else f"{_OF_KAFKA}{key}"
    if name not in KEYS:
        return None
    row = documented().get(name, {})
    table, _, rest = name.partition(".")
    found = Explained(
        name, FILE, None, row.get("meaning", ""), None, row.get("default") or None,
        range_of(KEYS[name].parse), None, None, f"[{table}] {rest} = ... and a restart",
    )  # fmt: skip
    if file is None:
        return found
    value, is_default = _in_file(name, file)
    source = "the default" if is_default else str(file)
    return replace(found, name=str(file), value=value, source=source)


def _in_file(name: str, file: Path) -> tuple[str, bool]:
    """Return the value of a key in a file, and whether it is the default."""

    def at(config: Config) -> object:
        found: object = config
        for part in KEYS[name].target.split("."):
            found = getattr(found, part, None)
        return found

    value = at(load_config(file))
    return str(value), value == at(Config())


def range_of(parse: Parse) -> str | None:
    """Return what a parser accepts, in its own words."""
    said = []
    for probe in _PROBES:
        try:
            parse(probe)
        except ValueError as error:
            said.append(str(error))
    with_bounds = [text for text in said if " from " in text or " to " in text]
    return next(iter([*with_bounds, *said]), None)


# --- topics, brokers and groups -----------------------------------------------------------------


def explain_in_cluster(
    cluster: Cluster, key: str, *, topic: str | None, broker: int | None, group: str | None
) -> list[Explained]:
    """Return the settings of that name: of the resources that are named, or of each kind.

    Raises click.ClickException.
    """
    try:
        asked = direct(cluster)
        if topic is None and broker is None and group is None:
            return _of_each_kind(cluster, asked, key)
        found = []
        if topic is not None:
            found.append(_explain(asked, key, "topic", topic))
        if broker is not None:
            found.append(_explain(asked, key, "broker", str(broker)))
        if group is not None:
            found.append(_explain(asked, key, "group", group))
    except NotOffered as error:
        fail(str(error))
    return [one for one in found if one is not None]


def _of_each_kind(cluster: Cluster, asked: Direct, key: str) -> list[Explained]:
    names = topic_names(cluster)
    some_topic = next((name for name in names if not name.startswith("__")), None)
    found = []
    if some_topic is not None and (one := _explain(asked, key, "topic", some_topic)):
        # Any topic tells what is true for all; its own value is left out.
        inherited = tuple(layer for layer in one.layers if layer.source != SOURCES[Source.TOPIC])
        first = inherited[0] if inherited else Layer("", key, None)
        found.append(
            replace(
                one,
                name=None,
                value=first.value,
                source=first.source or None,
                layers=inherited,
                set_with=one.set_with and _set_with("topic", "NAME", key),
            )
        )
    if one := _explain(asked, key, "broker", str(min(asked.addresses))):
        found.append(one)
    try:
        # A group need not be there to have settings.
        if one := _explain(asked, key, "group", "vdl"):
            set_with = one.set_with and _set_with("group", "NAME", key)
            found.append(replace(one, name=None, set_with=set_with))
    except NotOffered:
        pass  # as of servers before Kafka 4.0
    return found


def _set_with(kind: str, name: str, key: str) -> str:
    return f"vdl config set {kind} {name} {key}=..."


def _explain(asked: Direct, key: str, kind: str, name: str) -> Explained | None:
    """Return a setting of one resource; None if it has none of that name. Raises NotOffered."""
    resource = DescribeConfigsResource(ResourceType[kind.upper()], name, [key])
    message = DescribeConfigsRequest([resource], True, True)
    server = int(name) if kind == "broker" else min(asked.addresses)
    (answer,) = asked.at(server, DESCRIBE_CONFIGS, message).results
    if answer.error_code:
        raise NotOffered(f"{kind} {name}: {answer.error_message or answer.error_code}")
    for one in answer.configs:
        if one.name != key:
            continue
        layers = tuple(
            Layer(source_name(layer.source), layer.name, layer.value) for layer in one.synonyms
        )
        default = next((layer.value for layer in layers if layer.source == "DEFAULT_CONFIG"), None)
        if default is None and one.config_source == Source.DEFAULT:
            default = one.value
        return Explained(
            key, kind, name, one.documentation or "", _type(one.config_type), default,
            _range(kind, key), one.value, source_name(one.config_source),
            None if one.read_only else _set_with(kind, shlex.quote(name), key), layers,
        )  # fmt: skip
    return None


def source_name(number: int) -> str:
    """Return Kafka's name of a source."""
    return SOURCES[Source(number)] if number in list(Source) else str(number)


def _type(number: int) -> str | None:
    return ConfigType(number).name.lower() if number in list(ConfigType)[1:] else None


def _range(kind: str, key: str) -> str | None:
    """Return the range of a setting in Kafka's terms; None if it has none, or is not known."""
    known: Mapping[str, TopicConfig] = {
        "topic": {one.name: one for one in KNOWN},
        "broker": KNOWN_OF_SERVERS,
        "group": BY_NAME,
    }[kind]
    found = known.get(key)
    if found is None:
        return None
    if found.allowed is not None:
        return ", ".join(found.allowed)
    if found.low is None and found.high is None:
        return None
    if found.high is None:
        return f"{found.low} or more"
    return f"{found.low} to {found.high}"
