"""Compaction: sealed segments are rewritten without the records that later ones supersede."""
