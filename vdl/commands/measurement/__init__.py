"""Measurements of a cluster: phases and latencies."""
