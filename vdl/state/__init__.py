"""Deterministic state machines fed by committed entries: catalog, coordinators, producers."""
