"""The Kafka front end: frames, codec, handlers. Everything a client can see, and nothing else."""
