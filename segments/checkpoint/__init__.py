"""Checkpoints: from the journal to segments and meta, and removal of what they make superfluous."""
