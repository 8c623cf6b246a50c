"""Errors of a test cluster."""

from __future__ import annotations

from vdl.errors import VdlError


class ClusterError(VdlError):
    """Raised if the cluster cannot do what was requested; the text says why."""
