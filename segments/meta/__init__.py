"""Applied state in LMDB, and changes that are not written yet."""
