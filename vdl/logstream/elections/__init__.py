"""When groups campaign, and when they need not."""
