"""Serving of records beside the handlers: record checks, fetch sessions, read throttle, sizes."""
