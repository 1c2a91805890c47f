"""Sources of changes: the protocol that every source implements, and one package per kind of source."""
