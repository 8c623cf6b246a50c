"""ARCHITECTURE.md names what there is: every file, and no file that is gone."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def named_in_the_table():
    """Paths that the table of files names; one without a folder is beside the one before it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.partition("## Files")[2].partition("\n## ")[0]
    named = []
    for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        folder = Path()
        for name in re.findall(r"`([^`]+)`", cell):
            path = Path(name)
            if name.count("/") > name.endswith("/"):
                folder = path.parent
            else:
                path = folder / name
            named.append(path)
    return named


def test_architecture_names_only_what_exists():
    """A file that moved is named where it is, once."""
    named = named_in_the_table()
    assert len(named) > 30
    assert [str(path) for path in named if not (ROOT / path).exists()] == []
    assert len(named) == len(set(named))


def test_architecture_names_every_file_of_every_package():
    """Itself, or the folder it is in."""
    named = set(named_in_the_table())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = [
        path.relative_to(ROOT)
        for package in project["tool"]["setuptools"]["packages"]
        for path in sorted((ROOT / package.replace(".", "/")).glob("*.py"))
        if path.name != "__init__.py"
    ]
    assert [str(path) for path in files if not named & {path, *path.parents}] == []
