"""Groups whose assignments the coordinator computes (KIP-848)."""
