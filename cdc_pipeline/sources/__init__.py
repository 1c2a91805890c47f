"""Sources of changes: one protocol, and a package per kind of source behind it."""
