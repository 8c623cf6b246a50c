"""What `vdl serve` prepares before a server begins."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vdl.commands.serve import within_files
from vdl.config import parse_config
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.wire import metadata

METADATA = 3


@pytest.mark.parametrize(
    ("files", "clients"), [(1, 1), (100, 50), (1_024, 512), (10_000, 9_488), (sys.maxsize, 10_000)]
)
def test_clients_leave_descriptors_for_the_store(files, clients):
    config = parse_config("", source="test", folder=Path("/"))
    assert within_files(config, files).kafka.connections_max == clients


def test_server_outlives_more_clients_than_it_has_descriptors(tmp_path):
    """The limit is raised as far as it goes, and clients do not get the store's share."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = tmp_path / "server.toml"
    settings.write_text(
        f'[[listeners]]\nlisten = "127.0.0.1:{port}"\n'
        '[admin]\nlisten = "off"\n[http]\nlisten = "off"\n',
        encoding="utf-8",
    )
    serve = [sys.executable, "-m", "vdl.cli", "serve", "--config", str(settings)]
    limited = ["sh", "-c", 'ulimit -S -n 60; ulimit -H -n 200; exec "$@"', "sh", *serve]
    server = subprocess.Popen(limited, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as clients:
        clients.callback(server.wait, 30)
        clients.callback(server.send_signal, signal.SIGKILL)
        first = KafkaClient("127.0.0.1", port)
        for _ in range(200):
            with contextlib.suppress(Unreachable):
                clients.enter_context(first)
                break
            time.sleep(0.05)
        for _ in range(150):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        topic = metadata.MetadataRequestTopic(name="new")
        for _ in range(100):  # made by the first that asks
            answer = first.request(METADATA, metadata.MetadataRequest([topic]))
            if not answer.topics[0].error_code:
                break
            time.sleep(0.05)
        assert not answer.topics[0].error_code
        assert server.poll() is None
