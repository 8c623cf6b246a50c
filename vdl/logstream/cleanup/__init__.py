"""What becomes of old records: what is cut off logs, and which logs are compacted."""
