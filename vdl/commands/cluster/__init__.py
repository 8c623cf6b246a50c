"""Connections to a cluster: options, profiles, clients, requests."""
