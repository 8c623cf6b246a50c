"""Compaction limit of a partition's log as replicated state."""

from vdl.state.partition import AdvanceLogStart, Compact, PartitionState, encode_command


def test_decisions_to_compact_only_go_forward() -> None:
    """A decision applied twice, or late, changes nothing.

    The markers' limit never passes the compacted limit.
    """
    state = PartitionState()
    for command, found in (
        (Compact(10, 0), (10, 0)),
        (Compact(8, 8), (10, 8)),
        (Compact(20, 30), (20, 20)),
        (Compact(20, 10), (20, 20)),
    ):
        state.apply(encode_command(command), end_offset=100)
        assert (state.compact_upto, state.markers_upto) == found


def test_decision_to_compact_is_stored_and_snapshotted() -> None:
    """A decision is stored by changes and as a whole, beside the rest."""
    state = PartitionState()
    state.apply(encode_command(AdvanceLogStart(7)), end_offset=100)
    state.apply(encode_command(Compact(10, 4)), end_offset=100)
    stored = dict(state.take_dirty())
    assert state.take_dirty() == []
    assert sorted(stored.items()) == state.items()
    again = PartitionState()
    again.load(state.items())
    assert (again.compact_upto, again.markers_upto, again.log_start_offset) == (10, 4, 7)
    assert again.items() == state.items()
    again.load([])
    assert again.items() == []
