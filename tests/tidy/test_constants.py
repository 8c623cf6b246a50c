"""No dead constants: each module constant is read in its module, imported, or looked up by name.

A limit that is no longer read looks like one in force.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("ids", "raft", "segments", "rpc", "vdl", "tests", "examples", ".ci")
GENERATED = ("vdl/kafka/wire", "rpc/proto")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def modules():
    """Return {module: tree} of every Python file of this project that is not generated."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(GENERATED):
                dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                found[dotted] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def constants(tree):
    """Yield the upper-case names that a module's top level assigns, with the line."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id):
                    yield name.id, node.lineno


def dead(trees):
    """Return `module:line: name` of each unused constant."""
    read, imported, anywhere = {}, set(), set()
    for module, tree in trees.items():
        names = read[module] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
            elif isinstance(node, ast.ImportFrom):
                imported |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Attribute):
                anywhere.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                anywhere.add(node.value)
    return [
        f"{module}:{line}: {name}"
        for module, tree in trees.items()
        for name, line in constants(tree)
        if name not in read[module] and name not in anywhere and (module, name) not in imported
    ]


def test_source_has_no_dead_constants():
    """An unused constant has to be removed."""
    assert dead(modules()) == []


def test_dead_constant_is_found_and_a_used_one_is_not():
    """Used: read in its module, imported, an attribute of the module, or named by a string."""
    trees = {
        "a": ast.parse(
            "DEAD = 1\nREAD: int = 2\nTAKEN = ASKED = BY_NAME = READ\n_GONE, _ = 1, 2\n"
        ),
        "b": ast.parse("from a import TAKEN\nimport a\na.ASKED\ngetattr(a, 'BY_NAME')\n"),
        "c": ast.parse("DEAD = 3\nprint(DEAD)\n"),
    }
    assert dead(trees) == ["a:1: DEAD", "a:4: _GONE"]
