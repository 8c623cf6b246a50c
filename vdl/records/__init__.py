"""Kafka's record batch: header, records, codecs."""
