"""Real servers for tests: starting them, failing them in every way, and checking what remains."""
