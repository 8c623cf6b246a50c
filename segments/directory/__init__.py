"""Whose directory this is, and which logs it has."""
