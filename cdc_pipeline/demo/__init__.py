"""`cdc demo`: a small shop and pgbench as the source, sessions that write to them, and the demo's script."""
