"""Checkers that search client histories for observations a correct log cannot produce."""
