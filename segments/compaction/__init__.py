"""Log compaction: sealed segments are rewritten without records that later ones supersede."""
