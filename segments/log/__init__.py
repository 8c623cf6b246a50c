"""One log: its tail in memory, its segments and indexes, and their damage."""
