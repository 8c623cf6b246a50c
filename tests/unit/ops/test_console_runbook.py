"""The console's page "What is wrong" says of each problem what the runbook says.

`python -m tests.unit.ops.test_console_runbook` writes the file that the console has of it.
"""

from __future__ import annotations

import json
import re

from tests.unit.ops.test_deploy import ROOT
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS

FILE = ROOT / "vdl" / "console" / "static" / "runbook.json"
KINDS = {**SERVER_KINDS, **CLUSTER_KINDS}
_PAGE = re.compile(r"^### (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_PARAGRAPH = re.compile(
    r"^\* \*\*(It means|Do)\*\* (.*?)(?=^\* |\n\n|\Z)", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[([^]]*)\]\(([^)]*)\)")


def generated() -> str:
    """Return the text of the file: kind → {"means", "do"}, links of kinds as [[kind]]."""
    text = (ROOT / "deploy" / "runbook.md").read_text()
    names = {"It means": "means", "Do": "do"}
    pages = {
        kind: {names[name]: _plain(body) for name, body in _PARAGRAPH.findall(page)}
        for kind, page in _PAGE.findall(text)
        if kind in KINDS
    }
    return json.dumps(dict(sorted(pages.items())), indent=1, ensure_ascii=False) + "\n"


def _plain(text: str) -> str:
    """Return a paragraph on one line. Links to kinds stay links, others become their words."""

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        return f"[[{words}]]" if words in KINDS and target == f"#{words}" else words

    return _LINK.sub(link, " ".join(text.split())).replace("*", "")


def test_console_runbook_is_that_of_the_document() -> None:
    """The file is current: `python -m tests.unit.ops.test_console_runbook`."""
    assert FILE.read_text() == generated()


def test_console_runbook_has_a_next_step_for_each_kind() -> None:
    """Each word of `vdl status` has what it means and what to do."""
    pages = json.loads(FILE.read_text())
    assert set(pages) == set(KINDS)
    assert all(page.get("means") and page.get("do") for page in pages.values())


if __name__ == "__main__":
    FILE.write_text(generated())
