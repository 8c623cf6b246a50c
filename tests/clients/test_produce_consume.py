"""`vdl produce` and `vdl consume` against real servers."""

from __future__ import annotations

import os
import pty
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.chaos.harness.replica_set import ReplicaSet
from tests.clients.command_process import Commands
from tests.clients.scenarios import BASE_TIMESTAMP
from tests.clients.topics import Topics
from vdl.testing import Cluster

HOSTILE = b"\x1b]0;title\x07\x1b[31m\xc2\x9b2J\xff" + b"z" * 1_000_000
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def vdl(bootstrap: str) -> Iterator[Commands]:
    with Commands(bootstrap) as commands:
        yield commands


def lines(numbers: range) -> bytes:
    return b"".join(b"%d\n" % number for number in numbers)


# --- what goes in comes out -----------------------------------------------------------------------


def test_lines_of_an_input_are_the_lines_of_an_output(vdl: Commands, topics: Topics) -> None:
    """Empty lines, invalid UTF-8 and a last line without an end are records, too."""
    topic = topics.create("cli-lines")
    data = b"one\n\n\xff\xfe\x00\nlast"
    done = vdl.run("produce", topic, data=data)
    assert (done.code, done.output) == (0, b"")
    assert f"4 records, 10 bytes; the last is at {topic}[0] offset 3" in done.errors
    read = vdl.run("consume", topic)
    assert (read.code, read.output, read.errors) == (0, data + b"\n", "")


def test_keys_headers_and_nulls_are_written_and_shown(vdl: Commands, topics: Topics) -> None:
    topic = topics.create("cli-keys")
    options = ["--key-separator", r"\t", "-H", "a=1", "-H", "a=2", "--tombstone", "-z", "zstd"]
    done = vdl.run("produce", topic, *options, data=b"k\tv\nk\t\nno key\n")
    assert done.code == 0
    shown = ["--format", r"%p %o %k %v %S %K %h\n", "--null", "NULL"]
    assert vdl.run("consume", topic, *shown).lines == [
        "0 0 k v 1 1 a=1,a=2",
        "0 1 k NULL -1 1 a=1,a=2",
        "0 2 NULL no key 6 -1 a=1,a=2",
    ]


def test_json_lines_make_an_exact_copy(vdl: Commands, topics: Topics) -> None:
    """Partition, time, headers, nulls and bytes are the same in the copy."""
    source, copy = topics.create("cli-json", partitions=3), topics.create("cli-copy", partitions=3)
    records = "\n".join(
        [
            f'{{"partition": 2, "timestamp": {BASE_TIMESTAMP}, "key": "k", "value": "text"}}',
            '{"partition": 0, "value_base64": "//4=", "headers": [{"name": "h", "value": null}]}',
            '{"partition": 1, "key_hex": "00ff", "value": null}',
            "",
            '{"partition": 1, "value": {"user": "x", "n": [1, 2.5]}, "headers": {"a": "b"}}',
        ]
    )
    assert vdl.run("produce", source, "--json-lines", data=records.encode()).code == 0
    read = vdl.run("consume", source, "--json")
    assert len(read.documents) == 4
    assert vdl.run("produce", copy, "--json-lines", data=read.output).code == 0
    wanted, found = (
        sorted(
            ({**row, "topic": ""} for row in vdl.run("consume", name, "--json").documents),
            key=lambda row: (row["partition"], row["offset"]),
        )
        for name in (source, copy)
    )
    assert found == wanted
    assert found[3]["timestamp"] == BASE_TIMESTAMP


def test_whole_files_are_records(vdl: Commands, topics: Topics, tmp_path: Path) -> None:
    """A megabyte with escape sequences comes back exactly through a pipe."""
    topic = topics.create("cli-files", max_message_bytes="2000000")
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE)
    assert vdl.run("produce", topic, "--file", str(path), "--key", "name").code == 0
    assert vdl.run("consume", topic, "--raw").output == HOSTILE
    assert vdl.run("consume", topic, "--value", "hex").output == HOSTILE.hex().encode() + b"\n"


def test_terminal_gets_no_escape_sequence_of_a_record(vdl: Commands, topics: Topics) -> None:
    """Values are shown with visible escapes on a terminal, and exactly with --raw."""
    topic = topics.create("cli-terminal")
    vdl.run("produce", topic, "-K", ":", data=b"\x1b[1m:\x1b]0;title\x07red\xff\n")

    def shown(*options: str) -> bytes:
        near, far = pty.openpty()
        with vdl.start("consume", topic, *options, output=far) as process:
            os.close(far)
            found = b""
            try:
                while data := os.read(near, 1 << 16):
                    found += data
            except OSError:
                pass  # Linux reports the end of a terminal as an error
            os.close(near)
            assert process.wait(SECONDS_MAX) == 0
        return found

    assert shown("--format", r"%k %v\n") == rb"\x1b[1m \x1b]0;title\x07red\xff" + b"\r\n"
    assert b"\x1b" not in shown("--json")
    assert shown("--raw") == b"\x1b]0;title\x07red\xff"


# --- what is read ---------------------------------------------------------------------------------


def test_reading_begins_and_stops_where_it_is_told(vdl: Commands, topics: Topics) -> None:
    """Offsets, distances from the end, times, a count."""
    topic = topics.create("cli-range")
    records = "".join(
        f'{{"value": "{n}", "timestamp": {BASE_TIMESTAMP + 1_000 * n}}}\n' for n in range(10)
    )
    vdl.run("produce", topic, "--json-lines", data=records.encode())

    def read(*options: str) -> list[int]:
        done = vdl.run("consume", topic, *options)
        assert done.code == 0
        return [int(line) for line in done.lines]

    assert read() == [*range(10)]
    assert read("--from", "7") == [7, 8, 9]
    assert read("--from", "-2") == [8, 9]
    assert read("--from", "-200") == [*range(10)]
    assert read("--from", "end") == []
    assert read("--from", "3", "--until", "5") == [3, 4]
    assert read("--until", "-8") == [0, 1]
    assert read("--from", f"@{BASE_TIMESTAMP + 6_500}") == [7, 8, 9]
    assert read("--until", f"@{BASE_TIMESTAMP + 2_000}") == [0, 1]
    assert read("--from", "1h ago") == []
    assert read("--count", "2", "--from", "4") == [4, 5]
    assert read("--filter", "value > `3` && value < `6`") == [4, 5]
    assert read("--grep", "[89]", "--count", "1") == [8]
    assert vdl.run("consume", topic, "--from", "100").errors == f"{topic}[0] ends at 10\n"


def test_group_continues_behind_what_was_printed(vdl: Commands, topics: Topics) -> None:
    """Offsets are committed with --group only, and not of records that were fetched ahead."""
    topic = topics.create("cli-group")
    vdl.run("produce", topic, data=lines(range(10)))
    group = ["--group", f"group-{topic}"]
    assert vdl.run("consume", topic, *group, "--count", "3").lines == ["0", "1", "2"]
    assert vdl.run("consume", topic).lines == [*map(str, range(10))]
    assert vdl.run("consume", topic, *group).lines == [*map(str, range(3, 10))]
    last = vdl.run("consume", topic, *group)
    assert (last.code, last.output) == (0, b"")


def test_follower_prints_records_as_they_come(vdl: Commands, topics: Topics) -> None:
    """^C ends it."""
    topic = topics.create("cli-follow", partitions=2)
    with vdl.start("consume", topic, "--follow") as reader:
        for number in range(3):
            vdl.run("produce", topic, data=lines(range(number, number + 1)))
            assert reader.read_line() == b"%d\n" % number
        reader.send_signal(signal.SIGINT)
        assert reader.rest() == (b"", "")
        assert reader.wait(SECONDS_MAX) == 130


@pytest.mark.parametrize("follow", [[], ["--follow"]], ids=["to-the-end", "follow"])
def test_reader_whose_pipe_is_closed_ends_quietly(
    follow: list[str], vdl: Commands, topics: Topics
) -> None:
    """As in `vdl consume TOPIC | head -1`, also when no further record comes."""
    topic = topics.create("cli-pipe")
    vdl.run("produce", topic, data=lines(range(100_000)))
    with vdl.start("consume", topic, *follow) as reader:
        assert reader.read_line() == b"0\n"
        assert reader.stdout is not None
        reader.stdout.close()
        assert reader.rest()[1] == ""
        assert reader.wait(SECONDS_MAX) == 0


def test_transaction_that_fails_leaves_nothing_visible(vdl: Commands, topics: Topics) -> None:
    topic = topics.create("cli-transaction")
    options = ["--transactional-id", f"id-{topic}", "--json-lines"]
    failed = vdl.run("produce", topic, *options, data=b'{"value": "lost"}\n{\n')
    assert failed.code == 1
    assert "transaction was aborted" in failed.errors
    assert "record 2: no JSON" in failed.errors
    done = vdl.run("produce", topic, *options, data=b'{"value": "kept"}\n')
    assert done.code == 0
    assert vdl.run("consume", topic).lines == ["kept"]
    every = vdl.run("consume", topic, "--isolation", "read_uncommitted")
    assert every.lines == ["lost", "kept"]


# --- what goes wrong ------------------------------------------------------------------------------


def test_topic_without_records_is_read_to_its_end(vdl: Commands, topics: Topics) -> None:
    done = vdl.run("consume", topics.create("cli-empty"))
    assert (done.code, done.output, done.errors) == (0, b"", "")


def test_mistakes_are_told_in_words(vdl: Commands, topics: Topics) -> None:
    """Mistakes that depend on the cluster; the others are in tests/unit/ops."""
    topic = topics.create("cli-wrong")
    for arguments, words in (
        (["consume", "cli-unknown"], "topic 'cli-unknown' does not exist"),
        (["consume", "cli-unknown", "--group", "g"], "topic 'cli-unknown' does not exist"),
        (["produce", "cli-unknown"], "topic 'cli-unknown' does not exist"),
        (["consume", topic, "-p", "7"], "has no partition 7; it has 1"),
        (["produce", topic, "-p", "7"], "has no partition 7; it has 1"),
        (["produce", topic, "--json-lines"], "record 1: unknown name 'valu'"),
    ):
        done = vdl.run(*arguments, data=b'{"valu": 1}\n')
        assert done.code == 1
        assert words in done.errors
        assert "Traceback" not in done.errors


def test_records_that_fail_are_counted_by_reason(vdl: Commands, topics: Topics) -> None:
    """The others are written."""
    topic = topics.create("cli-failed")
    data = b'{"value": "a"}\n{"value": "b", "partition": 5}\n{"value": "c", "partition": 6}\n'
    done = vdl.run("produce", topic, "--json-lines", data=data)
    assert done.code == 1
    assert "1 record, 1 byte; 2 failed" in done.errors
    assert "2 failed: UNKNOWN_PARTITION" in done.errors
    assert vdl.run("consume", topic).lines == ["a"]


def test_unreachable_cluster_is_told_at_once() -> None:
    with Commands("127.0.0.1:1") as nowhere:
        done = nowhere.run("produce", "topic", data=b"x\n")
    assert done.code == 1
    assert "Connection refused" in done.errors


def test_interrupt_writes_what_was_read(vdl: Commands, topics: Topics) -> None:
    """Exit code 130, and each line that it reported is there."""
    topic = topics.create("cli-interrupt")
    with vdl.start("produce", topic) as writer:
        writer.write(lines(range(3)))
        # The input stays open: what was read is written all the same.
        assert vdl.run("consume", topic, "--follow", "--count", "3").output == lines(range(3))
        writer.send_signal(signal.SIGINT)
        assert "3 records, 3 bytes" in writer.rest()[1]
        assert writer.wait(SECONDS_MAX) == 130


def test_killed_server_costs_no_record(
    vdl: Commands, topics: Topics, servers: ReplicaSet | None
) -> None:
    """Producer and consumer carry on when the leader of the partition is killed."""
    if servers is None:
        pytest.skip("needs its own servers")
    topic = topics.create("cli-killed")
    try:
        with (
            vdl.start("produce", topic) as writer,
            vdl.start("consume", topic, "--follow", "--count", "2000") as reader,
        ):
            writer.write(lines(range(1_000)))
            assert reader.read_line() == b"0\n"
            servers.kill(topics.leader(topic))
            writer.write(lines(range(1_000, 2_000)))
            writer.end_of_input()
            assert writer.wait(SECONDS_MAX) == 0
            assert reader.rest()[0] == lines(range(1, 2_000))
            assert reader.wait(SECONDS_MAX) == 0
    finally:
        servers.up()


def test_member_reads_to_the_end_through_a_rebalance(vdl: Commands, topics: Topics) -> None:
    """A second member comes and goes: the first one neither ends early nor keeps a partition
    paused that it had read to its end."""
    topic = topics.create("cli-rebalance", partitions=2)
    wide = b"".join(b"%04d%s\n" % (number, b"x" * 1_000) for number in range(3_000))
    vdl.run("produce", topic, "-p", "0", data=b"9999\n")
    vdl.run("produce", topic, "-p", "1", data=wide)
    group = f"group-{topic}"
    assigned = threading.Event()
    second = Consumer({"bootstrap.servers": vdl.bootstrap, "group.id": group})
    # Most of it is not fetched yet when the second member comes.
    small = ["-X", "queued.max.messages.kbytes=64", "-X", "fetch.message.max.bytes=65536"]
    small += ["-X", "heartbeat.interval.ms=100"]
    with vdl.start("consume", topic, "-g", group, *small) as first:
        found = [first.read_line()]  # the rest does not fit into the pipe
        second.subscribe([topic], on_assign=lambda *_: assigned.set())
        wait_for_rebalance(vdl, second, group)
        time.sleep(1)  # ten heartbeats: most likely the first one has noticed it before it goes on
        reading = threading.Thread(target=lambda: found.append(first.rest()[0]))
        reading.start()
        deadline = time.monotonic() + SECONDS_MAX
        while not assigned.is_set() and time.monotonic() < deadline:
            second.poll(0.05)
        second.close()
        assert assigned.is_set()
        reading.join()
        assert first.wait(SECONDS_MAX) == 0
    assert sorted(b"".join(found).splitlines()) == sorted([*wide.splitlines(), b"9999"])


def test_member_that_the_group_leaves_out_ends_and_names_cannot_forge_a_line(
    vdl: Commands, topics: Topics
) -> None:
    """KIP-848: for an empty assignment the client calls nothing. It has nothing to read, as a
    member of a classic group has."""
    topic = topics.create("cli-left-out")
    group = f"\x1b[2J{topic}\nother"
    consumer = Consumer(
        {"bootstrap.servers": vdl.bootstrap, "group.id": group, "group.protocol": "consumer"}
    )
    assigned = threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: assigned.set())
    with closing(consumer):
        deadline = time.monotonic() + SECONDS_MAX
        while not assigned.is_set() and time.monotonic() < deadline:
            consumer.poll(0.1)
        ran = vdl.run("consume", topic, "-g", group, "-X", "group.protocol=consumer")
        assert (ran.code, ran.output, ran.errors) == (0, b"", "")
        shown = vdl.run("group", "describe", group).output
        assert shown.startswith(b"group \\x1b[2J%s\\x0aother (" % topic.encode())


def wait_for_rebalance(vdl: Commands, member: Consumer, group: str) -> None:
    """Return when the member has joined and the others have not noticed yet."""
    admin = AdminClient({"bootstrap.servers": vdl.bootstrap})
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        member.poll(0.05)
        found = admin.describe_consumer_groups([group])[group].result(SECONDS_MAX)
        if found.state is ConsumerGroupState.PREPARING_REBALANCING:
            return
    pytest.fail("no rebalance began")


def test_signal_aborts_a_transaction(vdl: Commands, topics: Topics) -> None:
    """SIGTERM ends a command as ^C does, with its own exit code."""
    topic = topics.create("cli-terminated")
    with vdl.start("produce", topic, "--transactional-id", f"id-{topic}") as writer:
        writer.write(lines(range(3)))
        seen = vdl.run("consume", topic, "-f", "--isolation", "read_uncommitted", "--count", "3")
        assert seen.output == lines(range(3))
        writer.send_signal(signal.SIGTERM)
        assert "the transaction was aborted" in writer.rest()[1]
        assert writer.wait(SECONDS_MAX) == 143
    assert vdl.run("consume", topic).output == b""


def test_signal_ends_the_wait_for_a_transaction_to_begin() -> None:
    """Without a coordinator the client waits a minute; a signal ends the command at once."""
    with Cluster(3) as cluster, Commands(cluster.bootstrap) as commands:
        topic = cluster.topic()
        cluster.kill(2, 3)
        with commands.start("produce", topic, "--transactional-id", "id") as writer:
            writer.write(b"1\n")
            # It handles signals in order once it is past its first requests.
            until_signals_are_caught(writer.pid)
            writer.send_signal(signal.SIGTERM)
            assert writer.wait(SECONDS_MAX) == 143


def until_signals_are_caught(pid: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught.split()[1], 16) & 1 << (signal.SIGTERM - 1):
            return
        time.sleep(0.02)
    pytest.fail("the command does not catch SIGTERM")
