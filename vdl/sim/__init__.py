"""Simulation of whole servers on virtual time, in one thread, from one seed.

A world holds servers built as in production, from the Kafka front end down to the store. Only the
clock, network, disk and random source are replaced. A seed can be run again: `vdl sim --seed N`.
Only the command line may import this package.
"""
