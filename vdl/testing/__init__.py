"""Clusters for tests: real servers that start in a second and fail on request.

`from vdl.testing import Cluster`. docs/testing.md explains it; `vdl test-server` is the same for
other languages. `vdl serve` loads nothing of it. The names here are loaded at their first use: the
pytest plug-in is a module of this package, and every pytest loads that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vdl.testing.cluster import Cluster
    from vdl.testing.errors import ClusterError

__all__ = ["Cluster", "ClusterError"]

_PLACES = {"Cluster": "vdl.testing.cluster", "ClusterError": "vdl.testing.errors"}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
