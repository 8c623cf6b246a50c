"""Change data capture of MariaDB tables: each row change is a record in Debezium's envelope."""
