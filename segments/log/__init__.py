"""One log: its tail in memory, its segments and indexes, and what is wrong with them."""
