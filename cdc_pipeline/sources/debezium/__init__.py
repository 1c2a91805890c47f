"""Decodes JSON lines with Debezium's envelope into change events."""
