"""Seeds that the current code has passed.

The stage `worlds` runs them; `mutants`, whose findings count only in worlds that the unmutated code
passes, need not run them again. The note covers everything that determines a seed's run: with other
code, or another Python, it is not valid.
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
    """Record that the code below `root` passes these seeds and no others."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"code": _digest(root), "seeds": sorted(seeds)}), encoding="utf-8")


def passed(*, root: Path = ROOT, file: Path = NOTE) -> frozenset[int]:
    """Return the recorded seeds if the code below `root` is unchanged; otherwise none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return frozenset()
    return frozenset(found["seeds"] if found["code"] == _digest(root) else ())


def _digest(root: Path) -> str:
    """Return a digest of every module of the packages, by name, and of the Python version."""
    digest = sha256(sys.version.encode())
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in {".py", ".so"}:
                data = path.read_bytes()
                digest.update(f"\n{path.relative_to(root)} {len(data)}\n".encode())
                digest.update(data)
    return digest.hexdigest()
