"""The log-stream layer: many Raft groups on one server."""
