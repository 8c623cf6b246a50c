"""One replica of a group, and what hangs on it."""
