"""What is deployed can be used: every shipped configuration parses, and tells the truth."""

import re
from pathlib import Path

import pytest

from vdl.config import KEYS, Config, load_config, parse_config

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = sorted((ROOT / "deploy").rglob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_deploy_configuration_shipped_is_accepted(path):
    """A file we tell people to copy is one that `vdl serve --check` accepts."""
    config = load_config(path)
    assert sorted(config.seeds) == [1, 2, 3]
    assert config.peer is not None


def commented_defaults():
    """(table, line) of each commented-out setting of the annotated file."""
    table = ""
    for line in (ROOT / "deploy" / "vdl.toml").read_text().splitlines():
        heading = re.fullmatch(r"(?:# )?\[([a-z.]+)\]", line)
        if heading:
            table = heading[1]
        elif setting := re.match(r"# ([a-z_.]+ = .+)$", line):
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
    """And it names enough of them to be worth reading."""
    named = {f"{table}.{setting.split(' =')[0]}" for table, setting in commented_defaults()}
    assert named <= set(KEYS)
