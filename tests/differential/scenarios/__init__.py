"""Scenarios of requests by family of APIs."""
