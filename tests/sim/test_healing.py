"""Bits that flip in segments while servers run: found, served around, repaired from a replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from tests.sim.test_stories import CALM, S, tell
from vdl.sim.disk import Directory, Inode, SimDisk
from vdl.sim.machine import Machine
from vdl.sim.world import World

pytestmark = pytest.mark.takes_turns(parts=2)

SMALL = replace(CALM, segment_kib=8, cache_kib=256, checkpoint_kib=16, record_bytes_max=1_000)
"""Entries leave memory soon, and segments are sealed soon."""
HEADER_BYTES = 4_096
"""The start of a segment file, where its header is."""


def segment_files(disk: SimDisk) -> list[Inode]:
    """Return all but the newest segment of each log, oldest first."""
    found: list[Inode] = []

    def walk(directory: Directory) -> Iterator[tuple[str, Inode]]:
        for name, node in sorted(directory.entries.items()):
            if isinstance(node, Directory):
                found.extend(inode for _, inode in list(walk(node))[:-1])
            elif isinstance(node, Inode) and name.endswith(".log"):
                yield name, node

    list(walk(disk.root))
    return found


def flip(inode: Inode, rng: Random) -> None:
    """Flip one bit after the header, in the volatile and the durable image."""
    at, bit = rng.randrange(HEADER_BYTES, len(inode.data)), 1 << rng.randrange(8)
    inode.data[at] ^= bit
    inode.durable[at] ^= bit


def damaged_ranges(world: World) -> int:
    """Return the number of known damaged ranges that are not healed."""
    return sum(
        len(group.log.damaged)
        for machine in world.machines
        if machine.server is not None and machine.server.host is not None
        for group in machine.server.host.groups.values()
    )


def test_flipped_bits_in_segments_are_healed_from_the_other_replicas() -> None:
    """A reader from the start meets them all on the leader; scrubbing finds the followers'.

    No consumer receives a wrong byte, and in the end all copies are equal.
    """

    def story(world: World, leader: Machine) -> None:
        world.run_for(10 * S)
        rng = Random(7)
        flipped = 0
        for number, machine in enumerate(world.machines):
            for place, inode in enumerate(segment_files(machine.disk)):
                # Replicas cut their segments nearly alike: this way no entry is damaged twice.
                if place % 9 == 3 * number and len(inode.data) > HEADER_BYTES + 1_000:
                    flip(inode, rng)
                    flipped += 1
        assert flipped > 5
        world.run_for(15 * S)
        assert world.wait(30 * S, lambda: not damaged_ranges(world))
        assert any("entries_repaired" in line for line in world.trace.tail)

    tell(story, SMALL)


def test_pages_that_go_bad_are_healed_while_their_server_runs() -> None:
    """Pages of segments and indexes, the newest too, are found by a read or the scrubber.

    The process keeps running, and the data comes from another replica.
    """

    def story(world: World, leader: Machine) -> None:
        world.run_for(8 * S)
        life, rng = leader.life, Random(5)
        for _ in range(200):
            leader.spoil_segment(rng)
            if len(leader.damaged_entries) > 20:
                break
            world.run_for(S // 20)
        assert len(leader.damaged_entries) > 20
        assert world.wait(60 * S, lambda: not leader.unhealed())
        assert leader.life is life
        assert any("entries_repaired" in line for line in world.trace.tail)

    tell(story, SMALL)
