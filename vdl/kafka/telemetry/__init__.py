"""Metrics that clients push (KIP-714)."""
