"""VDL: a replicated log store that speaks the Kafka protocol; every partition is a Raft group."""

__version__ = "0.1.0"
