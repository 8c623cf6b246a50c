"""The images of `deploy/` have in their context what they copy, and copy what they install."""

import re
import subprocess
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILES = sorted((ROOT / "deploy").rglob("Dockerfile"))


def copied(dockerfile):
    """Return the paths that an image copies from the context, not from another build stage."""
    rows = re.findall(r"^COPY +((?:--\S+ +)*)(.+)$", dockerfile.read_text(), re.MULTILINE)
    return [
        source
        for options, words in rows
        if "--from" not in options
        for source in words.split()[:-1]
    ]


def is_admitted(path):
    """Return True if .dockerignore leaves a path in the context.

    The last rule that matches the path, or a folder above it, decides.
    """
    places = [path, *(str(folder) for folder in Path(path).parents)]
    admitted = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        rule = line.removeprefix("!").removeprefix("**/")
        anywhere = "**/" in line
        if any(fnmatchcase(Path(place).name if anywhere else place, rule) for place in places):
            admitted = line.startswith("!")
    return admitted


def tracked(path):
    """Return the files of the repository there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", path], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return listed.stdout.split("\0")[:-1]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_image_context_has_every_file_that_is_copied(dockerfile):
    """A build fails at the first COPY of a file that .dockerignore excludes."""
    for source in copied(dockerfile):
        files = tracked(source)
        assert files, f"{source} is not in the repository"
        assert [file for file in files if not is_admitted(file)] == []


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_image_copies_all_that_is_installed(dockerfile):
    """Every top-level package, and every file that pyproject.toml reads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.partition(".")[0] for name in project["tool"]["setuptools"]["packages"]}
    read = {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"}
    assert packages | read <= set(copied(dockerfile))


def test_images_begin_with_what_a_digest_names():
    """A changed tag cannot change the build; all images begin with the same digest."""
    bases = {
        base
        for dockerfile in DOCKERFILES
        for base in re.findall(r"^FROM (\S+)", dockerfile.read_text(), re.MULTILINE)
    }
    (base,) = bases
    assert re.fullmatch(r"python:3\.11-[a-z-]+@sha256:[0-9a-f]{64}", base)


def test_what_is_locked_is_what_is_asked_for():
    """`make lock` was run since a dependency changed; pip accepts no file without a hash."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name, asked in (
        ("requirements.lock", project["project"]["dependencies"]),
        ("build.lock", project["build-system"]["requires"]),
    ):
        locked = {}
        for row in re.findall(
            r"^\S.*(?:\n +.*)*", (ROOT / "deploy" / name).read_text(), re.MULTILINE
        ):
            assert "--hash=sha256:" in row, row
            found = Requirement(row.partition("\\")[0])
            locked[canonicalize_name(found.name)] = str(found.specifier).removeprefix("==")
        for one in map(Requirement, asked):
            assert one.specifier.contains(locked[canonicalize_name(one.name)]), one


def test_image_context_has_nothing_that_is_not_copied():
    """Data, environments and the history stay out of it."""
    wanted = {source for dockerfile in DOCKERFILES for source in copied(dockerfile)}
    places = {path for path in tracked(".") if is_admitted(path)}
    assert [path for path in places if not wanted & {path, path.partition("/")[0]}] == []
    for path in ("data/1/server.pid", ".venv/bin/python", ".git/HEAD", "vdl/records/_walk.abi3.so"):
        assert not is_admitted(path)
