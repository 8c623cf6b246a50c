"""Server to server: framed peer streams for Raft messages, gRPC for the admin plane."""
