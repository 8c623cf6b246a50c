"""Views of coordinators as Kafka's own topics: `__consumer_offsets` and `__transaction_state`."""
