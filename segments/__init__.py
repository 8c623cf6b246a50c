"""The storage engine: one journal for all logs, log and index segments, the tail cache, meta."""
