"""Replicas of this server, members and leaders of groups, and their changes."""
