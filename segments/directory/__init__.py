"""Identity of a data directory, and the list of its logs."""
