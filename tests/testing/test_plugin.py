"""The pytest plug-in: its fixtures, and that it costs those nothing who do not use it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN_SECONDS_MAX = 300
TEST = """
from confluent_kafka import Consumer, Producer
seen = []

def check(cluster, topic):
    seen.append(topic)
    settings = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
    producer = Producer(settings)
    producer.produce(topic, b"mine")
    assert producer.flush(60) == 0
    group = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings | group)
    consumer.subscribe([topic])
    message = consumer.poll(60)
    assert message.value() == b"mine"
    consumer.close()

def test_topic_of_one_test(vdl_cluster, vdl_topic):
    check(vdl_cluster, vdl_topic)

def test_topics_of_another_test(vdl_cluster, vdl_topic, vdl_topics):
    check(vdl_cluster, vdl_topic)
    other = vdl_topics(partitions=2)
    check(vdl_cluster, other)
    assert len(set(seen)) == 3
    assert vdl_cluster.nodes == 1
    assert "message.max.bytes = 70000" in (
        vdl_cluster.directory / "1" / "vdl.toml").read_text()
"""


ALONE = """
import pytest
from confluent_kafka.admin import AdminClient
from vdl.testing.plugin import TOPICS_AT_ONCE

taken = []

@pytest.mark.parametrize("number", range(TOPICS_AT_ONCE + 1))
def test_that_makes_a_topic_its_own(vdl_topic, number):
    assert vdl_topic not in taken
    taken.append(vdl_topic)

def test_after_them_finds_their_topics_gone(vdl_cluster):
    admin = AdminClient({"bootstrap.servers": vdl_cluster.bootstrap})
    left = admin.list_topics(timeout=60).topics
    assert not left.keys() & set(taken[:TOPICS_AT_ONCE])
    assert taken[-1] in left
"""


def run(folder: Path, *arguments: str) -> str:
    # Explicitly, as an installation does by its entry point.
    command = [sys.executable, "-m", "pytest", "-p", "vdl.testing.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-q", *arguments],
        cwd=folder,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plugin_gives_each_test_topics_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    folder = tmp_path / "data"
    folder.mkdir()
    options = ["--vdl-nodes=1", "--vdl-set=kafka.message.max.bytes=70000"]
    options += [f"--vdl-directory={folder}", "test_mine.py"]
    assert "2 passed" in run(tmp_path, *options)
    assert list(folder.iterdir()) == []


def test_plugin_deletes_the_topics_of_ended_tests_together(tmp_path: Path) -> None:
    (tmp_path / "test_alone.py").write_text(ALONE)
    assert "18 passed" in run(tmp_path, "--vdl-nodes=1", "test_alone.py")


def test_plugin_loads_nothing_of_a_server_before_it_is_used(tmp_path: Path) -> None:
    code = (
        "import sys\nimport vdl.testing.plugin\n"
        "def test_nothing_is_loaded_here():\n"
        "    loaded = [name for name in sys.modules if name.startswith(('vdl', 'rpc', 'raft'))]\n"
        "    assert sorted(loaded) == ['vdl', 'vdl.testing', 'vdl.testing.plugin']\n"
    )
    (tmp_path / "test_bare.py").write_text(code)
    assert "1 passed" in run(tmp_path, "test_bare.py")


def test_server_command_obeys_lines_and_ends_with_its_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vdl.cli", "test-server", "--json", "--nodes", "1"]
    done = subprocess.run(
        [*command, "--directory", str(tmp_path)],
        input="topic 2\nstatus\n\nkill 1\nleader\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=RUN_SECONDS_MAX,
        check=True,
    )
    ready, topic, status, empty, kill, leader = map(json.loads, done.stdout.splitlines())
    assert ready["bootstrap"] == f"127.0.0.1:{ready['servers'][0]['port']}"
    assert topic["topic"].startswith("t-")
    assert status["servers"][0]["pid"] == ready["servers"][0]["pid"]
    assert "unknown command ''" in empty["error"]
    assert kill == {"ok": True}
    assert leader == {"ok": False, "error": "leader does not take 0 arguments"}
    assert list(tmp_path.iterdir()) == []


def test_server_command_with_wrong_options_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vdl.cli", "test-server"]
    for options, code, problem in (
        (["--set", "x"], 2, "table.key=value"),
        (["--nodes", "10"], 1, "1 to 9 servers"),
        (["--set", "kafka.no.such=1"], 1, "unknown key"),
    ):
        done = subprocess.run(
            [*command, "--directory", str(tmp_path), *options],
            input="",
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == code, done.stdout
        assert problem in done.stdout + done.stderr
