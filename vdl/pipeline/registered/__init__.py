"""Values that name their schema in a registry: Avro, Protobuf, JSON with JSON Schema."""
