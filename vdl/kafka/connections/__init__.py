"""Client connections: sockets, TLS, frames, logins, sessions, and the scheduling of requests."""
