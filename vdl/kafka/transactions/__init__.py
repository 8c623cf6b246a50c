"""Transactions on the server that leads their coordinator, and their verification by partitions."""
