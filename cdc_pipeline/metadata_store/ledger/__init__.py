"""Streams, tables, slices and claims: what is registered, and what the lake has applied."""
