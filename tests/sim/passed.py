"""Seeds that the code as it is now has passed.

The stage `worlds` lives them; `mutants`, whose findings count only in worlds that the unmutated
code passes, need not live them again. Whatever decides what a seed does is part of the note: with
any other code, or another Python, nothing is known.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from tests.mutants.patches import PACKAGES, ROOT

NOTE = ROOT / "build" / "test-results" / "passed-seeds.json"


def note(seeds: Iterable[int], *, root: Path = ROOT, file: Path = NOTE) -> None:
    """Remember that the code below `root` passes these and no others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"code": _digest(root), "seeds": sorted(seeds)}), encoding="utf-8")


def passed(*, root: Path = ROOT, file: Path = NOTE) -> frozenset[int]:
    """What was noted for the code below `root`, if it is still that code."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(found["seeds"] if found["code"] == _digest(root) else ())


def _digest(root: Path) -> str:
    """Of every module of the packages, by name, and of what runs them."""
    digest = sha256(sys.version.encode())
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in {".py", ".so"}:
                data = path.read_bytes()
                digest.update(f"\n{path.relative_to(root)} {len(data)}\n".encode())
                digest.update(data)
    return digest.hexdigest()
