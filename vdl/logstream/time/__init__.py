"""The cluster's time, and the lateness of the loop."""
