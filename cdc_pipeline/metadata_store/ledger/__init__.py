"""Streams, tables, slices and claims: what is registered, and how far the lake has come."""
