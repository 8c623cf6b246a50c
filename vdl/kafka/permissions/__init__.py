"""Permissions that a request needs before its handler runs: rules for each API."""
