"""Consensus for one group: a pure Raft state machine (see `raft.node.RawNode`)."""
