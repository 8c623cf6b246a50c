"""Checks of the source: no unfinished markers, no dead code, descriptive test names."""

import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("vdl/kafka/wire", "rpc/proto")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
CODE_IN_COMMENT = re.compile(
    r"#\s*(?:"
    r"(?:def|class|async def) \w+.*:$"
    r"|(?:if|elif|while|for|with|try|except)\b.*:$"
    r"|return [\w.]+\(.*\)$"
    r"|(?:from [\w.]+ )?import \w+$"
    r"|[\w.]+ = [\w.]+\(.*\)$"
    r"|self\.\w+ [-+]?= .*$"
    r"|print\(.*\)$"
    r")"
)


def written_files():
    """Return every Python file of this project that is not generated."""
    folders = ("ids", "raft", "segments", "rpc", "vdl", "tests", "examples", ".ci")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if not str(path.relative_to(ROOT)).startswith(GENERATED)]


FILES = written_files()
IDS = [str(path.relative_to(ROOT)) for path in FILES]


@cache
def comments(path):
    with tokenize.open(path) as file:
        tokens = tokenize.generate_tokens(io.StringIO(file.read()).readline)
        return [
            (token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT
        ]


def test_source_has_no_unfinished_words():
    """Unfinished work belongs in an issue."""
    found = [
        f"{name}:{number}"
        for path, name in zip(FILES, IDS, strict=True)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert found == []


def test_source_has_no_commented_out_code():
    """Version control keeps old code."""
    found = [
        f"{name}:{number}: {text}"
        for path, name in zip(FILES, IDS, strict=True)
        for number, text in comments(path)
        if CODE_IN_COMMENT.match(text)
    ]
    assert found == []


@pytest.mark.parametrize("package", ["ids", "raft", "segments", "rpc", "vdl"])
def test_source_modules_begin_with_their_job(package):
    """Each module's docstring states its purpose."""
    bare = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / package).rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith("rpc/proto")
        and not re.match(r'(?:#[^\n]*\n)*(?:r?""")', path.read_text(encoding="utf-8"))
    ]
    assert bare == []


def test_test_names_say_subject_condition_outcome():
    """Names have the form `test_<subject>_<condition>_<outcome>`: at least three words."""
    name_of = re.compile(r"^\s*(?:async )?def (test_\w+)\(", re.MULTILINE)
    short = [
        f"{name}: {test}"
        for path, name in zip(FILES, IDS, strict=True)
        if name.startswith("tests/")
        for test in name_of.findall(path.read_text(encoding="utf-8"))
        if test.count("_") < 3
    ]
    assert short == []
