"""PostgreSQL as a source: set-up, catalogue, slot, copy."""
