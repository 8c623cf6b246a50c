"""Handlers of the Kafka APIs, one module per family; `vdl.kafka.api` maps API keys to them."""
