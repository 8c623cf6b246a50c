"""Opening a data directory: what is there, what is missing, what the journal says."""
