"""One-time setup in each of Spark's Python processes."""

from __future__ import annotations

import gc

import pytest

from vdl.pipeline.worker import exempt_modules_from_collection


def test_modules_are_exempt_from_collection_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage is collected before the remaining objects are exempt.

    Later tasks make garbage of their own, which must not be kept.
    """
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    exempt_modules_from_collection.cache_clear()
    for _ in range(3):
        exempt_modules_from_collection()
    assert done == ["collect", "freeze"]
