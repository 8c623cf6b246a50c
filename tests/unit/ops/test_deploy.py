"""Deployment files work: every shipped configuration parses, and documented values are true."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from vdl.config.listeners import LISTENER_KEYS
from vdl.config.settings import KEYS, Config, load_config, parse_config
from vdl.server.process import stop_seconds_max

ROOT = Path(__file__).resolve().parents[3]
LISTENERS = {f"listeners.{key}" for key in LISTENER_KEYS}
SHIPPED = sorted((ROOT / "deploy").rglob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_deploy_configuration_shipped_is_accepted(path):
    """A file that users are advised to copy is accepted by `vdl serve --check`."""
    config = load_config(path)
    assert sorted(config.seeds) == [1, 2, 3]
    assert config.peer is not None


def commented_defaults():
    """Return (table, line) of each commented-out setting of the annotated file."""
    table = ""
    for line in (ROOT / "deploy" / "vdl.toml").read_text().splitlines():
        heading = re.fullmatch(r"(?:# )?\[([a-z.]+)\]", line)
        if heading:
            table = heading[1]
        elif setting := re.match(r'# ("?[a-z_.]+"? = .+)$', line):
            yield table, setting[1]


def test_deploy_annotated_defaults_are_the_real_defaults():
    """Uncommenting a line of the annotated file changes nothing."""
    found = list(commented_defaults())
    assert len(found) > 25
    for table, setting in found:
        text = f"[{table}]\n{setting}\n"
        config = parse_config(text, source=text, folder=Path.cwd())
        for layer in ("kafka", "host", "store", "log", "coordinators"):
            assert getattr(config, layer) == getattr(Config(), layer), text


def test_deploy_annotated_file_names_only_known_keys():
    """Every commented setting is a known key, and there are enough of them to be useful."""
    named = {
        f"{table}.{setting.partition(' =')[0]}".replace('"', "")
        for table, setting in commented_defaults()
    }
    assert named <= set(KEYS)


def documented_keys():
    """Return {key: default as written in a file, empty where there is none}."""
    text = (ROOT / "docs" / "configure.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| (?:`([^`|]+)`)?[^|]*\| [^|]*\|$", text, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a key stands there twice"
    return dict(rows)


def test_documented_keys_are_all_there_are():
    """None is missing, none is invented."""
    assert set(documented_keys()) == set(KEYS) | LISTENERS | {"cluster.seeds"}


def test_documented_defaults_are_the_real_defaults():
    """Writing every default into a file gives the same server as no file."""
    documented = {key: default for key, default in documented_keys().items() if default}
    listener = {key: documented.pop(key) for key in LISTENERS & set(documented)}
    lines = []
    for key, default in documented.items():
        table, _, name = key.partition(".")
        lines.append(f'{table}."{name}" = {default}')
    lines.append("[[listeners]]")
    lines += [f"{key.partition('.')[2]} = {default}" for key, default in listener.items()]
    config = parse_config("\n".join(lines), source="documented", folder=Path.cwd())
    silent = parse_config("", source="documented", folder=Path.cwd())
    assert replace(config, listeners=silent.listeners) == silent
    (found,), (default,) = config.listeners, silent.listeners
    assert (found.name, found.host, found.port) == (default.name, default.host, default.port)
    without = set(KEYS) - set(documented)
    assert without == {
        "peer.listen", "peer.advertise", "admin.advertise",
        "http.console_ca", "http.console_registry_login",
        "tls.certificate", "tls.key", "tls.ca", "tls.crl",
        "security.first_users",
        "security.delegation_token_key", "security.delegation_token_other_key",
    }  # fmt: skip


@pytest.mark.parametrize("transfer_stop", ["0s", "1200ms", "2s", "10s", "60s"])
def test_stop_is_not_given_up_before_its_leaderships_may_have_moved(transfer_stop):
    """A second is left to close the store, with any timeout for moving leaderships."""
    text = f'[raft]\ntransfer_stop = "{transfer_stop}"\n'
    config = parse_config(text, source="test", folder=Path.cwd())
    waited_seconds = config.host.transfer_stop_ms / 1_000
    assert stop_seconds_max(config) >= max(2, waited_seconds + 1)


def test_deploy_containers_have_no_right_that_they_do_not_need():
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    for line in ("read_only: true", 'cap_drop: ["ALL"]', "no-new-privileges:true"):
        assert line in compose


def test_deploy_supervisors_wait_until_a_stop_is_given_up():
    """A server is killed only when it has failed to stop by itself."""
    units = [unit.read_text() for unit in (ROOT / "deploy" / "systemd").glob("*.service")]
    compose = (ROOT / "deploy" / "compose.yaml").read_text()
    patience = [
        *(int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)[1]) for unit in units),
        int(re.search(r"^ +stop_grace_period: (\d+)s$", compose, re.MULTILINE)[1]),
    ]
    assert min(patience) > stop_seconds_max(Config()) + 1


def test_deploy_unit_of_several_servers_differs_in_what_is_of_one_server():
    """Both units have the same rights and limits; the template names each server's files."""
    folder = ROOT / "deploy" / "systemd"
    single, template = (
        {line for line in (folder / name).read_text().splitlines() if not line.startswith("#")}
        for name in ("vdl.service", "vdl@.service")
    )
    own = {line for line in template - single if "%i" in line}
    assert template - single - own == {"Slice=vdl.slice"}
    assert {line.split("=")[0] for line in own} == {
        line.split("=")[0] for line in single - template
    }
