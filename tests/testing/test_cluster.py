"""`vdl.testing.Cluster`: each fault has its effect on real servers, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from vdl.testing import Cluster, ClusterError

QUIET = {"log_level": 0}
WAIT_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """Yield a cluster that is whole before and after each test."""
    yield shared
    shared.restore()


def eventually(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def produce(cluster: Cluster, topic: str, *values: str, timeout: float = WAIT_SECONDS_MAX) -> int:
    """Produce values; return the number of those that were acknowledged."""
    acknowledged: list[int] = []

    def delivered(error: object, message: object) -> None:
        if error is None:
            acknowledged.append(1)

    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "message.timeout.ms": int(timeout * 1_000),
        **QUIET,
    }
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
    producer.flush(WAIT_SECONDS_MAX)
    return len(acknowledged)


def consume(cluster: Cluster, topic: str) -> list[str]:
    """Return all values of partition 0."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "enable.auto.commit": False}
        | QUIET
    )
    try:
        place = TopicPartition(topic, 0, 0)
        low, end = _bounds(consumer, place)
        consumer.assign([TopicPartition(topic, 0, low)])
        found: list[str] = []
        while len(found) < end - low:
            message = consumer.poll(WAIT_SECONDS_MAX)
            assert message is not None, f"{len(found)} of {end - low} records"
            if message.error() is None:
                found.append((message.value() or b"").decode())
        return found
    finally:
        consumer.close()


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Return the offsets between which there are records, from the leader once it is known."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        try:
            return consumer.get_watermark_offsets(place, timeout=WAIT_SECONDS_MAX)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def test_cluster_with_a_killed_leader_elects_another(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, "a") == 1
    leader = cluster.leader(topic)
    cluster.kill(leader)
    assert cluster.pid(leader) == 0
    assert produce(cluster, topic, "b") == 1
    assert cluster.leader(topic) != leader
    cluster.start(leader)
    assert consume(cluster, topic) == ["a", "b"]


def test_cluster_with_a_paused_leader_elects_another_and_resumes(cluster: Cluster) -> None:
    topic = cluster.topic()
    leader = cluster.leader(topic)
    cluster.pause(leader)
    eventually(lambda: cluster.leader(topic) not in {0, leader}, "no other leader")
    assert produce(cluster, topic, "a") == 1
    cluster.resume()
    cluster.wait()
    assert consume(cluster, topic) == ["a"]


def test_cluster_with_an_isolated_leader_elects_another(cluster: Cluster) -> None:
    topic = cluster.topic()
    leader = cluster.leader(topic)
    cluster.isolate(leader)
    eventually(lambda: cluster.leader(topic) not in {0, leader}, "no other leader")
    assert produce(cluster, topic, "a") == 1
    cluster.heal()
    cluster.wait()
    assert consume(cluster, topic) == ["a"]


def test_cluster_without_a_majority_acknowledges_nothing(cluster: Cluster) -> None:
    topic = cluster.topic()
    first, second, third = cluster.servers
    cluster.partition(first, second)
    cluster.partition(second, third)
    cluster.partition(first, third)
    assert produce(cluster, topic, "a", timeout=2.0) == 0
    cluster.heal()
    assert produce(cluster, topic, "b") == 1


def test_cluster_with_one_way_cut_keeps_serving(cluster: Cluster) -> None:
    topic = cluster.topic()
    leader = cluster.leader(topic)
    other = leader % 3 + 1
    cluster.partition(leader, other, one_way=True)
    assert produce(cluster, topic, "a") == 1


def test_cluster_after_a_power_cut_has_all_acknowledged_records(cluster: Cluster) -> None:
    topic = cluster.topic()
    values = [str(number) for number in range(200)]
    assert produce(cluster, topic, *values) == 200
    assert cluster.power_cut().keys() == set(cluster.servers)
    assert [cluster.pid(server) for server in cluster.servers] == [0, 0, 0]
    cluster.start()
    assert consume(cluster, topic) == values


FORGETFUL = """
from vdl.testing.disk import NotedFile
write = NotedFile.pwrite
NotedFile.pwrite = lambda self, buffers, position, durable=False: write(self, buffers, position)
NotedFile.sync = lambda self: None
"""


def test_power_cut_of_servers_that_do_not_sync_loses_acknowledged_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cut takes what a store only wrote: a promise without a sync is worth nothing."""
    (tmp_path / "sitecustomize.py").write_text(FORGETFUL, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    with Cluster(1) as forgetful:
        assert produce(forgetful, forgetful.topic(), "precious") == 1
        store = forgetful.directory / "1" / "store"
        assert count_in(store, b"precious") > 0
        assert forgetful.power_cut()[1] > 0
        assert count_in(store, b"precious") == 0


def count_in(folder: Path, data: bytes) -> int:
    """Return how often the data is in the files of a folder."""
    return sum(path.read_bytes().count(data) for path in folder.rglob("*") if path.is_file())


def test_cluster_with_slow_disks_answers_late(cluster: Cluster) -> None:
    """A client that waits for less than the disks gets no acknowledgement."""
    topic = cluster.topic()
    for server in cluster.servers:
        cluster.slow_disk(server, 2.5)
    assert produce(cluster, topic, "a", timeout=1.5) == 0
    for server in cluster.servers:
        cluster.slow_disk(server, 0)
    assert produce(cluster, topic, "b") == 1


def test_cluster_replaces_a_lost_disk_from_the_others(cluster: Cluster) -> None:
    topic = cluster.topic()
    assert produce(cluster, topic, "a", "b") == 2
    lost = cluster.leader(topic)
    cluster.lose_disk(lost)
    assert not (cluster.directory / str(lost) / "store").exists()
    cluster.start(lost)

    # Only a server that has the records again can be one of a majority.
    def has_it_alone() -> bool:
        other = lost % 3 + 1
        time.sleep(2.0)  # the two that are left replace it only together
        cluster.kill(other)
        try:
            return produce(cluster, topic, "c", timeout=3.0) == 1
        finally:
            cluster.start(other)

    eventually(has_it_alone, "the server was not replaced")
    assert consume(cluster, topic)[:2] == ["a", "b"]


def test_cluster_with_advanced_time_deletes_old_records(cluster: Cluster) -> None:
    topic = cluster.topic(configs={"retention.ms": "600000", "segment.ms": "1000"})
    assert produce(cluster, topic, "old") == 1
    cluster.advance_time(3_600)

    # A record that is written now closes the segment before it.
    def is_deleted() -> bool:
        return produce(cluster, topic, "new") == 1 and "old" not in consume(cluster, topic)

    eventually(is_deleted, "the record is still there")


def test_cluster_topics_are_its_own_and_can_be_deleted(cluster: Cluster) -> None:
    one, (two, _) = cluster.topic(), cluster.topics(2, 3)
    assert one != two
    assert cluster.leader(two, 2) in cluster.servers
    cluster.grow_topic(one, 2)
    eventually(lambda: _leads(cluster, one, 1), "no second partition")
    cluster.delete_topics(one, two)
    eventually(lambda: not _leads(cluster, one, 0), "the topic is still there")


def _leads(cluster: Cluster, topic: str, partition: int) -> bool:
    try:
        return cluster.leader(topic, partition) > 0
    except ClusterError:
        return False


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda cluster: cluster.kill(9), "there is no server 9"),
        (lambda cluster: cluster.partition(1, 1), "no link to itself"),
        (lambda cluster: cluster.slow_disk(1, -1), "0 to 60 seconds"),
        (lambda cluster: cluster.topic(0), "1 to 1000 partitions"),
        (lambda cluster: cluster.topics(501, 2), "1 to 1000 partitions in all"),
        (lambda cluster: cluster.topics(0), "1 to 1000 partitions in all"),
        (lambda cluster: cluster.topic(configs={"no.such": "1"}), "INVALID_CONFIG"),
        (lambda cluster: cluster.topic(configs={"a": "1 2"}), "white space"),
        (lambda cluster: cluster.leader("absent"), "no server knows"),
        (lambda cluster: cluster.start(1), "runs already"),
        (lambda cluster: cluster._ask("fly"), "unknown command"),
        (lambda cluster: cluster._ask("heal", 1), "1 arguments"),
    ],
)
def test_cluster_refuses_the_impossible_and_goes_on(
    cluster: Cluster, call: Callable[[Cluster], object], problem: str
) -> None:
    with pytest.raises(ClusterError, match=problem):
        call(cluster)
    assert cluster.pid(1) > 0


@pytest.mark.parametrize(
    ("settings", "problem"),
    [({"kafka.no.such": 1}, "unknown key"), ({"short": 1}, "table.key")],
)
def test_cluster_with_wrong_settings_says_so_and_leaves_nothing(
    tmp_path: Path, settings: dict[str, object], problem: str
) -> None:
    with pytest.raises(ClusterError, match=problem):
        Cluster(settings=settings, directory=tmp_path).start_up()
    assert list(tmp_path.iterdir()) == []


def test_cluster_ends_with_the_process_that_made_it(tmp_path: Path) -> None:
    """A killed test run leaves neither servers nor files."""
    code = (
        "import sys, time; from pathlib import Path; from vdl.testing import Cluster\n"
        "cluster = Cluster(1, directory=Path(sys.argv[1])).start_up()\n"
        "print(cluster.pid(1), flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        server = int(maker.stdout.readline())
        maker.kill()
    eventually(lambda: not list(tmp_path.iterdir()), "the folder is still there")
    eventually(lambda: not Path(f"/proc/{server}").exists(), "the server still runs")


def test_cluster_ends_with_its_maker_although_a_child_of_it_lives(tmp_path: Path) -> None:
    """The child has a copy of the supervisor's standard input."""
    code = (
        "import os, sys, time; from pathlib import Path; from vdl.testing import Cluster\n"
        "cluster = Cluster(1, directory=Path(sys.argv[1])).start_up()\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        child = int(maker.stdout.readline())
        maker.kill()
    try:
        eventually(lambda: not list(tmp_path.iterdir()), "the folder is still there")
    finally:
        os.kill(child, signal.SIGKILL)


def test_cluster_that_a_child_keeps_open_is_closed(tmp_path: Path) -> None:
    """The supervisor ends by itself, and is not killed; a close in the child changes nothing."""
    cluster = Cluster(1, directory=tmp_path).start_up()
    supervisor = cluster._process
    assert supervisor is not None
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    try:
        if not (closer := os.fork()):
            cluster.close()
            os._exit(0)
        assert os.waitpid(closer, 0)[1] == 0
        assert cluster.pid(1) > 0
        cluster.close()
        assert supervisor.returncode == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_cluster_that_gets_a_second_signal_removes_its_folder(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from vdl.testing import command_loop as loop\n"
        "close = loop.Supervisor.close\n"
        "def interrupted(self):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    close(self)\n"
        "loop.Supervisor.close = interrupted\n"
        "sys.exit(loop.run(1, {}, Path(sys.argv[1]), 0, sys.stdout))\n"
    )
    words = [sys.executable, "-c", code, str(tmp_path)]
    ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
    assert (ran.returncode, list(tmp_path.iterdir())) == (0, [])


def test_cluster_after_an_interrupt_between_request_and_answer_stays_in_step(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late answer is not taken for that of the next request."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_answer", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                cluster.topic()
    assert cluster.pid(1) > 0
    assert cluster.topic() != cluster.topic()


def test_cluster_loads_no_modules_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "secrets.py").write_text("raise RuntimeError('the wrong module')", encoding="utf-8")
    monkeypatch.chdir(folder)
    with Cluster(1, directory=tmp_path) as cluster:
        assert cluster.pid(1) > 0


def test_cluster_servers_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    cluster = Cluster(1, directory=tmp_path).start_up()
    server = cluster.pid(1)
    os.kill(int(cluster._about["pid"]), signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{server}").exists(), "the server still runs")
    with pytest.raises(ClusterError):
        cluster.wait()
    cluster.close()
    assert list(tmp_path.iterdir()) == []


def test_cluster_that_was_closed_says_so(tmp_path: Path) -> None:
    cluster = Cluster(1, directory=tmp_path)
    with pytest.raises(ClusterError, match="not running"):
        cluster.wait()
    with cluster, pytest.raises(ClusterError, match="started already"):
        cluster.start_up()
    cluster.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KafkaException):
        Producer({"bootstrap.servers": "127.0.0.1:1", **QUIET}).list_topics(timeout=0.1)


def test_modules_are_compiled_once_where_none_may_be_written_beside_the_sources(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PYTHONDONTWRITEBYTECODE, as images set it, would have each start compile all of them."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("vdl.testing.cluster.cache_from_source", lambda _: str(tmp_path / "none"))
    with Cluster(1):
        pass
    compiled = {found: found.stat().st_mtime_ns for found in tmp_path.rglob("*.pyc")}
    assert any(found.name.startswith("command_loop.") for found in compiled)
    with Cluster(1):
        pass
    assert {found: found.stat().st_mtime_ns for found in tmp_path.rglob("*.pyc")} == compiled
