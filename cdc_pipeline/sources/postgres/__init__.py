"""PostgreSQL as a source: set-up, catalogue, replication slot, copies of tables."""
