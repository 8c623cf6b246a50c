"""A server: its loop, its process, its ports."""
