"""Topics that a command changes: those that names and patterns select, without internal ones."""

from __future__ import annotations

from collections.abc import Sequence

import click

from vdl.commands.cluster.cluster_options import Cluster
from vdl.commands.output import fail, progress, say
from vdl.commands.resources.topic_facts import descriptions, topic_names
from vdl.commands.selection import select

INTERNAL_PREFIX = "__"
"""Begins the names of a cluster's own topics, and by convention those of tools around it."""


def topics_to_change(
    cluster: Cluster, names: Sequence[str], regex: str | None, *, internal: bool
) -> list[str]:
    """Return the topics to change. A pattern takes no internal ones unless `internal`: without the
    offsets of its groups a cluster is of little use."""
    if not names and regex is None:
        raise click.UsageError("expected a NAME or --regex")
    with progress("asking the servers"):
        chosen = select(topic_names(cluster), names, regex, kind="topic")
        if internal:
            return chosen
        matched = [name for name in chosen if name not in names]
        found = descriptions(cluster, matched)
    left_out = [n for n in matched if n.startswith(INTERNAL_PREFIX) or found[n].is_internal]
    if left_out:
        say(f"left out without --internal: {' '.join(left_out)}", err=True)
    if not (rest := [name for name in chosen if name not in left_out]):
        fail("the pattern matches internal topics alone")
    return rest
