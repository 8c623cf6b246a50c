"""Identities of clients, and their permissions."""
