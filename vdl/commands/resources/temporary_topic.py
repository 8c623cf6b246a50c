"""Deletion of a topic that a command made for itself."""

from __future__ import annotations

from vdl.commands.cluster.cluster_options import Cluster, kafka_exception

DELETE_SECONDS_MAX = 30.0


def delete_temporary(cluster: Cluster, name: str) -> str | None:
    """Delete a topic. Return why it may still be there in one line; None if it is gone, or was
    never there."""
    try:
        cluster.admin().delete_topics([name])[name].result(DELETE_SECONDS_MAX)
    except TimeoutError:
        why = f"no answer within {DELETE_SECONDS_MAX:.0f} s"
    except kafka_exception() as error:
        if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
            return None
        why = cluster.words(error)
    else:
        return None
    return f"topic {name} was not deleted: {why}"
