"""Contents of the wheel: exactly this project's packages, all of them, and nothing else."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP_LEVEL = {"ids", "raft", "rpc", "segments", "vdl"}
NOT_SHIPPED = {"vdl.kafka.codegen"}
"""Tools of the repository, inside a package."""


def listed_packages():
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["tool"]["setuptools"]["packages"]


def test_wheel_package_list_is_every_package():
    """A package that is not listed would be missing only after installation."""
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for name in TOP_LEVEL
        for path in (ROOT / name).rglob("__init__.py")
    }
    assert sorted(folders - NOT_SHIPPED) == sorted(listed_packages())


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    return names_in_wheel(tmp_path_factory.mktemp("wheel"), compiler="")


def names_in_wheel(folder, *, compiler):
    """Return the names in a wheel built from a copy of the tracked tree, which stays clean."""
    source = folder / "source"
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    for name in listing.stdout.decode().split("\0"):
        if not name or not (ROOT / name).is_file() or name.startswith(("tests/", "docs/")):
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    # With the setuptools of this environment: nothing is downloaded.
    command += [
        "--disable-pip-version-check",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    environment = dict(os.environ) | ({"CC": compiler} if compiler else {})
    subprocess.run(command, check=True, cwd=folder, env=environment)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_top_level_is_ours_only(wheel_names):
    """Installing VDL must not add a `tests` or `deploy` package beside other projects'."""
    top = {name.split("/")[0] for name in wheel_names}
    dist_info = {name for name in top if name.endswith(".dist-info")}
    assert len(dist_info) == 1
    assert top - dist_info == TOP_LEVEL


def test_wheel_contents_have_licence_and_no_tools(wheel_names):
    """Licence and notice are shipped with the code; repository tools are not."""
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
    assert any(name.endswith("licenses/NOTICE") for name in wheel_names)
    assert not any(name.startswith("vdl/kafka/codegen/") for name in wheel_names)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler is here")
@pytest.mark.parametrize("part", ["vdl/records/_walk", "segments/io/_ring"])
def test_wheel_with_a_compiler_has_the_parts_in_c(wheel_names, part):
    """One file serves each Python from 3.11 on; its source and stub are not shipped."""
    files = [name for name in wheel_names if name.startswith(f"{part}.")]
    assert len(files) == 1
    assert files[0].startswith(f"{part}.abi3.")


def test_wheel_without_a_compiler_is_built_and_whole(tmp_path):
    """All C code has a Python equivalent."""
    names = names_in_wheel(tmp_path, compiler="/bin/false")
    assert not any("/_walk" in name or "/_ring" in name for name in names)
    assert "vdl/records/walk.py" in names
