"""The journal: one stream of blocks for all logs, in files made ahead of their use."""
