"""States of clusters and machines, and verdicts on them."""
