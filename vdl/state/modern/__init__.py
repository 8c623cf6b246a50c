"""Consumer groups with server-side assignment (KIP-848)."""
