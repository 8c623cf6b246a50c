"""`vdl up` and `vdl down` as a new user runs them: real processes, real disk, real clients."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

LENIENCE = 4
"""Factor for other load on the machine; `make bench` measures the real limits."""

START_SECONDS_MAX = 3.0 * LENIENCE
STOP_SECONDS_MAX = 2.0 * LENIENCE
RSS_BYTES_MAX = 100 << 20
BASE_PORT = 21_700
BOOTSTRAP = f"127.0.0.1:{BASE_PORT}"
CLIENT = {"bootstrap.servers": BOOTSTRAP, "log_level": 2}
VDL = [sys.executable, "-m", "vdl.cli"]


def vdl(*arguments, check=True):
    done = subprocess.run(
        [*VDL, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def produce(topic, value):
    """Send one record with acks=all; return its offset once acknowledged."""
    offsets = []
    producer = Producer({**CLIENT, "acks": "all"})
    producer.produce(
        topic, value, on_delivery=lambda error, message: offsets.append((error, message.offset()))
    )
    assert producer.flush(20) == 0
    assert offsets[0][0] is None
    return offsets[0][1]


def read(topic, offset):
    consumer = Consumer({**CLIENT, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message.offset(), message.value()


def resident_bytes(pid):
    kilobytes = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]
    return int(kilobytes) << 10


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "data"
    yield data
    vdl("down", "--data", data, check=False)


def pids(data):
    return [int((data / str(number) / "server.pid").read_text()) for number in (1, 2, 3)]


def test_up_detached_serves_within_seconds_and_down_keeps_everything(folder):
    """A set starts and stops in time, and keeps its records.

    Start to first acknowledged record ≤ 3 s, RSS ≤ 100 MB a server, clean stop ≤ 2 s. The record is
    there, at its offset, when the set is started again.
    """
    started = time.monotonic()
    up = vdl("up", "--data", folder, "--base-port", BASE_PORT, "--detach")
    offset = produce("first", b"acknowledged")
    start_seconds = time.monotonic() - started
    assert f"bootstrap.servers={BOOTSTRAP}," in up.stdout
    resident = [resident_bytes(pid) for pid in pids(folder)]
    print(f"start to first acknowledgement {start_seconds:.2f} s, RSS {resident}")

    refused = vdl("up", "--data", folder, check=False)
    assert refused.returncode == 1
    assert "already running" in refused.stderr

    status = json.loads(vdl("status", "--bootstrap", BOOTSTRAP, "--json").stdout)
    assert [server["problem"] for server in status["servers"]] == ["", "", ""]
    (partition,) = status["topics"][0]["partitions"]
    assert partition["end_offset"] == 1
    assert [replica["lag"] for replica in partition["replicas"]] == [0, 0, 0]

    stopped = time.monotonic()
    down = vdl("down", "--data", folder)
    stop_seconds = time.monotonic() - stopped
    assert down.stdout.splitlines() == [f"server {number} stopped" for number in (1, 2, 3)]

    vdl("up", "--data", folder, "--detach")
    assert read("first", offset) == (offset, b"acknowledged")
    assert produce("first", b"again") == offset + 1
    assert start_seconds <= START_SECONDS_MAX
    assert stop_seconds <= STOP_SECONDS_MAX
    assert max(resident) <= RSS_BYTES_MAX


def test_up_in_the_foreground_reports_a_killed_server_and_stops_on_interrupt(folder):
    """A killed server is named, another `vdl up` restarts it, ^C stops all in 2 s."""
    command = [*VDL, "up", "--data", folder, "--base-port", str(BASE_PORT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            kill_one_and_bring_it_back(folder, up)
        finally:
            interrupted = time.monotonic()
            up.send_signal(signal.SIGINT)
            up.stdout.read()
    assert up.returncode == 0
    assert time.monotonic() - interrupted <= STOP_SECONDS_MAX
    assert vdl("down", "--data", folder).stdout == "nothing was running\n"


def kill_one_and_bring_it_back(folder, up):
    greeting = next((line for line in up.stdout if "^C stops all servers" in line), "")
    assert greeting, "vdl up ended before all servers served"
    offset = produce("kept", b"before")
    first = pids(folder)[0]
    os.kill(first, signal.SIGKILL)
    assert "server 1 ended with signal 9" in up.stdout.readline()
    vdl("up", "--data", folder, "--detach")
    assert pids(folder)[0] != first
    assert read("kept", offset) == (offset, b"before")
