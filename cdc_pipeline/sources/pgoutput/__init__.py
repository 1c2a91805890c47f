"""The decoder of the pgoutput protocol: bytes of a logical replication stream -> columns of events."""
