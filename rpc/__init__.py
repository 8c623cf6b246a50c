"""Communication between servers: framed streams for Raft messages, gRPC for the admin plane."""
