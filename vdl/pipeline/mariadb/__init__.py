"""A MariaDB's tables as topics: every change of a row is a record, in Debezium's envelope."""
