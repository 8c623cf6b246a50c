"""Servers that join and leave a cluster, as an operator adds, watches and removes them."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

from vdl.commands.app import run_app

SECONDS_MAX = 240.0
POLL_SECONDS = 0.2
INTERRUPTED = 130


def vdl(bootstrap: str, *words: str) -> tuple[int, str, str]:
    """Run a command. Return its exit code, output and errors. Raises KeyboardInterrupt."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = run_app([*words, "--bootstrap", bootstrap])
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code, out.getvalue(), error.getvalue()


def members(bootstrap: str) -> dict[int, dict[str, object]]:
    """Return the servers in `vdl member list`, by id; none if no server answers."""
    code, out, _ = vdl(bootstrap, "member", "list", "--json")
    return {one["server_id"]: one for one in json.loads(out)["members"]} if not code else {}


def catalog_leader(bootstrap: str) -> int:
    """Return the server that leads the catalog, -1 for none."""
    code, out, error = vdl(bootstrap, "status", "--json")
    assert out, (code, error)
    found = next(one["leader"] for one in json.loads(out)["groups"] if one["name"] == "catalog")
    return int(found)


def until(
    condition: Callable[[], object], what: str, *, poll_seconds: float = POLL_SECONDS
) -> None:
    """Wait until `condition` holds; `what` describes that it never does."""
    deadline = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(poll_seconds)
