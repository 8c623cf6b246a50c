"""Imported packages are installed by the set-up of the stage that imports them."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
STAGES = tomllib.loads((ROOT / ".ci" / "budgets.toml").read_text())["stage"]
OURS = {"ids", "raft", "rpc", "segments", "vdl", "examples", "tests"}
OF_THE_PIPELINE = (
    "vdl/pipeline",
    "vdl/commands/pipeline.py",
    "examples/pipeline",
    "tests/pipeline",
)
DRIVERS = "tests/clients/drivers"
"""Programs that run in their own environments, with the client that they drive."""


def python_files(*folders):
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def is_in(path, *places):
    return any(path.is_relative_to(ROOT / place) for place in places)


def outside_imports(path):
    """Yield (line, module) of each import of a third-party module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module]
        for module in modules:
            top = module.partition(".")[0]
            if top in OURS | sys.stdlib_module_names | {"_typeshed"}:
                continue
            if not path.with_name(f"{top}.py").exists():
                yield node.lineno, module


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def required(extra):
    """Return the distributions that pyproject.toml names for a server and for one extra."""
    rows = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"][extra]
    return {normal(re.match(r"[A-Za-z0-9._-]+", row)[0]) for row in rows}


def missing_without(extra, paths, *, but=()):
    """Return the imports that neither a server's dependencies nor the extra provide."""
    named, providers = required(extra), packages_distributions()
    return [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in paths
        for line, module in outside_imports(path)
        if module.partition(".")[0] not in but
        and not named & {normal(name) for name in providers.get(module.partition(".")[0], [])}
    ]


def test_extras_dev_has_all_but_what_the_pipeline_imports():
    """Each stage but `pipeline` passes with only the `dev` extra installed."""
    paths = [
        path
        for path in python_files(*sorted(OURS), ".ci")
        if not is_in(path, *OF_THE_PIPELINE, DRIVERS)
    ]
    assert len(paths) > 1000
    assert missing_without("dev", paths) == []


def test_extras_types_are_checked_with_the_dev_extra_alone():
    """mypy reports the same with the pipeline's extras and without: it skips their packages."""
    skipped = {
        module.removesuffix(".*")
        for override in PROJECT["tool"]["mypy"]["overrides"]
        if override.get("follow_imports") == "skip"
        for module in override["module"]
    }
    checked = python_files(*PROJECT["tool"]["mypy"]["files"])
    assert missing_without("dev", checked, but=skipped) == []


def test_stages_name_a_set_up_that_make_knows():
    """A stage that relies on another's set-up passes beside it and fails by itself."""
    targets = sorted({stage["setup"] for stage in STAGES})
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)


def test_stages_of_the_pipeline_alone_install_spark():
    """The pipeline's stage has its own environment, so that others detect a missing dependency."""
    of_spark = {stage["name"] for stage in STAGES if stage["setup"] == "setup-pipeline"}
    assert of_spark == {"pipeline"}
