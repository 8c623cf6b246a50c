"""What time it is, and whether the loop has been late."""
