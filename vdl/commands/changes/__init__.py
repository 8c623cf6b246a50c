"""Changes of a cluster's placement: planned from a copy of it, then carried out."""
