"""Measurements of a replica set on this machine, through librdkafka: `make bench`."""
