"""Client connections: sockets, TLS, frames, logins, sessions, and whose request starts when."""
