"""Errors of one value, and errors of the registry.

The first kind is the reason of a dead letter. The second kind stops a job: it may be transient.
"""

from __future__ import annotations

from vdl.pipeline.errors import PipelineError


class ValueUnreadable(Exception):
    """The value can never be read; the text says why."""


class RegistryFailed(PipelineError):
    """The registry does not respond, or refuses the request."""
