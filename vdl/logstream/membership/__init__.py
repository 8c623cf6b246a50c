"""Which replicas there are, who leads them, and how that changes."""
