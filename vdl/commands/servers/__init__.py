"""Replica sets on this machine: configurations, certificates, processes."""
