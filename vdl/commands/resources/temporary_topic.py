"""Deletion of a topic that a command made for itself."""

from __future__ import annotations

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception

OUTAGE_SECONDS = 0.5
"""Wait for the deletion while no server answers."""


def wait_seconds(cluster: Cluster) -> float:
    """Return the longest wait for the deletion."""
    return OUTAGE_SECONDS if cluster.outage.reason else cluster.result_seconds


def delete_temporary(cluster: Cluster, name: str) -> str | None:
    """Delete a topic. Return why it may still be there in one line; None if it is gone, or was
    never there."""
    try:
        cluster.admin().delete_topics([name])[name].result(wait_seconds(cluster))
    except TimeoutError:
        why = cluster.outage.reason or cluster.no_answer
    except kafka_exception() as error:
        if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
            return None
        why = cluster.words(error)
    else:
        return None
    return f"topic {name} was not deleted: {why}"
