"""Checkers: given what clients did and saw, find what a correct log could never have shown them."""
