"""Longest turn of the loop for requests whose work grows with the state, not with their own size.

    python -m tests.price.large_state                   all requests
    python -m tests.price.large_state --only NAME ...   some

`make price` looks for expensive requests in a small state. Here one server has much of everything
that an answer may list: partitions, groups, positions, transactions, producers, permissions,
quotas, users, tokens. Partitions are created by requests. The rest is applied to the state
machines without a log. Prints the longest turn, the time in all turns, and the size of the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ids import NO_INDEX, Index, Offset
from tests.price.meter import Meter
from tests.price.worker import ANSWER_SECONDS, Server
from tests.wire import codec
from vdl.config.settings import parse_config
from vdl.kafka.api import API
from vdl.kafka.wire import (
    consumer_group_describe,
    create_topics,
    delete_groups,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_delegation_token,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_share_group_offsets,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    expire_delegation_token,
    list_config_resources,
    list_groups,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
)
from vdl.server.loop import TurnLoop
from vdl.server.process import Process
from vdl.state import commands
from vdl.state.resource_configs import ResourceType

TOPICS, PARTITIONS = 10, 1_000
GROUPS = 35_000
POSITIONS = 100_000
TRANSACTIONS = 20_000
PARTICIPANTS = 9_000
PRODUCERS = 30_000
BINDINGS = 8_000
QUOTAS = 8_000
USERS = 3_000
TOKENS = 2_000
GROUP_CONFIGS = 8_000
MEMBERS = 500
SETTLE_SECONDS = 6.0
ROUNDS = 7
BIG = "big"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a row."""

    key: int
    version: int
    message: Any


def requests() -> dict[str, Asked]:
    """Return the requests by name, each for all that the server has of a kind."""
    topics = [f"t{number:03}" for number in range(TOPICS)]
    rows: dict[str, tuple[Any, Any, int | None]] = {
        "Metadata": (metadata, metadata.MetadataRequest(None), None),
        "Metadata-ops": (
            metadata,
            metadata.MetadataRequest(None, include_topic_authorized_operations=True),
            10,
        ),
        "Metadata-named": (
            metadata,
            metadata.MetadataRequest(
                [metadata.MetadataRequestTopic(name=one) for one in topics],
                allow_auto_topic_creation=False,
            ),
            None,
        ),
        "DescribeTopicPartitions": (
            describe_topic_partitions,
            describe_topic_partitions.DescribeTopicPartitionsRequest(),
            None,
        ),
        "DescribeCluster": (describe_cluster, describe_cluster.DescribeClusterRequest(), None),
        "OffsetFetch": (
            offset_fetch,
            offset_fetch.OffsetFetchRequest(
                groups=[offset_fetch.OffsetFetchRequestGroup(BIG, topics=None)]
            ),
            9,
        ),
        "OffsetFetch-old": (
            offset_fetch,
            offset_fetch.OffsetFetchRequest(group_id=BIG, topics=None),
            7,
        ),
        "OffsetFetch-two": (
            offset_fetch,
            offset_fetch.OffsetFetchRequest(
                groups=[
                    offset_fetch.OffsetFetchRequestGroup(name, topics=None)
                    for name in (BIG, "g000001")
                ]
            ),
            9,
        ),
        "ListGroups": (list_groups, list_groups.ListGroupsRequest(), None),
        "DescribeGroups": (
            describe_groups,
            describe_groups.DescribeGroupsRequest(["members"]),
            None,
        ),
        "ConsumerGroupDescribe": (
            consumer_group_describe,
            consumer_group_describe.ConsumerGroupDescribeRequest(["modern"]),
            None,
        ),
        "ShareGroupDescribe": (
            share_group_describe,
            share_group_describe.ShareGroupDescribeRequest(["share"]),
            None,
        ),
        "ShareGroupHeartbeat": (
            share_group_heartbeat,
            share_group_heartbeat.ShareGroupHeartbeatRequest(
                "share2", "m", 0, subscribed_topic_names=topics
            ),
            None,
        ),
        "DescribeShareGroupOffsets": (
            describe_share_group_offsets,
            describe_share_group_offsets.DescribeShareGroupOffsetsRequest(
                [describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("share", None)]
            ),
            None,
        ),
        "ListTransactions": (list_transactions, list_transactions.ListTransactionsRequest(), None),
        "ListTransactions-pattern": (
            list_transactions,
            list_transactions.ListTransactionsRequest(transactional_id_pattern="t.*"),
            None,
        ),
        "DescribeTransactions": (
            describe_transactions,
            describe_transactions.DescribeTransactionsRequest([BIG]),
            None,
        ),
        "DescribeProducers": (
            describe_producers,
            describe_producers.DescribeProducersRequest(
                [describe_producers.TopicRequest(topics[0], [0])]
            ),
            None,
        ),
        "DescribeAcls": (
            describe_acls,
            describe_acls.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
            None,
        ),
        "DescribeAcls-none": (
            describe_acls,
            describe_acls.DescribeAclsRequest(1, None, 1, "User:nobody", None, 1, 1),
            None,
        ),
        "DescribeClientQuotas": (
            describe_client_quotas,
            describe_client_quotas.DescribeClientQuotasRequest(),
            None,
        ),
        "DescribeUserScramCredentials": (
            describe_user_scram_credentials,
            describe_user_scram_credentials.DescribeUserScramCredentialsRequest(None),
            None,
        ),
        "DescribeDelegationToken": (
            describe_delegation_token,
            describe_delegation_token.DescribeDelegationTokenRequest(None),
            None,
        ),
        "ExpireDelegationToken": (
            expire_delegation_token,
            expire_delegation_token.ExpireDelegationTokenRequest(b"x" * 64, 1),
            None,
        ),
        "DescribeLogDirs": (
            describe_log_dirs,
            describe_log_dirs.DescribeLogDirsRequest(None),
            None,
        ),
        "ListPartitionReassignments": (
            list_partition_reassignments,
            list_partition_reassignments.ListPartitionReassignmentsRequest(topics=None),
            None,
        ),
        "ElectLeaders": (elect_leaders, elect_leaders.ElectLeadersRequest(0, None), None),
        "ListConfigResources": (
            list_config_resources,
            list_config_resources.ListConfigResourcesRequest(),
            None,
        ),
        "DescribeConfigs-broker": (
            describe_configs,
            describe_configs.DescribeConfigsRequest(
                [describe_configs.DescribeConfigsResource(4, "1", None)],
                include_synonyms=True,
                include_documentation=True,
            ),
            None,
        ),
        "DescribeConfigs-topics": (
            describe_configs,
            describe_configs.DescribeConfigsRequest(
                [describe_configs.DescribeConfigsResource(2, one, None) for one in topics]
                + [
                    describe_configs.DescribeConfigsResource(32, f"g{one}", None)
                    for one in range(240)
                ],
                include_synonyms=True,
                include_documentation=True,
            ),
            None,
        ),
        "DeleteGroups": (delete_groups, delete_groups.DeleteGroupsRequest([BIG]), None),
    }
    return {
        name: Asked(module.API_KEY, version or API[module.API_KEY].max_version, message)
        for name, (module, message, version) in rows.items()
    }


class LargeServer(Server):
    """The server, filled."""

    def fill(self) -> None:
        """Create all that the requests list."""
        began = time.monotonic()
        for number in range(TOPICS):
            topic = create_topics.CreatableTopic(f"t{number:03}", PARTITIONS, 1)
            self.call(19, 7, create_topics.CreateTopicsRequest([topic], 30_000))
        print(
            f"{TOPICS * PARTITIONS} partitions after {time.monotonic() - began:.0f} s", flush=True
        )
        for step in self._steps():
            self.on_loop(step)
        time.sleep(SETTLE_SECONDS)

    def _steps(self) -> Iterator[Callable[[], None]]:
        server = self._process.server
        context = server.frontend.context
        host, groups = context.host, context.groups
        now_ms = host.agreed_ms()

        def machine_of(name: str) -> Any:
            return groups.find(name).machine

        def apply(machine: Any, command: Any) -> Any:
            answer = machine.apply(command, now_ms, Index(machine.index))
            error = getattr(answer, "error", 0)
            if error:
                raise AssertionError((type(command).__name__, answer))
            return answer

        def bounds() -> None:
            for led in groups.all_here():
                apply(led.machine, commands.RaisePositionsBound(64 << 20, 1_000_000))

        yield bounds

        def commit(group: str, topic: str, first: int, count: int) -> None:
            offsets = [
                commands.OffsetCommit(topic, bytes(16), partition, Offset(7), 1, "")
                for partition in range(first, first + count)
            ]
            apply(machine_of(group), commands.CommitOffsets(group, -1, "", None, offsets))

        def small_groups(first: int) -> None:
            for number in range(first, first + 1_000):
                commit(f"g{number:06}", "t000", 0, 1)

        for first in range(0, POSITIONS, 1_000):
            yield lambda first=first: commit(BIG, f"p{first // 10_000}", first % 10_000, 1_000)
        for first in range(0, GROUPS, 1_000):
            yield lambda first=first: small_groups(first)

        def transactions(first: int) -> None:
            for number in range(first, first + 1_000):
                name = f"t{number:06}"
                machine = machine_of(name)
                machine.apply(
                    commands.InitTransactions(name, 60_000, 1_000_000 + number),
                    now_ms,
                    machine.index,
                )

        for first in range(0, TRANSACTIONS, 1_000):
            yield lambda first=first: transactions(first)

        def big_transaction() -> None:
            machine = machine_of(BIG)
            apply(machine, commands.InitTransactions(BIG, 900_000, 5_000_000))
            all_groups = list(host.catalog.groups)[:PARTICIPANTS]
            apply(machine, commands.AddToTransaction(BIG, 5_000_000, 0, all_groups))

        yield big_transaction

        def members() -> None:
            machine = machine_of("members")
            for number in range(MEMBERS):
                machine.apply(
                    commands.JoinGroup(
                        "members",
                        "",
                        f"m{number}",
                        f"i{number}",
                        "c",
                        "/h",
                        1_800_000,
                        60_000,
                        "consumer",
                        [commands.Protocol("range", bytes(200))],
                        False,
                        10_000,
                        False,
                    ),
                    now_ms,
                    machine.index,
                )

        yield members

        def modern() -> None:
            machine = machine_of("modern")
            topics = sorted(host.catalog.topics.values(), key=lambda one: one.topic_id)
            subscribed = [
                commands.SubscribedTopic(one.name, one.topic_id, PARTITIONS, one.partitions[-1])
                for one in topics
            ]
            for number in range(MEMBERS):
                apply(
                    machine,
                    commands.ConsumerHeartbeat(
                        "modern",
                        f"m{number}",
                        0,
                        None,
                        None,
                        "c",
                        "/h",
                        1_800_000,
                        [one.name for one in topics],
                        None,
                        None,
                        (),
                        10_000,
                    ),
                )
            group = machine.consumer.groups["modern"]
            each = PARTITIONS // MEMBERS
            targets = [
                (
                    f"m{number}",
                    tuple(
                        (one.topic_id, tuple(range(number * each, number * each + each)))
                        for one in topics
                    ),
                )
                for number in range(MEMBERS)
            ]
            apply(
                machine,
                commands.AssignTargets("modern", group.epoch, group.epoch, subscribed, [], targets),
            )

        yield modern

        def share() -> None:
            machine = machine_of("share")
            topics = [
                commands.ShareTopic(one.name, one.topic_id, list(one.partitions))
                for one in host.catalog.topics.values()
            ]
            for number in range(20):
                apply(
                    machine,
                    commands.JoinShareGroup(
                        "share",
                        f"m{number}",
                        "",
                        "c",
                        "/h",
                        sorted(one.name for one in topics),
                        topics,
                        10_000,
                    ),
                )

        yield share

        def producers() -> None:
            topic = host.catalog.topics["t000"]
            stream = host.stream(topic.partitions[0])
            table = stream.state.producers
            for number in range(PRODUCERS):
                table.apply(10_000 + number, 0, 0, 0, Offset(number), Index(number + 1), 1)

        yield producers

        def acls(first: int) -> None:
            bindings = [
                commands.AclBinding(2, f"x{number}", 3, "User:x", "*", 3, 3)
                for number in range(first, first + 1_000)
            ]
            host.catalog.apply(commands.CreateAcls(bindings), now_ms, NO_INDEX)

        for first in range(0, BINDINGS, 1_000):
            yield lambda first=first: acls(first)

        def quotas() -> None:
            changes = [
                commands.QuotaChange([("user", f"u{number}")], {"producer_byte_rate": 1e9})
                for number in range(QUOTAS)
            ]
            host.catalog.apply(commands.AlterQuotas(changes), now_ms, NO_INDEX)
            configs = [
                (
                    int(ResourceType.GROUP),
                    commands.ConfigChange(f"c{number}", {"consumer.session.timeout.ms": "46000"}),
                )
                for number in range(GROUP_CONFIGS)
            ]
            host.catalog.apply(commands.AlterResourceConfigs(configs), now_ms, NO_INDEX)

        yield quotas

        def users() -> None:
            def upsert(name: str) -> Any:
                return commands.ScramUpsert(
                    name, "SCRAM-SHA-256", 4096, bytes(16), bytes(32), bytes(32)
                )

            host.catalog.apply(
                commands.AlterScramCredentials(
                    [], [upsert(f"user{number}") for number in range(USERS)], bytes(32)
                ),
                now_ms,
                NO_INDEX,
            )
            for number in range(TOKENS):
                host.catalog.apply(
                    commands.CreateDelegationToken(
                        f"token{number}",
                        "User:ANONYMOUS",
                        "User:ANONYMOUS",
                        [],
                        10**9,
                        10**9,
                        [upsert(f"token{number}")],
                    ),
                    now_ms,
                    NO_INDEX,
                )

        yield users

    def price(self, name: str, asked: Asked, who: str) -> None:
        """Print what a request costs, the least of some: the server also does other work."""
        body = b"".join(codec(asked.key).encode_request(asked.message, asked.version))
        turn_ms = loop_ms = seconds = float("inf")
        size = 0
        for _ in range(ROUNDS):
            began = time.monotonic()
            reading, size, _ = self.ask(who, asked.key, asked.version, body, 4 * ANSWER_SECONDS)
            turn_ms, loop_ms = min(turn_ms, reading.turn_ms), min(loop_ms, reading.loop_ms)
            seconds = min(seconds, time.monotonic() - began)
        print(
            f"{name:<30} {who:<8} turn {turn_ms:7.1f} ms  loop {loop_ms:7.0f} ms  {seconds:5.2f} s"
            f"  answer {size / 1024:8.0f} KiB",
            flush=True,
        )


def main() -> int:
    names = list(requests())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME")
    chosen = parser.parse_args().only
    with tempfile.TemporaryDirectory(prefix="vdl-state-") as folder:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        text = (
            f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n[server]\ndata_dir = "data"\n'
            '[admin]\nlisten = "off"\n[http]\nlisten = "off"\n[cluster]\n'
            "replicas_per_server = 20_000\n[security]\nauthorizer = true\n"
            'delegation_token_key = "key"\n'
        )
        key = Path(folder) / "key"
        key.write_bytes(bytes(32))
        key.chmod(0o600)
        config = parse_config(text, source="price", folder=Path(folder))
        meter = Meter()
        meter.watch()
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TurnLoop), loop
            process = Process(config, loop, lambda: None)
            server = LargeServer(process, loop, meter, port)
            threading.Thread(target=_client, args=(server, chosen, folder), daemon=True).start()
            return runner.run(process.run())


def _client(server: LargeServer, chosen: list[str], folder: str) -> None:
    status = 1
    try:
        server.prepare()
        server.fill()
        for name, asked in requests().items():
            if name in chosen:
                server.price(name, asked, "all")
        status = 0
    except Exception:  # noqa: BLE001 - the thread's edge
        traceback.print_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
