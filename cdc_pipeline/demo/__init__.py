"""A small shop and pgbench, people who write to them, and the story that `cdc demo` tells."""
