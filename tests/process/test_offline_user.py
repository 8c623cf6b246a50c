"""The last administrator is lost: another one is added in a data directory, without a login."""

from __future__ import annotations

import subprocess
import sys

from tests.chaos.harness.replica_set import ROOT, ReplicaSet
from vdl.commands.servers.replica_set import make_replica_set, write_configs
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.client import KafkaClient, Unreachable
from vdl.kafka.security.client_settings import read_client_settings

LATER, LAST = "a-password-made-offline-5", "a-password-of-later-6"


def test_lost_administrator_is_made_anew_offline_and_once() -> None:
    """The administrator gets another password at the next start, which is logged.

    Later changes are not reverted by a start.
    """
    servers = ReplicaSet(1)
    made = make_replica_set(servers.directory, count=1, base_port=servers.base_port, is_secure=True)
    secure_replica_set(made)
    write_configs(made)
    config = servers.directory / "client.properties"
    directory = servers.server(1).directory / "store"

    def vdl(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "vdl.cli", "user", *arguments],
            input=text, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        )  # fmt: skip

    def online(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        own = ("--bootstrap", servers.bootstrap, "--config", str(config))
        return vdl(*arguments, *own, text=text)

    def may_log_in() -> bool:
        settings = read_client_settings(config)
        try:
            with KafkaClient("127.0.0.1", servers.base_port, settings=settings):
                return True
        except Unreachable:
            return False

    def has_password(password: str) -> None:
        first = read_client_settings(config).password
        config.write_text(config.read_text().replace(first, password))

    try:
        servers.up()
        online("remove", "admin")  # its own connection ends, perhaps before the answer
        assert not may_log_in()
        servers.terminate(1)
        servers.wait_stopped(1)
        done = vdl("add", "admin", "--offline", str(directory), text=f"{LATER}\n")
        assert done.returncode == 0, done.stderr
        again = vdl("add", "admin", "--offline", str(directory), text=f"{LAST}\n")
        assert again.returncode, "one may be waiting already"
        servers.start(1)
        servers.wait_serving(1)
        has_password(LATER)
        while not may_log_in():
            assert servers.running()
        assert "user_added_offline" in servers.log(1)
        done = online("add", "admin", text=f"{LAST}\n")
        assert done.returncode == 0, done.stderr
        servers.terminate(1)
        servers.wait_stopped(1)
        servers.start(1)
        servers.wait_serving(1)
        assert not may_log_in()
        has_password(LAST)
        assert may_log_in()
    finally:
        servers.close()
