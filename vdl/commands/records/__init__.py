"""Records on their way into a cluster and out of it."""
