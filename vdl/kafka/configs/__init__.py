"""Settings under Kafka's names: the front end's own, and those of topics, groups and servers."""
