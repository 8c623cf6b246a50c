"""What is wrong with one value, and what is wrong with the registry.

The first is the reason of a dead letter. The second stops a job: it may be over in a minute.
"""

from __future__ import annotations

from vdl.pipeline.errors import PipelineError


class ValueUnreadable(Exception):
    """The value cannot be read, now and later; the text says why."""


class RegistryFailed(PipelineError):
    """The registry does not answer, or refuses to."""
