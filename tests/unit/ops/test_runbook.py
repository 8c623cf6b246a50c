"""The runbook has a page for each event that a server can log as a problem, and no other."""

import ast
import re
from functools import cache
from itertools import chain

import pytest

from tests.chaos.bad_night import BEGIN, END, FAULTS, PAGES, ROOT, RUNBOOK
from vdl.server.problem import CLUSTER_KINDS, SERVER_KINDS

SOURCES = ("raft", "rpc", "segments", "vdl")
NOT_SERVERS = {"pipeline", "sim"}
PARTS = ["* **You see** ", "* **It means** ", "* **Do** "]
TEXT = RUNBOOK.read_text(encoding="utf-8")


def section(title):
    _, _, rest = TEXT.partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0]


def pages():
    return dict(re.findall(r"^### (\S+)\n(.*?)(?=^### |\Z)", section("Pages"), re.M | re.S))


@cache
def events():
    """Return the warnings and errors in the code of servers: event -> file."""
    found = {}
    for path in chain.from_iterable((ROOT / source).rglob("*.py") for source in SOURCES):
        if NOT_SERVERS & set(path.parts):
            continue
        text = path.read_text(encoding="utf-8")
        if not re.search(r"\.(warning|error)\(", text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="warning" | "error"),
                    args=[ast.Constant(value=str(event)), *_],
                ) if re.fullmatch(r"[a-z_]+", event):
                    found[event] = path.relative_to(ROOT)
    return found


def words_seen():
    """Return word -> pages whose first part, which describes the symptoms, has it."""
    found = {}
    for name, text in pages().items():
        seen = text.partition("* **It means**")[0]
        for word in re.findall(r"`([a-z_]+)", seen):
            found.setdefault(word, set()).add(name)
    return found


def test_events_are_found_in_the_code():
    assert {"disk_full", "link_refused", "handshake_failed"} <= events().keys()


@pytest.mark.parametrize("event", sorted(events()))
def test_each_warning_and_error_has_a_page(event):
    assert event in words_seen(), f"{event} ({events()[event]}) has no page in {RUNBOOK.name}"


@pytest.mark.parametrize("kind", sorted(SERVER_KINDS | CLUSTER_KINDS))
def test_each_kind_of_problem_has_a_page_of_its_own_and_a_row(kind):
    assert kind in pages()
    assert f"| `{kind}` | " in section("At night")
    assert f"| [{kind}](#{kind}) |" in section("At night")


def test_rows_of_problems_are_of_kinds_there_are():
    rows = re.findall(r"^\| `([a-z_]+)` \|", section("At night"), re.M)
    assert sorted(rows) == sorted(SERVER_KINDS | CLUSTER_KINDS)


def test_each_alert_has_a_page():
    table = section("At night").partition("| alert |")[2].strip().split("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 5
    for row in rows:
        assert re.search(r"\[[^]]+\]\(#[a-z_-]+\) \|$", row), row


@pytest.mark.parametrize("name", sorted(pages()))
def test_each_page_says_what_is_seen_what_it_means_and_what_to_do(name):
    heads = re.findall(r"^\* \*\*[^*]+\*\* ", pages()[name], re.M)
    assert heads == PARTS


def test_pages_are_in_the_order_of_the_alphabet():
    assert list(pages()) == sorted(pages())


def test_links_lead_somewhere():
    heads = re.findall(r"^##+ (.+)$", TEXT, re.M)
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= anchors


def test_each_fault_of_the_bad_night_was_tried_and_each_word_of_it_has_a_page():
    table = TEXT.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table] == [f.title for f in FAULTS]
    known = words_seen().keys() | pages().keys()
    for row, fault in zip(table, FAULTS, strict=True):
        cells = row.split(" | ")[1:]
        words = set(re.findall(r"`([a-z_]+)`", " ".join(cells)))
        assert words <= known, row
        assert fault.problems | fault.events | fault.metrics <= words, row
        assert PAGES[fault.name] in pages()
        assert row.endswith(f" [{PAGES[fault.name]}](#{PAGES[fault.name]}) |")
