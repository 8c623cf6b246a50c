"""From the journal to segments and meta, and what may be deleted after it."""
