"""VDL: a replicated log store that speaks the Kafka protocol; every partition is a Raft group."""
