"""One replica of a group, and its parts."""
