"""How fast a replica set is on this machine, seen through librdkafka: `make bench`."""
