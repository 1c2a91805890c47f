"""The decoder of the Debezium envelope: JSON lines -> change events."""
