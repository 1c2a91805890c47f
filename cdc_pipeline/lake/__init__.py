"""The lake: Delta tables that Spark merges into, with a fence inside each table's own log."""
