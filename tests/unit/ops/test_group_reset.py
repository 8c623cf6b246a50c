"""`vdl group reset`: offsets of partitions that are not there."""

from __future__ import annotations

from confluent_kafka.admin._metadata import PartitionMetadata, TopicMetadata

from vdl.commands.resources.group_facts import Positions
from vdl.commands.resources.group_reset import without_partition


def topic(*partitions: int) -> TopicMetadata:
    found = TopicMetadata()
    found.partitions = {one: PartitionMetadata() for one in partitions}
    return found


def test_offsets_of_what_is_not_there_are_skipped() -> None:
    """A deleted topic, and one that was created anew with fewer partitions."""
    held = Positions({("kept", 0): 2, ("gone", 0): 7, ("smaller", 0): 1, ("smaller", 4): 9})
    topics = {"kept": topic(0, 1), "smaller": topic(0)}
    assert without_partition(held, topics) == [("gone", 0), ("smaller", 4)]
