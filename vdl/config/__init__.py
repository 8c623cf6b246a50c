"""Settings: the file, and its values."""
