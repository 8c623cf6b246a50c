"""Transactions where their coordinator is led, and what partitions ask it."""
