"""Go programs of the tests, built once from their folder with the modules that it names."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.clients.driver import ROOT

CACHE = ROOT / ".cache" / "clients"
BUILD_SECONDS_MAX = 900
"""Time limit, including downloads over a slow line."""


def go_program(folder: Path) -> Path:
    """Return the program of the sources in `folder`.

    Build it if there is none of exactly these sources.
    """
    sources = sorted(path for path in folder.iterdir() if path.is_file())
    program = CACHE / f"go-{digest(sources)}"
    if not program.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f"{program.name}.partial")
        command = ["go", "build", "-o", str(partial), "."]
        environment = os.environ | {"GOFLAGS": "-buildvcs=false"}
        subprocess.run(command, check=True, timeout=BUILD_SECONDS_MAX, cwd=folder, env=environment)
        partial.rename(program)
    return program


def digest(sources: list[Path]) -> str:
    """Return a digest of the files."""
    made = hashlib.sha256()
    for source in sources:
        made.update(source.read_bytes())
    return made.hexdigest()[:12]
