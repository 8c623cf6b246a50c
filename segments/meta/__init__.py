"""Applied state in LMDB, and on its way there."""
