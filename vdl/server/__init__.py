"""A server: its event loop, its process, its ports."""
