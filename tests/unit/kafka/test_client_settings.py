"""Settings file that secures the connections of VDL's own programs."""

import ast
import inspect

import pytest

from vdl.commands.cluster.admin_requests import admin_settings
from vdl.commands.cluster.connection import resolve
from vdl.commands.servers.replica_set import make_replica_set
from vdl.commands.servers.secure_set import secure_replica_set
from vdl.kafka.security import client_settings
from vdl.kafka.security.client_settings import KNOWN, ClientSettingsError, read_client_settings
from vdl.kafka.security.protocol import SecurityProtocol


def read(tmp_path, *lines):
    file = tmp_path / "client.properties"
    file.write_text("\n".join(lines), encoding="utf-8")
    return read_client_settings(file)


@pytest.mark.parametrize(
    "line",
    [
        "security.protocl=SSL",
        "ssl.ca.locaton=/a",
        "sasl.user=a",
        "vdl.admin.certificate=a",
    ],
)
def test_setting_of_security_that_is_unknown_is_refused_by_name(tmp_path, line):
    """If it were ignored, the connection would be less secure than the file says."""
    with pytest.raises(ClientSettingsError, match=line.partition("=")[0]):
        read(tmp_path, line)


def test_settings_of_other_clients_are_passed_over(tmp_path):
    found = read(tmp_path, "security.protocol=SSL", "acks=all", "group.id=g", "sasl.jaas.config=x")
    assert found.protocol is SecurityProtocol.SSL


def test_names_that_are_read_are_the_known_ones():
    tree = ast.parse(inspect.getsource(client_settings.parse_client_settings))
    asked = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "get"
    }
    assert asked == KNOWN


def test_settings_that_a_secure_set_writes_are_taken(tmp_path):
    """`vdl status --config` accepts the file that `vdl up --secure` wrote."""
    made = make_replica_set(tmp_path / "set", count=1, base_port=21_000, is_secure=True)
    secure_replica_set(made)
    assert read_client_settings(made.client_file).protocol is SecurityProtocol.SASL_SSL


def test_file_that_a_secure_set_writes_opens_kafka_and_admin_ports(tmp_path):
    """`vdl member --config` accepts it, too, with the lines for clients in Java."""
    made = make_replica_set(tmp_path / "set", count=1, base_port=21_000, is_secure=True)
    secure_replica_set(made)
    where = resolve(profile=None, bootstrap="127.0.0.1:21000", config=made.client_file)
    found = admin_settings(where)
    assert found.protocol is SecurityProtocol.SASL_SSL
    assert found.user == "admin"
    assert found.admin_files().certificate.name == "admin.pem"
