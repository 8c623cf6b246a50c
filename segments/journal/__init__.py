"""The journal: one stream of blocks for all logs, in files prepared ahead of use."""
