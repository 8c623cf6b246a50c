"""The patches themselves: each is well-formed and still applies."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.patches import (
    CITATION,
    HERE,
    PACKAGES,
    PatchError,
    apply,
    copy_packages,
    load,
    load_all,
    touched,
)
from tests.mutants.run import RECORDED_MAX, recorded
from tests.sim.passed import note, passed

MUTATIONS_MIN = 30
PATHS = sorted(HERE.rglob("*.patch"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Return a copy of the production code, without bytecode."""
    tree = tmp_path_factory.mktemp("clean")
    copy_packages(HERE.parents[1], tree)
    return tree


def test_mutations_are_many_and_named_once():
    """RELIABILITY 5: at least 25 bugs planted on purpose."""
    mutations = load_all()
    assert len(mutations) >= MUTATIONS_MIN
    assert len({mutation.name for mutation in mutations}) == len(mutations)
    assert [mutation.number for mutation in mutations] == list(range(1, len(mutations) + 1))


def test_recorded_seeds_are_of_mutations_that_exist():
    """Most mutations have seeds that showed them; the others are left to the full search."""
    seeds = recorded()
    assert set(seeds) <= {mutation.name for mutation in load_all()}
    assert len(seeds) >= MUTATIONS_MIN
    assert [name for name, found in seeds.items() if not 1 <= len(found) <= RECORDED_MAX] == []


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_patch_says_its_rule_and_applies(path, clean, tmp_path):
    """A sentence with the broken rule; then a diff that applies to the current code."""
    mutation = load(path)
    assert mutation.sentence.endswith(".")
    assert CITATION.search(mutation.sentence), "no rule is cited"
    changed = touched(mutation)
    assert changed
    for name in changed:
        assert name.startswith(tuple(f"{package}/" for package in PACKAGES))
        assert not name.startswith(("vdl/sim/", "vdl/check/")), "the judge is not on trial"
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((clean / name).read_bytes())
    apply(mutation, tmp_path)
    for name in changed:
        ast.parse((tmp_path / name).read_text(encoding="utf-8"))


def test_head_may_name_worlds_of_a_kind_that_there_is(tmp_path):
    """The head may also name a kind of worlds, and why a world without faults shows the bug."""
    path = tmp_path / "07-some-bug.patch"
    path.write_text("A bug (§5).\nWorlds: power\nQuiet: why\n--- a/raft/log.py\n")
    mutation = load(path)
    assert (mutation.worlds, mutation.quiet) == ("power", "why")
    for head in ("Worlds: nowhere", "Worlds: power\nWorlds: damage", "Seeds: 1"):
        path.write_text(f"A bug (§5).\n{head}\n--- a/raft/log.py\n")
        with pytest.raises(PatchError):
            load(path)


def test_note_of_passed_seeds_is_of_this_code_alone(clean, tmp_path):
    """Other code is not assumed to pass any seed."""
    tree, file = tmp_path / "tree", tmp_path / "results" / "passed.json"
    copy_packages(clean, tree)
    assert passed(root=tree, file=file) == frozenset()
    note([3, 1], root=tree, file=file)
    assert passed(root=tree, file=file) == {1, 3}
    module = tree / "raft" / "node.py"
    assert module.exists()
    module.write_bytes(module.read_bytes() + b"\n")
    assert passed(root=tree, file=file) == frozenset()
    file.write_text("{")
    assert passed(root=tree, file=file) == frozenset()
