"""Removal of old records: trimming and compaction of logs."""
