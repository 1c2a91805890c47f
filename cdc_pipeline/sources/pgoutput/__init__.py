"""Decodes the pgoutput protocol: bytes of a logical replication stream into columns of events."""
