"""Web console of a server; see README.md."""
