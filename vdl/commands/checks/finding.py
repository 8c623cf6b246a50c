"""Findings of `vdl doctor`: what was looked at, the verdict, and the next step.

Does not depend on what is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """Verdicts, from good to bad. SKIP: it could not be looked at here."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `step` is empty where nothing is to be done."""

    name: str
    verdict: Verdict
    text: str
    step: str = ""

    def document(self) -> dict[str, str]:
        """Return it for JSON."""
        return {
            "check": self.name,
            "verdict": self.verdict.value,
            "text": self.text,
            "next_step": self.step,
        }


def ok(name: str, text: str) -> Finding:
    """Return a finding with which all is well."""
    return Finding(name, Verdict.OK, text)


def skip(name: str, text: str, step: str = "") -> Finding:
    """Return a finding about what could not be looked at."""
    return Finding(name, Verdict.SKIP, text, step)


def warn(name: str, text: str, step: str) -> Finding:
    """Return a finding about what may become a problem."""
    return Finding(name, Verdict.WARN, text, step)


def fail(name: str, text: str, step: str) -> Finding:
    """Return a finding about what does not work."""
    return Finding(name, Verdict.FAIL, text, step)


def examples(names: list[str], most: int = 3) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
