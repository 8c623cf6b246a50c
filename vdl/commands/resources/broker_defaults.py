"""Settings that all brokers inherit from (KIP-226).

Kafka names them by a resource without a name, which confluent-kafka refuses: so these requests go
over VDL's own client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vdl.commands.cluster.admin_requests import words
from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.cluster.direct_requests import NotOffered, direct
from vdl.commands.output import fail
from vdl.commands.resources.config_layers import DESCRIBE_CONFIGS, source_name
from vdl.commands.resources.topic_facts import Setting
from vdl.kafka.wire.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from vdl.kafka.wire.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from vdl.state.resource_configs import ResourceType

INCREMENTAL_ALTER_CONFIGS = 44
_SET, _DELETE = 0, 1


def settings_of_all_brokers(cluster: Cluster) -> list[Setting]:
    """Return the settings. Raises click.ClickException."""
    asked = DescribeConfigsRequest([DescribeConfigsResource(ResourceType.BROKER, "", None)])
    answer = _ask(cluster, DESCRIBE_CONFIGS, asked).results[0]
    if answer.error_code:
        fail(words(answer.error_code, answer.error_message))
    return [
        Setting(one.name, one.value, source_name(one.config_source), one.read_only)
        for one in answer.configs
    ]


def alter_all_brokers(
    cluster: Cluster, changes: Mapping[str, str | None], *, validate_only: bool
) -> dict[str, str]:
    """Set settings; None unsets one. Return what was refused, by resource. Raises
    click.ClickException."""
    configs = [
        AlterableConfig(name, _DELETE if value is None else _SET, value)
        for name, value in changes.items()
    ]
    resource = AlterConfigsResource(ResourceType.BROKER, "", configs)
    asked = IncrementalAlterConfigsRequest([resource], validate_only)
    answer = _ask(cluster, INCREMENTAL_ALTER_CONFIGS, asked).responses[0]
    if not answer.error_code:
        return {}
    return {"all": words(answer.error_code, answer.error_message)}


def _ask(cluster: Cluster, api_key: int, message: Any) -> Any:
    try:
        servers = direct(cluster)
        return servers.at(min(servers.addresses), api_key, message)
    except NotOffered as error:
        fail(str(error))
