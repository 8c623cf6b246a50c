"""ARCHITECTURE.md names every room, and each room's README names what is in it."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS_MAX = 2_000
"""Maximum number of words of ARCHITECTURE.md, which every engineer reads first."""
LINES_MAX = 80
"""Maximum number of lines of a room's README."""
FIRST_LINES_MAX = 120
"""Maximum number of lines of README.md, which has every command."""


def section(path, title):
    """Return the text below a heading, up to the next heading of its level."""
    text = path.read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def named(table, folder):
    """Return the paths in the first column of a table; a pattern expands to its matches."""
    found = []
    for cell in re.findall(r"^\| (\[?`.*?) \|", table, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", cell):
            matches = sorted(folder.glob(name)) if "*" in name else [folder / name]
            found += [path.resolve() for path in matches] or [folder / name]
    return found


ARCHITECTURE = ROOT / "ARCHITECTURE.md"
ROOMS = named(section(ARCHITECTURE, "Rooms"), ROOT)
READMES = [room / "README.md" for room in ROOMS if (room / "README.md").exists()]


def packages():
    """Return the folders of Python files that are installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    names = project["tool"]["setuptools"]["packages"]
    return [ROOT / name.replace(".", "/") for name in names]


def test_architecture_is_short():
    assert len(ARCHITECTURE.read_text(encoding="utf-8").split()) <= WORDS_MAX


def test_first_page_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= FIRST_LINES_MAX


def test_architecture_names_only_what_exists():
    assert len(ROOMS) > 15
    assert [str(path) for path in ROOMS if not path.exists()] == []
    assert len(ROOMS) == len(set(ROOMS))


def test_architecture_names_every_file_of_every_package():
    """A row names the file itself or its room."""
    beside = {ROOT / "vdl" / "cli.py"}  # named in the row of `vdl/commands`
    files = [
        path
        for package in packages()
        for path in sorted(package.glob("*.py"))
        if path.name != "__init__.py"
    ]
    known = {*ROOMS, *beside}
    assert [str(path) for path in files if not known & {path, *path.parents}] == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_readme_of_a_room_names_what_is_in_it(readme):
    """The README names each folder and file of the room, and nothing that is missing."""
    folder = readme.parent
    table = section(readme, "Folders") or section(readme, "Files")
    known = set(named(table, folder))
    assert [str(path) for path in sorted(known) if not path.exists()] == []
    there = [
        path
        for path in sorted(folder.iterdir())
        if (path.suffix == ".py" and path.name not in {"__init__.py", "__main__.py"})
        or path in packages()
        or (path.is_dir() and folder.name == "tests" and not path.name.startswith(("_", ".")))
    ]
    text = readme.read_text(encoding="utf-8")
    assert [p.name for p in there if p not in known and f"`{p.name}`" not in text] == []
    assert len(text.splitlines()) <= LINES_MAX
