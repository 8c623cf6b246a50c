"""Limits of clients: memory of requests and answers, quotas."""
