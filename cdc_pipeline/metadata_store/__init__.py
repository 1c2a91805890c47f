"""The metadata store: what exists, who works on it, and how far the lake has come."""
