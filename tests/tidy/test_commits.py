"""Subjects of commits: `area: imperative`, at most 72 characters."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SINCE = "2026-11-30T00:00:00Z"
"""Subjects of older commits are not checked."""
SUBJECT_CHARS_MAX = 72
SUBJECT = re.compile(r"(?P<area>[a-z0-9][a-z0-9 ,./_-]*): (?P<verb>[a-z-]+)\b")
NOT_IMPERATIVE = re.compile(r".+(?:ing|ed|[^s]s)")
IMPERATIVE = frozenset({"bring", "embed", "feed", "focus", "need", "seed", "speed"})
"""Imperatives that end like another form of a verb."""


def is_fine(subject: str) -> bool:
    """Return True if a subject names an area and begins with a verb in the imperative."""
    found = SUBJECT.match(subject)
    if found is None or len(subject) > SUBJECT_CHARS_MAX:
        return False
    verb = found["verb"]
    return verb in IMPERATIVE or not NOT_IMPERATIVE.fullmatch(verb)


@pytest.mark.parametrize(
    ("subject", "fine"),
    [
        ("raft: count acknowledgements by term", True),
        ("kafka, rpc: pass the principal on", True),
        ("raft: counts acknowledgements by term", False),
        ("raft: counting acknowledgements", False),
        ("raft: counted acknowledgements", False),
        ("Count acknowledgements", False),
        ("raft: " + "count " * 12, False),
    ],
)
def test_subject_is_judged(subject: str, fine: bool) -> None:
    """The rule of this module, by example."""
    assert is_fine(subject) is fine


def test_subjects_of_new_commits_are_imperative_and_short() -> None:
    """Merges are excluded. Without git history, as in an archive, the test is skipped."""
    command = ["git", "log", "--no-merges", "--since", SINCE, "--format=%s"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git history here")
    assert [line for line in done.stdout.splitlines() if not is_fine(line)] == []
