"""Processes that append to lists by transactions, and their combined history.

Does not depend on the faults of servers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.chaos.harness.append_process import (
    CALL_SECONDS,
    IMPATIENT,
    OPS_PER_PROCESS,
    committed_consumer,
    now_ns,
    polls,
)
from tests.chaos.harness.replica_set import ROOT
from vdl.check.history import Op, read
from vdl.check.transactions import READ_COMMITTED
from vdl.errors import ErrorCode
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import fetch as fetch_wire
from vdl.kafka.wire import metadata as metadata_wire

END_SECONDS_MAX = 60.0
FINAL_SECONDS_MAX = 120.0
READ_COMMITTED_LEVEL = 1
WATCH_SECONDS = 0.02
WATCHER, FINAL = 8_000, 9_000
"""Process numbers for operations that belong to no process."""


class AppendProcess:
    """A process of `append_process`."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.chaos.harness.append_process"]
        self.arguments = arguments
        self._process = subprocess.Popen(
            [*command, *map(str, arguments)], stdin=subprocess.PIPE, cwd=ROOT
        )

    def kill(self) -> None:
        """Kill the process in the middle of its transactions."""
        self._process.kill()
        self._process.wait()
        self._close_input()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def retire(self) -> None:
        """Continue a paused process, and have it end once its operations are complete."""
        self._close_input()
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Have the process end after completing what it began."""
        self._close_input()

    def wait(self) -> bool:
        """Return True if the process ended by itself.

        All calls of its clients have time limits, but librdkafka's send_offsets_to_transaction
        sometimes does not return when a coordinator moves: then the process is killed, and its
        operations up to then count.
        """
        try:
            assert self._process.wait(END_SECONDS_MAX) in (0, -signal.SIGKILL), self.arguments
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True

    def abandon(self) -> None:
        """Kill the process in any state."""
        if self._process.poll() is None:
            self.kill()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.closed:
            self._process.stdin.close()


class StableWatch:
    """Thread that repeatedly queries each leader for the stable end of its list."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._addresses = [
            (host, int(port))
            for host, _, port in (one.rpartition(":") for one in bootstrap.split(","))
        ]
        self._topic = topic
        self.ops: list[Op] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stable-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join(END_SECONDS_MAX)
        assert not self._thread.is_alive(), "the watch hangs"

    def _run(self) -> None:
        turn = 0
        while not self._ends.is_set():
            turn += 1
            try:
                self._ask_all(self._addresses[turn % len(self._addresses)])
            except Unreachable:
                self._ends.wait(WATCH_SECONDS)

    def _ask_all(self, address: tuple[str, int]) -> None:
        """Query each leader once, as one server's metadata names them."""
        with KafkaClient(*address, timeout_seconds=2.0) as client:
            request = metadata_wire.MetadataRequest(
                [metadata_wire.MetadataRequestTopic(name=self._topic)]
            )
            told = client.request(metadata_wire.API_KEY, request)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in told.brokers}
        (topic,) = told.topics
        by_leader: dict[int, list[fetch_wire.FetchPartition]] = {}
        for one in topic.partitions:
            if one.leader_id in brokers:
                by_leader.setdefault(one.leader_id, []).append(
                    fetch_wire.FetchPartition(
                        one.partition_index, one.leader_epoch, 0, partition_max_bytes=1
                    )
                )
        for leader, asked in sorted(by_leader.items()):
            with KafkaClient(*brokers[leader], timeout_seconds=2.0) as client:
                for one in asked:
                    self._ask(client, topic.topic_id, one)
            self._ends.wait(WATCH_SECONDS)

    def _ask(self, client: KafkaClient, topic_id: bytes, asked: fetch_wire.FetchPartition) -> None:
        began = now_ns()
        request = fetch_wire.FetchRequest(
            max_bytes=1,
            isolation_level=READ_COMMITTED_LEVEL,
            topics=[fetch_wire.FetchTopic(self._topic, topic_id, [asked])],
        )
        told = client.request(fetch_wire.API_KEY, request)
        for topic in told.responses:
            for data in topic.partitions:
                if data.error_code == ErrorCode.NONE:
                    name = f"{self._topic}-{data.partition_index}"
                    op = Op(
                        WATCHER * OPS_PER_PROCESS + len(self.ops),
                        "watch",
                        "poll",
                        "ok",
                        began,
                        now_ns(),
                    )
                    op.iso = READ_COMMITTED
                    op.hw = {name: (asked.current_leader_epoch, data.high_watermark)}
                    op.lso = {name: (asked.current_leader_epoch, data.last_stable_offset)}
                    self.ops.append(op)


def history(folder: Path) -> list[Op]:
    """Return the last line of each operation of all processes.

    A line cut off by a kill is omitted.
    """
    found: dict[int, Op] = {}
    for path in sorted(folder.glob("*.jsonl")):
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):
            os.truncate(path, end)
        for op in read(str(path)):
            before = found.setdefault(op.i, op)
            assert before.proc == op.proc, f"{before.proc} and {op.proc} have one operation"
            found[op.i] = op
    return list(found.values())


def final_reads(bootstrap: str, topic: str, partitions: int) -> Iterator[Op]:
    """Yield one operation for each list, which reads everything committed.

    No transaction is open any more.
    """
    plain = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", **IMPATIENT})
    ends = {
        partition: plain.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=CALL_SECONDS
        )[1]
        for partition in range(partitions)
    }
    plain.close()
    for partition, end in ends.items():
        consumer = committed_consumer(bootstrap, **{"enable.partition.eof": True})
        began = now_ns()
        op = Op(FINAL * OPS_PER_PROCESS + partition, "final", "poll", "ok", began, began)
        op.iso, op.final = READ_COMMITTED, True
        found = []
        consumer.assign([TopicPartition(topic, partition, 0)])
        deadline = time.monotonic() + FINAL_SECONDS_MAX
        is_read = end == 0
        while not is_read:
            assert time.monotonic() < deadline, f"{topic} {partition} is not stable"
            for message in consumer.consume(1_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    is_read |= (message.offset() or 0) >= end
        consumer.close()
        op.t1 = now_ns()
        op.polls = polls(topic, found) or [(f"{topic}-{partition}", [])]
        yield op
