"""The Kafka front end: frames, codec, handlers."""
