"""Handlers of the Kafka APIs, one module per family; `vdl.kafka.api` says which answers what."""
