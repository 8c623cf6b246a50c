"""Facts for `vdl explain`: the state of a cluster, and the latest events of each of its servers.

Does not depend on what they explain.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ids import ServerId
from rpc.admin import ServerEvents
from rpc.errors import AdminError
from vdl.commands.checks.cluster_status import NOT_SECURED, Server, collect_answers
from vdl.commands.cluster.connection import TIMEOUT_SECONDS
from vdl.config.values import Address
from vdl.kafka.security.client_settings import ClientSettings
from vdl.server.explain.facts import Facts, ServerFacts

if TYPE_CHECKING:
    from rpc.admin_client import AdminClient

_TOO_OLD = "its version keeps none"


def collect_facts(
    bootstrap: Iterable[Address],
    settings: ClientSettings = NOT_SECURED,
    *,
    topic: str = "",
    group: str = "",
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Facts:
    """Return the facts, with events of one topic and one consumer group only; of all if empty.

    Raises as `collect` does.
    """
    events: dict[ServerId, ServerEvents] = {}
    lacking: dict[ServerId, str] = {}

    def ask_events(server: Server, client: AdminClient) -> None:
        try:
            events[server.id] = client.events(topic=topic, group=group)
        except AdminError as error:
            is_old = error.code == "UNIMPLEMENTED"
            lacking[server.id] = _TOO_OLD if is_old else error.details or error.code

    cluster, answers = collect_answers(
        bootstrap, settings, ask_events, timeout_seconds=timeout_seconds
    )
    return Facts(
        now_ms=time.time_ns() // 1_000_000,
        servers=[
            ServerFacts(
                server.id, server.address, server.problem, answers.get(server.id),
                events.get(server.id), lacking.get(server.id, ""),
            )
            for server in cluster.servers
        ],
        replicas={
            partition.name: tuple(replica.server for replica in partition.replicas)
            for partition in cluster.partitions
        },
    )  # fmt: skip
