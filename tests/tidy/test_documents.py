"""Documents have no dead links: link targets, their headings, and named paths exist."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "deploy", "raft", "rpc", "segments", "vdl", "tests", "examples")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
)
RECORDS = {ROOT / "CHANGELOG.md", *(ROOT / "docs" / "lab").glob("*.md")}
"""Records of the past: files that they name may have been removed."""
CURRENT = [path for path in DOCUMENTS if path not in RECORDS]
PATH = re.compile(
    r"`((?:docs|deploy|raft|rpc|segments|vdl|tests|examples|ids|\.ci)/[\w./-]+\.(?:py|md|toml|c|proto))`"
)


@cache
def anchors(path):
    """Return the anchors of a document's headings, as GitHub forms them."""
    found = set()
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for head in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", head).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken(document):
    """Yield the links of a document whose target is missing."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_document_lead_somewhere(document):
    assert list(broken(document)) == []


@pytest.mark.parametrize("document", CURRENT, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_a_document_are_there(document):
    text = document.read_text(encoding="utf-8")
    assert [name for name in PATH.findall(text) if not (ROOT / name).exists()] == []
