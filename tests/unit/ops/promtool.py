"""Prometheus' own checker: on the path, or taken out of Debian's package into `.cache`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.clients.go_program import CACHE

FETCH_SECONDS_MAX = 120
FILE = CACHE / "promtool" / "promtool"


def promtool() -> str | None:
    """Return the program; None if there is none."""
    return shutil.which("promtool") or (str(FILE) if FILE.exists() else None)


def fetch_promtool() -> None:
    """Fetch it where it is missing. Nothing is installed.

    Raises OSError, CalledProcessError, TimeoutExpired.
    """
    if promtool() is not None:
        return
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        folder = Path(name)
        try:
            _run(folder, "apt-get", "download", "-qq", "prometheus")
        except subprocess.CalledProcessError:
            if os.environ.get("CI") != "true" or os.geteuid() != 0:
                raise
            _run(folder, "apt-get", "update", "-qq")  # a new machine has no lists
            _run(folder, "apt-get", "download", "-qq", "prometheus")
        (package,) = folder.glob("*.deb")
        _run(folder, "dpkg-deb", "--extract", str(package), "content")
        FILE.parent.mkdir(exist_ok=True)
        (folder / "content" / "usr" / "bin" / "promtool").replace(FILE)


def _run(folder: Path, *command: str) -> None:
    subprocess.run(
        command,
        cwd=folder,
        check=True,
        timeout=FETCH_SECONDS_MAX,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
