"""`vdl config explain` says of the file's keys what docs/configure.md says.

`python -m tests.unit.ops.test_explained_keys` writes the file that the package has of it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.unit.ops.test_deploy import LISTENERS, ROOT
from vdl.commands.resources.config_layers import documented, explain_server_key, range_of
from vdl.config.settings import KEYS

FILE = ROOT / "vdl" / "config" / "keys.json"
_ROW = re.compile(r"^\| `([a-z0-9_.]+)` \| ([^|]*) \| ?(.*?) ?\|$", re.MULTILINE)


def generated() -> str:
    """Return the text of the file: key → default and meaning."""
    text = (ROOT / "docs" / "configure.md").read_text()
    rows = {
        key: {"default": "" if default == "none" else _plain(default), "meaning": _plain(meaning)}
        for key, default, meaning in _ROW.findall(text)
        if key not in LISTENERS
    }
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def _plain(text: str) -> str:
    """Return a cell without links and code marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").strip()


def test_explained_keys_are_those_of_the_document() -> None:
    """The file in the package is current: `python -m tests.unit.ops.test_explained_keys`."""
    assert FILE.read_text() == generated()


def test_explained_keys_have_all_a_meaning() -> None:
    """No key of the file is left unexplained; names that speak for themselves have few words."""
    bare = {key for key in KEYS if not documented()[key]["meaning"]}
    assert bare <= {"admin.advertise", "listeners.key"}


def test_explained_key_has_its_range_in_the_parsers_words() -> None:
    """The range is what the parser says that refuses a wrong value."""
    assert range_of(KEYS["server.id"].parse) == "an integer from 1 to 32767"
    assert range_of(KEYS["log.level"].parse) == '"debug" or "info" or "warning" or "error"'
    assert range_of(KEYS["kafka.fetch.max.bytes"].parse) == "a size from 1KiB to 2147483647 bytes"
    assert all(range_of(key.parse) for key in KEYS.values())


def test_explained_key_is_found_without_its_table(tmp_path: Path) -> None:
    """A name of Kafka's is one in [kafka]; its value in a file is shown beside the default."""
    file = tmp_path / "vdl.toml"
    file.write_text('[kafka]\nfetch.max.bytes = "1MiB"\n')
    found = explain_server_key("fetch.max.bytes", file)
    assert found is not None
    assert (found.key, found.value, found.source) == (
        "kafka.fetch.max.bytes", "1048576", str(file),
    )  # fmt: skip
    assert found.default == '"55MiB"'
    unset = explain_server_key("raft.election_timeout", file)
    assert unset is not None
    assert unset.source == "the default"
    assert explain_server_key("no.such.key", None) is None


if __name__ == "__main__":
    FILE.write_text(generated())
