"""Verdicts of `vdl doctor` from what it has looked at; a machine and ports that are real."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from vdl.commands.app import app
from vdl.commands.checks.cluster_checks import Probe, certificates, partitions, probe, versions
from vdl.commands.checks.finding import Verdict
from vdl.commands.checks.machine_checks import (
    clock,
    configuration,
    disk,
    filesystem,
    is_in_use,
    judged_syncs,
    machine_findings,
    ports,
)
from vdl.commands.doctor import clocks
from vdl.config.settings import Config, parse_config
from vdl.config.values import Address
from vdl.kafka.security.client_settings import ClientSettings
from vdl.kafka.wire.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def verdicts(findings: object) -> dict[str, Verdict]:
    return {finding.name: finding.verdict for finding in findings}  # type: ignore[attr-defined]


# --- a machine ------------------------------------------------------------------------------------


def test_free_port_is_ok_and_a_used_one_fails_unless_the_server_runs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        closed = '[http]\nlisten = "off"\n[admin]\nlisten = "off"\n'
        text = f'{closed}[[listeners]]\nlisten = "127.0.0.1:{port}"\n'
        config = parse_config(text, source="test", folder=tmp_path)
        name = f"port {port}"
        assert verdicts(ports(config, is_running=False))[name] is Verdict.FAIL
        assert verdicts(ports(config, is_running=True))[name] is Verdict.OK
    assert verdicts(ports(config, is_running=False))[name] is Verdict.OK


MOUNTS = """\
20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
21 20 0:5 / /mnt/nfs rw - nfs4 server:/x rw
22 20 0:6 / /mnt/with\\040space rw - tmpfs tmpfs rw
23 20 8:2 / /fast rw - xfs /dev/sdb rw,nobarrier
24 20 0:7 / /mnt/over rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("folder", "verdict"),
    [
        ("/data", Verdict.OK),
        ("/mnt/nfs/a/b", Verdict.FAIL),
        ("/mnt/nfsx", Verdict.OK),
        ("/mnt/with space/x", Verdict.WARN),
        ("/fast", Verdict.FAIL),
        ("/mnt/over", Verdict.WARN),
    ],
)
def test_file_system_is_judged_by_its_mount(folder: str, verdict: Verdict) -> None:
    assert filesystem(Path(folder), MOUNTS).verdict is verdict


@pytest.mark.parametrize(
    ("times", "verdict"),
    [
        ([1.0] * 200, Verdict.OK),
        ([1.0] * 190 + [100.0] * 10, Verdict.WARN),
        ([300.0] * 7, Verdict.FAIL),
    ],
)
def test_sync_speed_is_judged_by_median_and_slowest(times: list[float], verdict: Verdict) -> None:
    assert judged_syncs(times).verdict is verdict


def test_disk_of_a_folder_to_come_is_that_of_its_parent(tmp_path: Path) -> None:
    found = verdicts(disk(tmp_path / "a" / "b"))
    assert {"file system", "free space", "sync speed"} <= found.keys()
    assert list(tmp_path.iterdir()) == []


def test_data_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert verdicts(disk(tmp_path / "file"))["data directory"] is Verdict.FAIL


def test_configuration_with_a_mistake_fails(tmp_path: Path) -> None:
    path = tmp_path / "vdl.toml"
    path.write_text("colour = 1\n")
    config, finding = configuration(path, None)
    assert config is None
    assert finding.verdict is Verdict.FAIL
    assert "colour" in finding.text


def test_machine_findings_name_each_part_once(tmp_path: Path) -> None:
    found = [finding.name for finding in machine_findings(Config(data_dir=tmp_path), None)]
    wanted = {"open files", "memory", "clock", "python", "libraries", "part in C", "sync speed"}
    assert wanted <= set(found)
    assert len(found) == len(set(found))
    assert not is_in_use(tmp_path)


def test_clock_is_looked_at_and_not_set() -> None:
    assert clock().verdict in {Verdict.OK, Verdict.WARN, Verdict.SKIP}


def test_command_for_a_machine_exits_with_the_worst_verdict(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--server-config", str(tmp_path / "no"), "--json"])
    found = json.loads(done.output)
    assert found["failed"] == 1
    assert found["findings"][0]["next_step"]


# --- a cluster ------------------------------------------------------------------------------------


def test_port_without_a_server_has_a_reason_and_a_step() -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
    found = probe(Address("127.0.0.1", port), ClientSettings())
    assert "refused" in found.problem.lower()
    assert found.step.startswith("start the server")
    unknown = probe(Address("no-such-host.invalid", 1), ClientSettings())
    assert "name" in unknown.problem


def test_certificates_are_judged_by_their_end() -> None:
    ends = {
        1: (NOW - timedelta(hours=1), Verdict.FAIL),
        2: (NOW + timedelta(days=10), Verdict.WARN),
        3: (NOW + timedelta(days=100), Verdict.OK),
    }
    probes = [Probe(Address("h", port), ends=end) for port, (end, _) in ends.items()]
    found = verdicts(certificates([*probes, Probe(Address("h", 9))], NOW))
    assert found == {f"certificate h:{port}": verdict for port, (_, verdict) in ends.items()}


def test_servers_with_different_versions_are_a_warning() -> None:
    same = [Probe(Address("h", port), versions={0: (0, 9), 68: (0, 1)}) for port in (1, 2)]
    assert verdicts(versions(same)) == {"API versions": Verdict.OK}
    same[1].versions = {0: (0, 9)}
    assert verdicts(versions(same)) == {"API versions": Verdict.WARN}


def metadata(*rows: MetadataResponsePartition, servers: int = 3) -> MetadataResponse:
    brokers = [MetadataResponseBroker(number) for number in range(servers)]
    return MetadataResponse(
        brokers=brokers, topics=[MetadataResponseTopic(name="t", partitions=list(rows))]
    )


def row(leader: int, replicas: int, in_sync: int) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        leader_id=leader, replica_nodes=[*range(replicas)], isr_nodes=[*range(in_sync)]
    )


@pytest.mark.parametrize(
    ("of", "wanted"),
    [
        (metadata(row(1, 3, 3)), {"leaders": Verdict.OK, "replicas": Verdict.OK}),
        (metadata(row(-1, 3, 3)), {"leaders": Verdict.FAIL, "replicas": Verdict.OK}),
        (metadata(row(1, 3, 2)), {"leaders": Verdict.OK, "replicas": Verdict.WARN}),
        (
            metadata(row(1, 1, 1)),
            {"leaders": Verdict.OK, "replicas": Verdict.OK, "copies": Verdict.WARN},
        ),
        (metadata(row(1, 1, 1), servers=1), {"leaders": Verdict.OK, "replicas": Verdict.OK}),
    ],
)
def test_partitions_are_judged_by_leader_and_replicas(
    of: MetadataResponse, wanted: dict[str, Verdict]
) -> None:
    assert verdicts(partitions(of)) == wanted


@pytest.mark.parametrize(
    ("server_ms", "verdict"),
    [(1_005, Verdict.OK), (900, Verdict.OK), (5_000, Verdict.WARN), (-70_000, Verdict.FAIL)],
)
def test_clocks_are_judged_by_what_no_delay_explains(server_ms: float, verdict: Verdict) -> None:
    """The record was stamped between the times 1,000 and 1,010 of this machine."""
    assert clocks(server_ms, 1_000, 1_010).verdict is verdict
